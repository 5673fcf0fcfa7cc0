"""Vivado's packager, as far as the script of a package uses it. It refuses everything that it does not know.

Commands have options, arguments, and commands that must come before them; objects have properties.
`check_integrity` checks the block by Vivado's rules for kernels. Sources: AMD's UG835 and UG1393.
"""

import tkinter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

AXI, CLOCK, RESET, INTERRUPT = (
    "xilinx.com:interface:aximm_rtl:1.0",
    "xilinx.com:signal:clock_rtl:1.0",
    "xilinx.com:signal:reset_rtl:1.0",
    "xilinx.com:signal:interrupt_rtl:1.0",
)
PROPERTIES = {
    "core": {"name", "version", "vendor", "library", "sdx_kernel", "sdx_kernel_type", "vitis_drc", "ipi_drc",
             "supported_families", "auto_family_support_level"},
    "bus": {"slave_memory_map_ref"},
    "block": {"range", "width"},
    "register": {"address_offset", "size"},
    "parameter": {"value"},
    "file": {"file_type", "used_in_synthesis"},
    "fileset": {"top"},
}  # fmt: skip


class RefusedError(Exception):
    """An error at which Vivado would stop."""


class Vivado:
    """A run of Vivado in batch mode.

    pins: bits of the pins of the top module, by name. infers: whether the packager recognises AXI interfaces
    and makes a memory map with an address block of the name `block`.
    """

    def __init__(self, pins: Mapping[str, int], *, infers: bool = True, block: str | None = "reg0") -> None:
        self.pins, self.infers, self.block, self.top = pins, infers, block, ""
        self.done: list[str] = []
        self.properties: dict[str, dict[str, str]] = {}
        self.buses: dict[str, tuple[str, tuple[str, ...]]] = {}
        self.clocks: dict[str, str] = {}
        self.registers: dict[str, dict[str, str]] = {}
        self.files: list[Path] = []
        self.constraints: list[Path] = []
        self.xo: Path | None = None
        self._problem: Exception | None = None
        self._tcl = tkinter.Tcl()
        self._tcl.eval("namespace eval ipx {}")
        for name, command in self._commands().items():
            self._tcl.tk.createcommand(name, self._guarded(name, command))

    def source(self, script: Path) -> None:
        """Run a script. Raises RefusedError at the first line at which Vivado would stop."""
        try:
            self._tcl.eval(f"source {{{script}}}")
        except tkinter.TclError as error:
            raise self._problem or RefusedError(str(error)) from error

    def register(self, name: str) -> dict[str, str]:
        """The properties of a register."""
        return self.properties[f"register:{name}"]

    def _guarded(self, name: str, command: Callable[[list[str]], Any]) -> Callable[..., Any]:
        def call(*arguments: str) -> Any:
            try:
                result = command(list(arguments))
                self.done.append(name)
                return "" if result is None else result
            except Exception as error:
                self._problem = self._problem or error
                raise

        return call

    def _commands(self) -> dict[str, Callable[[list[str]], Any]]:
        return {
            "create_project": self._create_project,
            "close_project": self._close_project,
            "add_files": self._add_files,
            "get_files": self._get_files,
            "current_fileset": lambda given: self._one("fileset:", given, "create_project"),
            "update_compile_order": self._update_compile_order,
            "set_property": self._set_property,
            "get_property": self._get_property,
            "package_xo": self._package_xo,
            "ipx::package_project": self._package_project,
            "ipx::current_core": lambda given: self._one("core:", given, "package_project"),
            "ipx::get_ports": self._get_ports,
            "ipx::get_bus_interfaces": lambda given: self._get("bus", given, self.buses, "core:"),
            "ipx::infer_bus_interface": self._infer,
            "ipx::associate_bus_interfaces": self._associate,
            "ipx::get_memory_maps": lambda given: self._get("map", given, self._of("map"), "core:"),
            "ipx::add_memory_map": lambda given: self._add("map", given, "core:"),
            "ipx::get_address_blocks": lambda given: self._get("block", given, self._of("block"), "map:"),
            "ipx::add_address_block": lambda given: self._add("block", given, "map:"),
            "ipx::add_register": lambda given: self._add("register", given, "block:"),
            "ipx::add_register_parameter": self._add_parameter,
            "ipx::create_xgui_files": lambda given: self._core("create_xgui_files", given),
            "ipx::update_checksums": lambda given: self._core("update_checksums", given),
            "ipx::check_integrity": self._check_integrity,
            "ipx::save_core": self._save_core,
        }  # fmt: skip

    def _require(self, command: str, *before: str) -> None:
        done = {name.removeprefix("ipx::") for name in self.done}
        for earlier in before:
            if earlier not in done:
                raise RefusedError(f"{command} before {earlier}")
        if "close_project" in done and command != "package_xo":
            raise RefusedError(f"{command} without a project")

    def _one(self, what: str, given: list[str], *before: str) -> str:
        self._require(what, *before)
        if given:
            raise RefusedError(f"what gives or ends {what} takes no arguments, not {given}")
        return what

    def _parsed(
        self,
        command: str,
        given: list[str],
        flags: str = "",
        options: str = "",
        count: tuple[int, int] = (0, 0),
    ) -> tuple[dict[str, str], list[str]]:
        """Options, flags and positional arguments. Raises RefusedError for unknown ones."""
        found: dict[str, str] = {}
        rest: list[str] = []
        while given:
            word = given.pop(0)
            if word in [f"-{flag}" for flag in flags.split()]:
                found[word[1:]] = "true"
            elif word in [f"-{option}" for option in options.split()] and given:
                found[word[1:]] = given.pop(0)
            elif word.startswith("-"):
                raise RefusedError(f"{command} has no option {word}")
            else:
                rest.append(word)
        if not count[0] <= len(rest) <= count[1]:
            raise RefusedError(f"{command} takes {count[0]} to {count[1]} arguments, not {rest}")
        return found, rest

    def _create_project(self, given: list[str]) -> None:
        options, (_, folder) = self._parsed("create_project", given, "force", "part", (2, 2))
        if self.done or "part" not in options:
            raise RefusedError("create_project comes first, with -part")
        if not Path(folder).parent.is_dir():
            raise RefusedError(f"{folder} cannot be made")

    def _close_project(self, given: list[str]) -> None:
        self._one("project", given, "create_project")

    def _add_files(self, given: list[str]) -> None:
        self._require("add_files", "create_project")
        options, (names,) = self._parsed("add_files", given, "norecurse", "fileset", (1, 1))
        for name in self._tcl.splitlist(names):
            if not Path(name).is_file():
                raise RefusedError(f"there is no file {name}")
            constraints = options.get("fileset") == "constrs_1"
            if constraints is not name.endswith(".xdc"):
                raise RefusedError(f"{name} belongs to another set of files")
            (self.constraints if constraints else self.files).append(Path(name))

    def _get_files(self, given: list[str]) -> tuple[str, ...]:
        self._require("get_files", "add_files")
        _, (names,) = self._parsed("get_files", given, "", "", (1, 1))
        known = {str(path) for path in (*self.files, *self.constraints)}
        for name in (wanted := self._tcl.splitlist(names)):
            if name not in known:
                raise RefusedError(f"no file {name} in the project")
        return tuple(f"file:{name}" for name in wanted)

    def _update_compile_order(self, given: list[str]) -> None:
        self._require("update_compile_order", "add_files")
        options, _ = self._parsed("update_compile_order", given, "", "fileset")
        if options.get("fileset") != "sources_1":
            raise RefusedError("update_compile_order of which files?")

    def _set_property(self, given: list[str]) -> None:
        self._require("set_property", "create_project")
        _, (name, value, objects) = self._parsed("set_property", given, "", "", (3, 3))
        if not objects:
            raise RefusedError(f"set_property {name} of nothing")
        if {"update_checksums", "save_core"} & {step.removeprefix("ipx::") for step in self.done}:
            raise RefusedError(f"set_property {name} after the checksums")
        for item in self._tcl.splitlist(objects):
            kind = item.partition(":")[0]
            if name not in PROPERTIES.get(kind, ()):
                raise RefusedError(f"{item} has no property {name}")
            self.properties.setdefault(item, {})[name] = value

    def _get_property(self, given: list[str]) -> str:
        _, (name, item) = self._parsed("get_property", given, "", "", (2, 2))
        if not item.startswith("port:") or name != "name":
            raise RefusedError(f"get_property {name} of {item}")
        return item.removeprefix("port:")

    def _package_project(self, given: list[str]) -> None:
        self._require("package_project", "update_compile_order")
        options, _ = self._parsed(
            "package_project", given, "import_files force", "root_dir vendor library taxonomy set_current"
        )
        if "import_files" not in options or "top" not in self.properties.get("fileset:", {}):
            raise RefusedError("package_project without the files of a top")
        self.top = self.properties["fileset:"]["top"]
        names = {key: options[key] for key in ("vendor", "library")}
        self.properties["core:"] = {
            **names,
            "name": self.top,
            "version": "1.0",
            "root_dir": options["root_dir"],
        }
        Path(options["root_dir"]).mkdir(parents=True)
        for name, kind in (("ap_clk", CLOCK), ("ap_rst_n", RESET)):
            self._found(name, kind, (name,))
        if self.infers:
            for bus in {"_".join(pin.split("_")[:3]) for pin in self.pins if "_axi_" in pin}:
                self._found(bus, AXI, tuple(pin for pin in self.pins if pin.startswith(f"{bus}_")))
            self.properties["map:s_axi_control"] = {}
            if self.block is not None:
                self.properties[f"block:{self.block}"] = {}

    def _found(self, name: str, kind: str, pins: tuple[str, ...]) -> None:
        if not pins or set(pins) - self.pins.keys():
            raise RefusedError(f"interface {name} of the pins {pins}")
        self.buses[name] = kind, pins

    def _get_ports(self, given: list[str]) -> tuple[str, ...]:
        options, (pattern,) = self._parsed("get_ports", given, "quiet", "of_objects", (1, 1))
        if options.get("of_objects") != "core:" or not pattern.endswith("_*"):
            raise RefusedError(f"get_ports {pattern}")
        return tuple(f"port:{pin}" for pin in self.pins if pin.startswith(pattern[:-1]))

    def _of(self, kind: str) -> list[str]:
        return [key.partition(":")[2] for key in self.properties if key.startswith(f"{kind}:")]

    def _get(self, kind: str, given: list[str], known: Any, parent: str) -> tuple[str, ...]:
        options, (name,) = self._parsed(f"get of {kind}", given, "quiet", "of_objects", (1, 1))
        if not options.get("of_objects", "").startswith(parent):
            raise RefusedError(f"{kind} {name} of {options.get('of_objects')!r}")
        return tuple(f"{kind}:{item}" for item in known if name in ("*", item))

    def _add(self, kind: str, given: list[str], parent: str) -> str:
        self._require(f"add of {kind}", "package_project")
        _, (name, of) = self._parsed(f"add of {kind}", given, "", "", (2, 2))
        if not of.startswith(parent):
            raise RefusedError(f"{kind} {name} in {of!r}")
        if f"{kind}:{name}" in self.properties:
            raise RefusedError(f"there is a {kind} {name} already")
        self.properties[f"{kind}:{name}"] = {}
        return f"{kind}:{name}"

    def _add_parameter(self, given: list[str]) -> str:
        _, (name, register) = self._parsed("add_register_parameter", given, "", "", (2, 2))
        if name != "ASSOCIATED_BUSIF" or register not in self.properties:
            raise RefusedError(f"parameter {name} of {register}")
        return f"parameter:{register.partition(':')[2]}"

    def _infer(self, given: list[str]) -> None:
        self._require("infer_bus_interface", "package_project")
        _, (names, kind, core) = self._parsed("infer_bus_interface", given, "", "", (3, 3))
        pins = tuple(self._tcl.splitlist(names))
        if kind not in (AXI, CLOCK, RESET, INTERRUPT) or core != "core:":
            raise RefusedError(f"infer_bus_interface {kind} of {core}")
        if not pins:
            raise RefusedError(f"infer_bus_interface {kind} of no pins")
        self._found("_".join(pins[0].split("_")[:3]) if kind == AXI else pins[0], kind, pins)

    def _associate(self, given: list[str]) -> None:
        self._require("associate_bus_interfaces", "package_project")
        options, (core,) = self._parsed("associate_bus_interfaces", given, "", "busif clock reset", (1, 1))
        kinds = {"busif": AXI, "clock": CLOCK, "reset": RESET}
        for option, name in options.items():
            if self.buses.get(name, ("",))[0] != kinds[option]:
                raise RefusedError(f"{name} is no interface for -{option}")
        if core != "core:" or "clock" not in options or len(options) != 2:
            raise RefusedError(f"associate_bus_interfaces {options} of {core}")
        self.clocks[options.get("busif") or options["reset"]] = options["clock"]

    def _core(self, command: str, given: list[str]) -> None:
        self._require(command, "package_project")
        _, (core,) = self._parsed(command, given, "", "", (1, 1))
        if core != "core:":
            raise RefusedError(f"{command} of {core}")

    def _check_integrity(self, given: list[str]) -> None:
        self._require("check_integrity", "update_checksums", "create_xgui_files")
        options, (core,) = self._parsed("check_integrity", given, "kernel xrt quiet", "", (1, 1))
        if "kernel" not in options or core != "core:":
            raise RefusedError("check_integrity without -kernel looks at no kernel")
        kernel = self.properties["core:"]
        if (kernel.get("sdx_kernel"), kernel.get("sdx_kernel_type")) != ("true", "rtl"):
            raise RefusedError("this is no RTL kernel")
        if kernel.get("vitis_drc") != "ctrl_protocol ap_ctrl_chain":
            raise RefusedError("this is another control protocol")
        belonging = [pin for _, pins in self.buses.values() for pin in pins]
        if sorted(belonging) != sorted(self.pins):
            raise RefusedError(f"pins of no interface, or of two: {set(self.pins) ^ set(belonging)}")
        for name, (kind, _) in self.buses.items():
            if kind in (AXI, RESET) and self.clocks.get(name) != "ap_clk":
                raise RefusedError(f"interface {name} has no clock")
        (block,) = self._of("block")
        if self.properties[f"block:{block}"] != {"range": "4096", "width": "32"}:
            raise RefusedError("the block of addresses has another size")
        self._check_registers()

    def _check_registers(self) -> None:
        """Every register lies inside the block, registers do not overlap, and every pointer has a master."""
        end = 0
        for name in self._of("register"):
            at, bits = (int(self.register(name).get(key, "-1"), 0) for key in ("address_offset", "size"))
            if at < end or bits not in (32, 64) or at + bits // 8 > 4096:
                raise RefusedError(f"register {name} of {bits} bits at {at}")
            end = at + bits // 8
            master = self.properties.get(f"parameter:{name}", {}).get("value")
            if (bits == 64) is not (master in self.buses and master != "s_axi_control"):
                raise RefusedError(f"register {name} of {bits} bits with the master {master}")
        if not end:
            raise RefusedError("a kernel needs registers")

    def _save_core(self, given: list[str]) -> None:
        self._require("save_core", "check_integrity")
        self._core("save_core", given)

    def _package_xo(self, given: list[str]) -> None:
        self._require("package_xo", "save_core", "close_project")
        options, _ = self._parsed(
            "package_xo", given, "force", "xo_path kernel_name ip_directory kernel_xml ctrl_protocol"
        )
        core = self.properties["core:"]
        if options.get("ip_directory") != core["root_dir"]:
            raise RefusedError("package_xo of another folder than the block's")
        if not {"xo_path", "kernel_name"} <= options.keys():
            raise RefusedError("package_xo needs -xo_path and -kernel_name")
        kernel = ElementTree.parse(options["kernel_xml"]).getroot().find("kernel")
        assert kernel is not None
        vlnv = ":".join(core[key] for key in ("vendor", "library", "name", "version"))
        if (kernel.get("name"), kernel.get("vlnv")) != (options["kernel_name"], vlnv):
            raise RefusedError(f"kernel.xml is of {kernel.get('vlnv')}, the block is {vlnv}")
        if "ctrl_protocol" in options:
            raise RefusedError("kernel.xml says the protocol")
        self.xo = Path(options["xo_path"])
        self.xo.write_text(self.top)


def cells_of(constraints: Path) -> dict[str, str]:
    """The SLR of each cell in a constraints file. Raises RefusedError for unknown commands."""
    tcl, placed = tkinter.Tcl(), {}

    def set_property(name: str, slr: str, cells: str) -> None:
        assert name == "USER_SLR_ASSIGNMENT"
        for cell in tcl.splitlist(cells):
            assert cell not in placed
            placed[cell] = slr

    tcl.tk.createcommand("set_property", set_property)
    tcl.tk.createcommand("get_cells", lambda names: tcl.splitlist(names))
    try:
        tcl.eval(constraints.read_text())
    except tkinter.TclError as error:
        raise RefusedError(str(error)) from error
    return placed
