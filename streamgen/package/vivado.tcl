proc beside {names} {
    global here
    return [lmap name $names {file join $here $name}]
}

# An interface that Vivado has not recognised by its pins is told which they are.
proc interface {name type pins} {
    global core
    if {[llength [ipx::get_bus_interfaces -quiet $name -of_objects $core]] == 0} {
        ipx::infer_bus_interface $pins $type $core
    }
    if {[llength [ipx::get_bus_interfaces -quiet $name -of_objects $core]] != 1} {
        error "ERROR: streamgen: Vivado has not recognised the interface $name"
    }
}

proc pins_of {name} {
    global core
    return [lmap port [ipx::get_ports ${name}_* -of_objects $core] {get_property name $port}]
}

# The project.
set here [file dirname [file normalize [info script]]]
lassign [split $vlnv :] vendor library name version
set work [file join $here $build]
file mkdir $work
create_project -force -part $part $top [file join $work project]
add_files -norecurse [beside [concat $verilog $systemverilog]]
foreach file [beside $systemverilog] {
    set_property file_type SystemVerilog [get_files $file]
}
if {[llength $constraints]} {
    add_files -norecurse -fileset constrs_1 [beside $constraints]
    set_property used_in_synthesis false [get_files [beside $constraints]]
}
set_property top $top [current_fileset]
update_compile_order -fileset sources_1

# The block, with its clock, its reset and its interfaces.
set ip [file join $work ip]
ipx::package_project -root_dir $ip -vendor $vendor -library $library -taxonomy /KernelIP -import_files \
    -set_current true -force
set core [ipx::current_core]
set_property name $name $core
set_property version $version $core
interface ap_clk xilinx.com:signal:clock_rtl:1.0 ap_clk
interface ap_rst_n xilinx.com:signal:reset_rtl:1.0 ap_rst_n
interface interrupt xilinx.com:signal:interrupt_rtl:1.0 interrupt
ipx::associate_bus_interfaces -clock ap_clk -reset ap_rst_n $core
foreach bus [concat $control $masters] {
    interface $bus xilinx.com:interface:aximm_rtl:1.0 [pins_of $bus]
    ipx::associate_bus_interfaces -busif $bus -clock ap_clk $core
}

# Its registers. What Vivado calls the block of addresses differs between versions.
set map [ipx::get_memory_maps -quiet $control -of_objects $core]
if {[llength $map] == 0} {
    set map [ipx::add_memory_map $control $core]
    set_property slave_memory_map_ref $control [ipx::get_bus_interfaces $control -of_objects $core]
}
set block [lindex [ipx::get_address_blocks -quiet * -of_objects $map] 0]
if {$block eq ""} {
    set block [ipx::add_address_block reg0 $map]
}
set_property range $register_bytes $block
set_property width 32 $block
foreach register $registers {
    lassign $register name offset bits master
    set made [ipx::add_register $name $block]
    set_property address_offset $offset $made
    set_property size $bits $made
    if {$master ne ""} {
        set_property value $master [ipx::add_register_parameter ASSOCIATED_BUSIF $made]
    }
}

# A kernel of Vitis.
set_property sdx_kernel true $core
set_property sdx_kernel_type rtl $core
set_property vitis_drc [list ctrl_protocol $protocol] $core
set_property ipi_drc {ignore_freq_hz true} $core
set_property supported_families {} $core
set_property auto_family_support_level level_2 $core
ipx::create_xgui_files $core
ipx::update_checksums $core
ipx::check_integrity -kernel $core
ipx::save_core $core
close_project

package_xo -force -xo_path [file join $work $top.xo] -kernel_name $top -ip_directory $ip \
    -kernel_xml [file join $here kernel.xml]
