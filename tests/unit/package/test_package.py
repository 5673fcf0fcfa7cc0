"""A package has everything that the vendor's tools need, as far as this can be tested without the tools."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lxml import etree

import streamgen
from streamgen import cli
from streamgen.api.accelerator import Accelerator
from streamgen.artifact.manifest import Manifest
from streamgen.artifact.written import sealed
from streamgen.base import folders
from streamgen.compiler.emit.resources import SHELL
from streamgen.compiler.lower import GraphBuilder
from streamgen.contract.cost import Resources
from streamgen.itensor import ITensor
from streamgen.package import find_tools, package
from streamgen.package import folder as package_folder
from streamgen.package.link import link_config
from streamgen.package.script import packaging_script
from streamgen.platform.boards import BOARDS, Shell, Slr, board_of, shell_of
from streamgen.runtime.card import Card
from streamgen.testing.lint import lint
from tests.shared.accelerators import TINY, grouped, tiny, tiny_module
from tests.shared.decoders import tiny_accelerator
from tests.unit.base.test_extras import bare
from tests.unit.package.packages import banks_of, instances_of, kernel_of, manifest_of, pins_of
from tests.unit.package.vivado import RefusedError, Vivado, cells_of

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[3]
SCHEMA = etree.XMLSchema(etree.parse(HERE / "kernel.xsd"))
VIVADOS = {
    "infers": {},
    "another name": {"block": "Reg0"},
    "no block": {"block": None},
    "infers nothing": {"infers": False},
}
U55C = board_of("u55c")


def contents(folder: Path) -> dict[str, bytes]:
    """The content of all files, by path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def spread() -> Accelerator:
    """The tiny design on a card whose SLRs are too small for all of it."""
    small = Resources(lut=12_500, ff=20_000, bram=20, uram=0, dsp=50)
    slrs = tuple(Slr(name=slr.name, resources=small) for slr in U55C.slrs)
    board = replace(U55C, name="small", slrs=slrs, fill=1.0)
    config = replace(TINY, name="spread", board=board)
    return streamgen.compile(tiny_module(), torch.zeros(1, 40), config)


