"""Helpers that read packages for the tests."""

import json
import tempfile
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

from streamgen.artifact.manifest import Manifest
from streamgen.gateware.rtl import run_yosys
from streamgen.package.emulation.binary import emulation_xclbin
from streamgen.runtime.card import Card

__all__ = ["banks_of", "build_of", "instances_of", "kernel_of", "linked", "manifest_of", "pins_of"]


def manifest_of(folder: Path) -> Manifest:
    """The manifest in a folder."""
    return Manifest.from_json((folder / "manifest.json").read_text())


def linked(manifest: Manifest) -> bytes:
    """A binary of a single design that holds no hardware."""
    return emulation_xclbin(Card.alone(manifest), [manifest], [b""])


def build_of(folder: Path) -> bytes:
    """A binary of a package that holds no hardware."""
    card = Card.read(folder)
    manifests = [manifest_of(folder / kernel.folder) for kernel in card.kernels]
    return emulation_xclbin(card, manifests, [b""] * len(manifests))


def pins_of(folder: Path) -> dict[str, int]:
    """Bits of the pins of the top module, as Yosys reads them. Yosys also checks the Verilog: no loop, and
    exactly one driver for each wire."""
    return _read(folder)[0]


def instances_of(folder: Path) -> frozenset[str]:
    """Instances in the top module, as Yosys reads them."""
    return _read(folder)[1]


def kernel_of(folder: Path) -> ElementTree.Element:
    """The kernel of kernel.xml."""
    kernel = ElementTree.parse(folder / "kernel.xml").getroot().find("kernel")
    assert kernel is not None
    return kernel


def banks_of(folder: Path, kernel: str | None = None) -> dict[str, str]:
    """The memory bank of each port of a kernel, or of its arguments, in the linker configuration of a
    package. kernel: by default the only kernel."""
    lines = (folder / "link.cfg").read_text().splitlines()
    kernels = [line.removeprefix("nk=").split(":") for line in lines if line.startswith("nk=")]
    units = {name: unit for name, count, unit in kernels if count == "1"}
    assert len(units) == len(kernels) and (kernel is not None or len(units) == 1)
    unit = f"{units[kernel or kernels[0][0]]}."
    ports = [line.removeprefix("sp=").split(":") for line in lines if line.startswith("sp=")]
    assert all(port.partition(".")[0] in units.values() for port, _ in ports)
    return {port.removeprefix(unit): bank for port, bank in ports if port.startswith(unit)}


def _read(folder: Path) -> tuple[dict[str, int], frozenset[str]]:
    manifest = manifest_of(folder)
    return _read_texts(manifest.top, tuple((folder / name).read_text() for name in manifest.verilog_files))


@cache
def _read_texts(top: str, texts: tuple[str, ...]) -> tuple[dict[str, int], frozenset[str]]:
    with tempfile.TemporaryDirectory() as place:
        files = [Path(place, f"{k}.sv") for k in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        read = "read_verilog -sv " + " ".join(map(str, files))
        check = (f"hierarchy -check -top {top}", "proc", "check -assert", f"select {top}")
        netlist = run_yosys("", read, *check, writer="write_json -selected")
    module = json.loads(netlist)["modules"][top]
    pins = {name: len(pin["bits"]) for name, pin in module["ports"].items()}
    return pins, frozenset(name for name, cell in module["cells"].items() if not cell["type"].startswith("$"))
