"""Xclbins for XRT's hardware emulation: the tables of a linked card, with built simulators as the bitstream.

The bitstream is a zip. XRT unpacks it and runs its `behav_waveform/xsim/simulate.sh`. The zip holds card.json
and, for each kernel, the manifest and the library of the simulator, so the device process compiles nothing. A
host program whose device is lost would wait in XRT for ever, so the script ends the host program.
"""

import io
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, fromstring, tostring

from streamgen.artifact.manifest import Manifest
from streamgen.artifact.written import MANIFEST
from streamgen.base.folders import new_file
from streamgen.base.progress import Progress
from streamgen.package.folder import packaged
from streamgen.package.kernel_xml import CONTROL, PROTOCOL, REGISTER_BYTES, kernel_xml
from streamgen.runtime.card import CARD_FILE, Card
from streamgen.runtime.verilator import build
from streamgen.runtime.xclbin import (
    HARDWARE_EMULATION,
    XclbinSection,
    bank_table,
    connection_table,
    design_note,
    kernel_table,
    packed_xclbin,
)
from streamgen.runtime.xrt import EMULATION

BASE, REGISTERS = 0x1800000, 0x10000
"""Address of the registers of the first kernel, and bytes from there to the registers of the next kernel."""
LIBRARY = "device.so"
_PLACE = "behav_waveform/xsim"


def emulated(folder: str | Path, progress: Progress | None = None) -> Path:
    """Write the xclbin of a package and return its path. Simulators that are not in the cache are built.

    Raises ValueError for a folder without a package, and all errors of `streamgen.runtime.verilator.build`.
    """
    place = Path(folder).resolve()
    card, kernels = Card.read(place), packaged(place)
    libraries = []
    for inside, manifest in kernels:
        sources = [inside / name for name in manifest.verilog_files]
        built = build(sources, manifest.top, [port.name for port in manifest.ports], progress)
        libraries.append(built.read_bytes())
    content = emulation_xclbin(card, [manifest for _, manifest in kernels], libraries)
    target = place / EMULATION / f"{card.name}.xclbin"
    target.parent.mkdir(exist_ok=True)
    with new_file(target) as file:
        file.write(content)
    return target


def emulation_xclbin(card: Card, manifests: Sequence[Manifest], libraries: Sequence[bytes]) -> bytes:
    """The bytes of the file. manifests, libraries: for each kernel of the card, in order, the manifest and
    the shared library of the simulator."""
    board = manifests[0].board
    banks = [(f"HBM[{i}]", i * board.channel_bytes, board.channel_bytes) for i in range(board.channels)]
    memory = bank_table(banks, {bank for kernel in card.kernels for bank in kernel.banks.values()})
    connections = connection_table(
        [
            {i: kernel.banks[a.name] for i, a in enumerate(manifest.arguments) if a.kind == "pointer"}
            for kernel, manifest in zip(card.kernels, manifests, strict=True)
        ]
    )
    units = {f"{kernel.name}:{kernel.unit}": BASE + k * REGISTERS for k, kernel in enumerate(card.kernels)}
    sections = {
        XclbinSection.BITSTREAM: _bitstream(card, manifests, libraries),
        XclbinSection.EMBEDDED_METADATA: _metadata(card, manifests),
        XclbinSection.IP_LAYOUT: kernel_table(units),
        XclbinSection.MEM_TOPOLOGY: memory,
        XclbinSection.CONNECTIVITY: connections,
        XclbinSection.GROUP_TOPOLOGY: memory,
        XclbinSection.GROUP_CONNECTIVITY: connections,
        XclbinSection.USER_METADATA: design_note(manifests),
    }
    return packed_xclbin(sections, board.name, HARDWARE_EMULATION)


def _bitstream(card: Card, manifests: Sequence[Manifest], libraries: Sequence[bytes]) -> bytes:
    script = (
        "#!/bin/sh\n"
        f'"${{STREAMGEN_PYTHON:-{sys.executable}}}" -m streamgen.package.emulation.process '
        '2>> "${STREAMGEN_DEVICE_LOG:-device.log}" || kill -TERM "$PPID"\n'
    )
    files = [("simulate.sh", script.encode(), 0o755), (CARD_FILE, card.to_json().encode(), 0o644)]
    for kernel, manifest, library in zip(card.kernels, manifests, libraries, strict=True):
        files.append((f"{kernel.name}/{MANIFEST}", manifest.to_json().encode(), 0o644))
        files.append((f"{kernel.name}/{LIBRARY}", library, 0o755))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data, rights in files:
            info = zipfile.ZipInfo(f"{_PLACE}/{name}")  # no date: the same design gives the same bytes
            info.external_attr, info.compress_type = (0o100000 | rights) << 16, zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return content.getvalue()


def _metadata(card: Card, manifests: Sequence[Manifest]) -> bytes:
    """The metadata that the linker makes from each kernel.xml: ports, arguments and the instance lie directly
    below the kernel."""
    board = manifests[0].board
    project = Element("project", name=card.name)
    platform = SubElement(project, "platform", vendor="xilinx", boardid=board.name, name="emulation")
    device = SubElement(platform, "device", name="fpga0", fpgaDevice="")
    core = SubElement(device, "core", name="OCL_REGION_0", target="hw_em", type="clc_region")
    SubElement(core, "kernelClocks")
    for k, (linked, manifest) in enumerate(zip(card.kernels, manifests, strict=True)):
        described = fromstring(kernel_xml(manifest).split("\n", 1)[1]).find("kernel")
        assert described is not None
        kernel = SubElement(core, "kernel", dict(described.attrib))
        kernel.extend([*described.iter("port"), *described.iter("arg")])
        instance = SubElement(kernel, "instance", name=linked.unit)
        base = f"{BASE + k * REGISTERS:#x}"
        SubElement(instance, "addrRemap", base=base, range=f"{REGISTER_BYTES:#x}", port=CONTROL)
        assert kernel.get("hwControlProtocol") == PROTOCOL
    return tostring(project, encoding="utf-8", xml_declaration=True)