def with_verilog(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    """A design with a user's Verilog."""
    monkeypatch.syspath_prepend(ROOT / "examples" / "packages" / "verilog")
    from streamgen_example_verilog import RunningSumParams

    tiles = ITensor((1, 4), "i16", (6, 2), (1, 4), ((0,), (1,)))
    builder = GraphBuilder("sums")
    x = builder.load("x", tiles, shape=(6, 8), channel=3)
    params = RunningSumParams(lanes=4, max_rows=6, max_panels=2)
    y = builder.kernel("running", params, {"rows": 6, "panels": 2}, i=x)["o"]
    builder.store("y", y, shape=(6, 8), channel=0)
    return streamgen.assemble(builder.build())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny accelerator, written. Tests do not change it."""
    return tiny().write(tmp_path_factory.mktemp("package") / "tiny")


@pytest.fixture(scope="module")
def packaged(written: Path) -> Path:
    """The package of the tiny accelerator. Tests do not change it."""
    return package(written, written.with_name("card"))


def check_kernel_xml(folder: Path) -> None:
    """Check kernel.xml against its schema, the manifest, and the pins of the Verilog."""
    SCHEMA.assertValid(etree.parse(folder / "kernel.xml"))
    manifest, kernel, pins = manifest_of(folder), kernel_of(folder), pins_of(folder)
    channels = {port.name: port.channel for port in manifest.ports}
    by_name = {buffer.name: buffer for buffer in manifest.buffers}
    for number, (argument, described) in enumerate(zip(manifest.arguments, kernel.iter("arg"), strict=True)):
        assert described.get("id") == str(number) and described.get("name") == argument.name
        assert int(described.get("offset", ""), 0) == argument.offset
        port = described.get("port", "")
        if argument.kind == "scalar":
            assert (described.get("addressQualifier"), described.get("size"), port) == (
                "0",
                "0x4",
                "s_axi_control",
            )
        else:
            assert (described.get("addressQualifier"), described.get("size")) == ("1", "0x8")
            assert channels[port] == by_name[argument.name].channel
    prefixes = {"_".join(pin.split("_")[:3]) for pin in pins if "_axi_" in pin}
    assert {port.get("name") for port in kernel.iter("port")} == prefixes
    for port in kernel.iter("port"):
        name, bits = port.get("name"), int(port.get("dataWidth", ""))
        assert pins[f"{name}_wdata"] == pins[f"{name}_rdata"] == bits
        if port.get("mode") == "slave":
            assert int(port.get("range", ""), 0) == 1 << pins[f"{name}_awaddr"] == 1 << pins[f"{name}_araddr"]
        else:
            assert pins[f"{name}_awaddr"] == pins[f"{name}_araddr"] == 64
    assert pins["ap_clk"] == pins["ap_rst_n"] == pins["interrupt"] == 1
    assert kernel.get("name") == manifest.top and kernel.get("hwControlProtocol") == "ap_ctrl_chain"


def check_verilog(folder: Path) -> None:
    """Neither Verilator nor Yosys (`pins_of`) complains about the Verilog."""
    manifest = manifest_of(folder)
    sources = {name: (folder / name).read_text() for name in manifest.sources}
    lint((folder / manifest.verilog).read_text(), manifest.top, sources)
    assert pins_of(folder)


def run_script(folder: Path, **vivado: object) -> Vivado:
    """Run the script of a package in Vivado, which writes its product to the package."""
    run = Vivado(pins_of(folder), **vivado)
    run.source(folder / "package.tcl")
    return run


def copied(folder: Path, target: Path) -> Path:
    """A copy that the test may change."""
    target.mkdir(parents=True)
    for name, content in contents(folder).items():
        (target / name).write_bytes(content)
    return target


def test_the_files(written: Path, packaged: Path) -> None:
    manifest = manifest_of(packaged)
    kept = {"design.v", "manifest.json", "weights_0.bin"}
    files = {"Makefile", "README.md", "card.json", "host.py", "kernel.xml", "link.cfg", "package.tcl"}
    assert set(contents(packaged)) == kept | files
    assert all((packaged / name).read_bytes() == (written / name).read_bytes() for name in kept)
    assert (packaged / "link.cfg").read_text().splitlines() == [
        "platform=xilinx_u55c_gen3x16_xdma_3_202210_1",
        "# Clock 0 of the platform drives ap_clk.",
        "kernel_frequency=0:300",
        "",
        "[connectivity]",
        "nk=tiny:1:tiny_1",
        "slr=tiny_1:SLR0",
        "sp=tiny_1.m_axi_gmem0:HBM[0]",
    ]
    readme = (packaged / "README.md").read_text()
    named = set(re.findall(r"`([\w.*]+\.\w+)`", readme)) - {"settings64.sh"}
    assert all(list(packaged.glob(name)) for name in named - {"placement.xdc"})
    assert manifest.top in readme and "2022.1 or later" in readme


def test_the_same_bytes(written: Path, packaged: Path, tmp_path: Path) -> None:
    assert contents(tiny().package(tmp_path / "by accelerator")) == contents(packaged)
    code = f"""
from streamgen.package import package, find_tools
assert not {{"torch", "amaranth", "scipy"}} & set(sys.modules)
print(package({str(written)!r}, {str(tmp_path / "bare")!r}).name)"""
    assert bare(code) == "bare"
    assert contents(tmp_path / "bare") == contents(packaged)


def test_kernel_xml(packaged: Path) -> None:
    check_kernel_xml(packaged)
    assert banks_of(packaged) == {"m_axi_gmem0": "HBM[0]"}
    check_verilog(packaged)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('id="8"', 'id="0"'),
        ('port="m_axi_gmem0" size', 'port="m_axi_gmem1" size'),
        ('offset="0x010"', 'offset="16"'),
        ('mode="master"', 'mode="both"'),
        ('language="ip_c"', 'language="c"'),
        ('type="void*"', ""),
        ("</args>", '<arg name="more"/></args>'),
        ("<args>", "<pipes/><args>"),
    ],
)
def test_the_schema_refuses(packaged: Path, old: str, new: str) -> None:
    text = (packaged / "kernel.xml").read_text()
    assert old in text
    assert not SCHEMA.validate(etree.fromstring(text.replace(old, new).encode()))


@pytest.mark.parametrize("vivado", VIVADOS.values(), ids=VIVADOS)
def test_the_script(packaged: Path, tmp_path: Path, vivado: dict) -> None:
    """The block has all registers and interfaces, each with its clock, whatever Vivado infers."""
    folder = copied(packaged, tmp_path / "card")
    run = run_script(folder, **vivado)
    manifest = manifest_of(folder)
    assert run.xo == folder / "build" / "tiny.xo" and run.xo.is_file()
    assert run.files == [folder / "design.v"] and run.constraints == []
    for argument in manifest.arguments:
        bits = 64 if argument.kind == "pointer" else 32
        expected = {"address_offset": f"{argument.offset:#05x}", "size": str(bits)}
        assert run.register(argument.name) == expected
    control = ("CTRL", "GIER", "IP_IER", "IP_ISR")
    assert [int(run.register(name)["address_offset"], 0) for name in control] == [0, 4, 8, 12]
    assert run.properties["parameter:weights_0"] == {"value": "m_axi_gmem0"}
    assert run.clocks == dict.fromkeys(("ap_rst_n", "s_axi_control", "m_axi_gmem0"), "ap_clk")
    assert set(run.buses) == {"ap_clk", "interrupt", *run.clocks}


LINES = [
    "create_project", "add_files -norecurse [beside [concat", "set_property top", "update_compile_order",
    "ipx::package_project", "interface ap_clk", "interface interrupt",
    "ipx::associate_bus_interfaces -clock", "    ipx::associate_bus_interfaces -busif",
    "set_property range", "    set_property address_offset", "    set_property size",
    "        set_property value", "set_property sdx_kernel true", "set_property vitis_drc",
    "ipx::create_xgui_files", "ipx::update_checksums", "ipx::check_integrity", "ipx::save_core",
    "close_project", "package_xo",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_a_script_without_a_line_is_refused(packaged: Path, tmp_path: Path, line: str) -> None:
    """This shows that the test above can fail. Without an inferred clock, only lines that follow from it are
    missing."""
    folder = copied(packaged, tmp_path / "card")
    script = folder / "package.tcl"
    text = re.sub(r" \\\n\s*", " ", script.read_text())
    kept = [other for other in text.splitlines() if not other.startswith(line)]
    assert len(kept) == len(text.splitlines()) - 1
    script.write_text("\n".join(kept))
    if line in ("interface ap_clk", "package_xo"):  # Vivado does the first by itself
        assert (run_script(folder).xo is None) is (line == "package_xo")
        return
    with pytest.raises(RefusedError):
        run_script(folder)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("ipx::save_core $core", "ipx::keep_core $core", 'invalid command name "ipx::keep_core"'),
        ("ipx::check_integrity -kernel $core", "ipx::check_integrity -all $core", "has no option -all"),
        ("ipx::check_integrity -kernel $core", "ipx::check_integrity $core", "looks at no kernel"),
        ("close_project", "close_project now", "takes no arguments"),
        ("{tiles 0x018 32 {}}", "{tiles 0x010 32 {}}", "register tiles of 32 bits at 16"),
        ("{table 0x030 64 m_axi_gmem0}", "{table 0x030 64 {}}", "register table of 64 bits with the master"),
        ("{table 0x030 64 m_axi_gmem0}", "{table 0x030 64 m_axi_gmem7}", "register table of 64 bits with"),
        (
            "set masters {m_axi_gmem0}",
            "set masters {m_axi_gmem1}",
            "xilinx.com:interface:aximm_rtl:1.0 of no pins",
        ),
        ("set masters {m_axi_gmem0}", "set masters {}", "interface m_axi_gmem0 has no clock"),
        ("set verilog {design.v}", "set verilog {designs.v}", "there is no file"),
        ("kernel:tiny:1.0", "kernel:tiny:1.1", "the block is streamgen:kernel:tiny:1.1"),
        ("ap_ctrl_chain", "ap_ctrl_hs", "another control protocol"),
    ],
)
def test_a_wrong_script_is_refused(packaged: Path, tmp_path: Path, old: str, new: str, why: str) -> None:
    folder = copied(packaged, tmp_path / "card")
    script = folder / "package.tcl"
    text = script.read_text()
    assert old in text
    script.write_text(text.replace(old, new))
    with pytest.raises(RefusedError, match=re.escape(why)):
        run_script(folder)


@pytest.mark.slow
def test_verilog_of_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """User Verilog is shipped, read as SystemVerilog, and checked. Every used channel has a port."""
    folder = with_verilog(monkeypatch).package(tmp_path / "sums")
    check_kernel_xml(folder)
    check_verilog(folder)
    run = run_script(folder, infers=False)
    assert run.files == [folder / "design.v", folder / "running_sum.v"]
    assert run.properties[f"file:{folder / 'running_sum.v'}"] == {"file_type": "SystemVerilog"}
    assert banks_of(folder) == {"m_axi_gmem0": "HBM[0]", "m_axi_gmem3": "HBM[3]"}


def test_a_design_on_several_slrs(tmp_path: Path) -> None:
    """The linker gets no SLR for it. The placer gets the compiler's placement of every instance."""
    accelerator = spread()
    (group,) = accelerator.groups
    assert group.design is not None
    folder = accelerator.package(tmp_path / "spread")
    assert "slr=" not in (folder / "link.cfg").read_text()
    cells = cells_of(folder / "placement.xdc")
    resets = {name.removesuffix("_reg") for name in cells if name.endswith("_reg")}
    assert cells.keys() - {f"{name}_reg" for name in resets} == instances_of(folder)
    assert len(set(cells.values())) > 1
    registers = set(
        re.findall(
            r"^  reg (reset_SLR\w+|reset_way_SLR\w+) ", (folder / "design.v").read_text(), re.MULTILINE
        )
    )
    assert resets == registers
    slrs = group.design.placement.slrs
    assert {name: cells.get(name) for name in slrs if name != SHELL} == {
        name: slr for name, slr in slrs.items() if name != SHELL
    }
    for stream in group.design.manifest.streams:
        assert cells[stream.instance] == slrs[stream.name.split(" -> ")[1].split(".")[0]]
    assert cells["m_axi_gmem0"] == cells["control"] == "SLR0"
    run = run_script(folder)
    assert run.constraints == [folder / "placement.xdc"]
    assert run.properties[f"file:{folder / 'placement.xdc'}"] == {"used_in_synthesis": "false"}
    assert (
        "build/spread.xo: package.tcl kernel.xml design.v placement.xdc\n"
        in (folder / "Makefile").read_text()
    )


def test_one_slr_says_where_all_instances_are(packaged: Path) -> None:
    (group,) = tiny().groups
    assert group.design is not None
    assert group.design.instances.keys() == instances_of(packaged)


@pytest.mark.campaign
@pytest.mark.slow
def test_several_kernels(written: Path, tmp_path: Path) -> None:
    """Groups and another model: each kernel passes the checks of a single kernel, and one link has all of
    them."""
    folder = package([grouped(), written], tmp_path / "both")
    assert contents(package([grouped(), tiny()], tmp_path / "again")) == contents(folder)
    assert {path.name for path in folder.iterdir()} == {
        "Makefile", "README.md", "card.json", "host.py", "link.cfg", "mlp", "tiny",
    }  # fmt: skip
    card = Card.read(folder)
    assert card.name == "card" and card.models == ("mlp", "tiny")
    assert [kernel.name for kernel in card.kernels] == ["mlp_0", "mlp_1", "mlp_2", "tiny"]
    for kernel in card.kernels:
        check_kernel_xml(folder / kernel.folder)
        check_verilog(folder / kernel.folder)
        assert run_script(folder / kernel.folder).xo is not None
        named = banks_of(folder, kernel.name)
        banks = {name: named.get(name, named.get("m_axi_gmem0")) for name in kernel.banks}
        assert banks == {name: f"HBM[{bank}]" for name, bank in kernel.banks.items()}
    first, second, third, alone = (kernel.banks for kernel in card.kernels)
    assert [set(banks.values()) for banks in (first, second, third, alone)] == [{0}, {0, 1}, {1, 2}, {3}]
    assert (first["m_0"], second["m_0"], second["m_2"], third["m_2"]) == (0, 0, 1, 1)
    lines = (folder / "link.cfg").read_text().splitlines()
    assert [line for line in lines if line.startswith("nk=")] == [
        f"nk={kernel.name}:1:{kernel.name}_1" for kernel in card.kernels
    ]
    make = (folder / "Makefile").read_text()
    objects = (
        "mlp/group_0/build/mlp_0.xo mlp/group_1/build/mlp_1.xo mlp/group_2/build/mlp_2.xo tiny/build/tiny.xo"
    )
    assert f"build/card.xclbin: {objects} link.cfg\n" in make
    own = contents(package(written, tmp_path / "own"))
    shared = {"Makefile", "README.md", "card.json", "link.cfg"}
    assert {f"tiny/{name}" for name in own.keys() - shared} <= set(contents(folder))
    assert all(contents(folder)[f"tiny/{name}"] == own[name] for name in own.keys() - shared)


@pytest.mark.campaign
@pytest.mark.slow
def test_a_language_model(tmp_path: Path) -> None:
    """Two layers, state in memory, and variants: the package passes the checks of a network's package."""
    folder = tiny_accelerator().package(tmp_path / "text")
    assert contents(tiny_accelerator().package(tmp_path / "again")) == contents(folder)
    check_kernel_xml(folder)
    check_verilog(folder)
    assert run_script(folder).xo is not None
    assert {"model.json", "weights_0.bin", "weights_1.bin"} <= set(contents(folder))


def damaged(written: Path, target: Path, change: Callable[[Path], object]) -> Path:
    """A copy of the written folder with one fault."""
    folder = copied(written, target)
    change(folder)
    return folder


def older(folder: Path) -> None:
    """A folder with the notes of a compiler that stored less."""
    notes = folder / "notes.json"
    notes.write_text(notes.read_text().replace('"instances"', '"x"'))
    manifest = Manifest.from_json((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(sealed(manifest, folder).to_json())


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "holds no written accelerator: no manifest"),
    "no notes": (lambda f: (f / "notes.json").unlink(), r"notes\.json cannot be read"),
    "bad manifest": (
        lambda f: (f / "manifest.json").write_text("{}"),
        "json is not a manifest: the manifest",
    ),
    "no Verilog": (lambda f: (f / "design.v").unlink(), r"design\.v, which the manifest names, is missing"),
    "no weights": (lambda f: (f / "weights_0.bin").unlink(), r"0\.bin has 0 bytes; buffer 'weights_0'"),
    "few weights": (lambda f: (f / "weights_0.bin").write_bytes(b"0"), r"0\.bin has 1 bytes; buffer"),
    "older notes": (older, r"notes\.json cannot be read: notes: expected the fields"),
}


@pytest.mark.parametrize(("change", "message"), DAMAGES.values(), ids=DAMAGES)
def test_what_is_not_whole_is_refused(
    written: Path, tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        package(damaged(written, tmp_path / "damaged", change), tmp_path / "new" / "card")
    assert not (tmp_path / "new").exists()


def test_nothing_is_half_written(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(FileExistsError, match="full exists and is not an empty folder; give a new name"):
        package(written, tmp_path / "full")
    with pytest.raises(OSError, match="file"):
        package(written, tmp_path / "full" / "file" / "card")
    real, calls = package_folder.shutil.copyfile, []

    def copy(*paths: Path) -> object:
        calls.append(paths)
        if len(calls) == 1:
            raise OSError(28, "No space left on device", str(paths[1]))
        return real(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(package_folder.shutil, "copyfile", copy)
        with pytest.raises(OSError, match="No space left"):
            package(written, tmp_path / "new" / "card")
    assert len(calls) == 1
    with monkeypatch.context() as patch:
        patch.setattr(folders.tempfile, "mkdtemp", _read_only)
        with pytest.raises(PermissionError):
            package(written, tmp_path / "new" / "card")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["file"]


def _read_only(**kwargs: object) -> str:
    raise PermissionError(13, "Permission denied", str(kwargs["dir"]))


def test_what_cannot_be_a_kernel_is_refused() -> None:
    manifest = tiny().manifest
    card = Card.alone(manifest)
    with pytest.raises(
        ValueError, match=r"'tiny' is compiled for 250\.5 MHz, but v\+\+ takes whole MHz: compile"
    ):
        link_config(card, [replace(manifest, clock_mhz=250.5)], U55C)
    with pytest.raises(ValueError, match=r"the platform of board 'u55c' is 'a\\nslr=b'; letters, digits"):
        link_config(card, [manifest], replace(U55C, shell=replace(shell_of(U55C), platform="a\nslr=b")))
    with pytest.raises(ValueError, match=r"the part of board 'u55c' is '\[exit\]'; letters, digits"):
        link_config(card, [manifest], replace(U55C, part="[exit]"))
    few = replace(U55C, hbm=replace(U55C.hbm, channels=2))
    with pytest.raises(
        ValueError, match=r"port m_axi_gmem0 of 'tiny' is on channel 2; board 'u55c' has 2 channels"
    ):
        link_config(card, [replace(manifest, ports=(replace(manifest.ports[0], channel=2),), buffers=tuple(
            replace(buffer, channel=2) for buffer in manifest.buffers))], few)  # fmt: skip
    buffers = tuple(replace(b, name="CTRL") if b.name == "input" else b for b in manifest.buffers)
    with pytest.raises(
        ValueError, match=r"buffer 'CTRL' of 'tiny' has the name of a control register; rename"
    ):
        packaging_script(replace(manifest, buffers=buffers), U55C, constrained=False)
    with pytest.raises(ValueError, match=r"^tools of the shell 'p' is '22\.1'; a release is like 2022\.1$"):
        Shell(platform="p", tools="22.1")


def test_a_board_without_a_shell_takes_no_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its designs are compiled, written and simulated, but no package is begun."""
    bare_board = replace(U55C, name="bare", shell=None)
    config = replace(TINY, name="tiny", board=bare_board)
    accelerator = streamgen.compile(tiny_module(), torch.zeros(1, 40), config)
    folder = accelerator.write(tmp_path / "tiny")
    linked = ", ".join(name for name, board in BOARDS.items() if board.shell is not None)
    refusal = (
        "board 'bare' has no shell to link kernels to, so no package can be made for it; boards with a shell "
        f"are {linked}"
    )
    with pytest.raises(ValueError) as error:
        package(accelerator, tmp_path / "card")
    assert str(error.value) == refusal
    with pytest.raises(ValueError, match="has no shell"):
        find_tools(bare_board)
    for options in ([], ["--files-only"]):
        assert cli.main(["package", str(folder), "-o", str(tmp_path / "card"), *options]) == 2
        assert capsys.readouterr().err == f"streamgen: {refusal}\n"
    assert not (tmp_path / "card").exists()
