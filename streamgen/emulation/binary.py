"""Xclbins for XRT's hardware emulation: what is linked, and the built simulator in the place of a bitstream.

XRT unpacks the bitstream, a zip, and runs `behav_waveform/xsim/simulate.sh` in it. It holds the manifest and
the simulator's library, so the device process compiles nothing. A host whose device is lost waits for ever in
XRT: the script ends it.
"""

import io
import struct
import sys
import zipfile
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, fromstring, tostring

from streamgen.manifest import Manifest
from streamgen.package.folder import packaged
from streamgen.package.kernel_xml import CONTROL, PROTOCOL, REGISTER_BYTES, kernel_xml
from streamgen.progress import Progress
from streamgen.runtime.verilator import build
from streamgen.runtime.xclbin import (
    HARDWARE_EMULATION,
    Section,
    bank_table,
    connection_table,
    design_note,
    packed_xclbin,
)
from streamgen.runtime.xrt import EMULATION

__all__ = ["BASE", "LIBRARY", "MANIFEST", "emulated", "emulation_xclbin"]

BASE = 0x1800000
"""Where the registers of the kernel begin."""
LIBRARY, MANIFEST = "device.so", "manifest.json"
_PLACE = "behav_waveform/xsim"
_KERNEL, _CHAIN = 1, 1 << 8  # m_type and the control protocol of `struct ip_data`


def emulated(folder: str | Path, progress: Progress | None = None) -> tuple[Path, ...]:
    """Write the xclbin of each kernel of a package; returns them. The simulators come from the cache or are
    built. ValueError for a folder without a package; what `streamgen.runtime.verilator.build` raises."""
    made = []
    for place, manifest in packaged(Path(folder).resolve()):
        sources = [place / name for name in manifest.verilog_files]
        library = build(sources, manifest.top, [port.name for port in manifest.ports], progress)
        content = emulation_xclbin(manifest, library.read_bytes())
        target = place / EMULATION / f"{manifest.top}.xclbin"
        target.parent.mkdir(exist_ok=True)
        partial = target.with_suffix(".partial")
        partial.write_bytes(content)
        made.append(partial.replace(target))
    return tuple(made)


def emulation_xclbin(manifest: Manifest, library: bytes) -> bytes:
    """The bytes of the file. library: the simulator of the design."""
    board = manifest.board
    banks = [(f"HBM[{i}]", i * board.channel_bytes, board.channel_bytes) for i in range(board.channels)]
    memory = bank_table(banks, {port.channel for port in manifest.ports})
    channels = {buffer.name: buffer.channel for buffer in manifest.buffers}
    connections = connection_table(
        {i: channels[a.name] for i, a in enumerate(manifest.arguments) if a.kind == "pointer"}
    )
    name = f"{manifest.top}:{manifest.top}_1".encode()
    sections = {
        Section.BITSTREAM: _bitstream(manifest, library),
        Section.EMBEDDED_METADATA: _metadata(manifest),
        Section.IP_LAYOUT: struct.pack("<i4xIIQ64s", 1, _KERNEL, _CHAIN, BASE, name),
        Section.MEM_TOPOLOGY: memory,
        Section.CONNECTIVITY: connections,
        Section.GROUP_TOPOLOGY: memory,
        Section.GROUP_CONNECTIVITY: connections,
        Section.USER_METADATA: design_note(manifest),
    }
    return packed_xclbin(sections, board.name, HARDWARE_EMULATION)


def _bitstream(manifest: Manifest, library: bytes) -> bytes:
    script = (
        "#!/bin/sh\n"
        f'"${{STREAMGEN_PYTHON:-{sys.executable}}}" -m streamgen.emulation.process '
        '2>> "${STREAMGEN_DEVICE_LOG:-device.log}" || kill -TERM "$PPID"\n'
    )
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data, rights in (
            ("simulate.sh", script.encode(), 0o755),
            (MANIFEST, manifest.to_json().encode(), 0o644),
            (LIBRARY, library, 0o755),
        ):
            info = zipfile.ZipInfo(f"{_PLACE}/{name}")  # of no date: the same design gives the same bytes
            info.external_attr, info.compress_type = (0o100000 | rights) << 16, zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return content.getvalue()


def _metadata(manifest: Manifest) -> bytes:
    """What the linker makes of kernel.xml: ports and arguments right below the kernel, and its instance."""
    described = fromstring(kernel_xml(manifest).split("\n", 1)[1]).find("kernel")
    assert described is not None
    project = Element("project", name=manifest.top)
    platform = SubElement(project, "platform", vendor="xilinx", boardid=manifest.board.name, name="emulation")
    device = SubElement(platform, "device", name="fpga0", fpgaDevice="")
    core = SubElement(device, "core", name="OCL_REGION_0", target="hw_em", type="clc_region")
    SubElement(core, "kernelClocks")
    kernel = SubElement(core, "kernel", dict(described.attrib))
    kernel.extend([*described.iter("port"), *described.iter("arg")])
    instance = SubElement(kernel, "instance", name=f"{manifest.top}_1")
    SubElement(instance, "addrRemap", base=f"{BASE:#x}", range=f"{REGISTER_BYTES:#x}", port=CONTROL)
    assert kernel.get("hwControlProtocol") == PROTOCOL
    return tostring(project, encoding="utf-8", xml_declaration=True)
