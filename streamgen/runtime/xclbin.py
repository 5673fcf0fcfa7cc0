"""Binaries for a card (xclbins): write and read their sections, and check that they hold the design of a
manifest.

The layout is that of `struct axlf` in XRT's public header xclbin.h: a fixed head, a table of sections, and
the sections. The host checks the file before it is loaded, because XRT reports a wrong file only when a run
hangs.
"""

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError, fromstring

from streamgen.artifact.manifest import Manifest
from streamgen.base.errors import DeviceError

HARDWARE_EMULATION = 4
_MAGIC = b"xclbin2\0"
_HEAD = struct.Struct("<8si28s256sQ")  # magic, length of the signature, reserved, key block, unique id
_HEADER = struct.Struct("<QQQHBBHHQQ64s16s16sI4x")
_SECTION = struct.Struct("<I16s4xQQ")
_BANK = struct.Struct("<BB6xQQ16s")
_CONNECTION = struct.Struct("<iii")
_UNIT = struct.Struct("<IIQ64s")
_DRAM = 2
_KERNEL, _CHAIN = 1, 1 << 8  # m_type and the control protocol of `struct ip_data`


class XclbinSection(IntEnum):
    """Kinds of sections that are written or read here, with the numbers of xclbin.h."""

    BITSTREAM = 0
    EMBEDDED_METADATA = 2
    MEM_TOPOLOGY = 6
    CONNECTIVITY = 7
    IP_LAYOUT = 8
    BUILD_METADATA = 14
    USER_METADATA = 16
    GROUP_TOPOLOGY = 26
    GROUP_CONNECTIVITY = 27


def packed_xclbin(sections: Mapping[XclbinSection, bytes], platform: str, mode: int) -> bytes:
    """The bytes of a file with these sections. Its uuid is a digest of them."""
    offset = _HEAD.size + _HEADER.size + _SECTION.size * len(sections)
    table, bodies = b"", b""
    for kind, content in sections.items():
        padding = bytes(-(offset + len(bodies)) % 8)
        bodies += padding
        table += _SECTION.pack(kind, kind.name.encode()[:15], offset + len(bodies), len(content))
        bodies += content
    uuid = hashlib.sha256(bodies).digest()[:16]
    length, name = offset + len(bodies), platform.encode()[:63]
    header = _HEADER.pack(length, 0, 0, 0, 2, 13, mode, 0, 0, 0, name, uuid, b"", len(sections))
    head = _HEAD.pack(_MAGIC, -1, b"\xff" * 28, b"", int.from_bytes(uuid[:8], "little"))
    return head + header + table + bodies


def read_sections(path: str | Path) -> dict[int, bytes]:
    """Read all sections of a file except the bitstream, by kind. Raises DeviceError for a file that is not a
    complete xclbin."""
    file = Path(path)
    try:
        with file.open("rb") as stream:
            head = stream.read(_HEAD.size + _HEADER.size)
            if len(head) < _HEAD.size + _HEADER.size or not head.startswith(_MAGIC):
                raise DeviceError(f"{file} is not an xclbin: it has no xclbin header")
            count, size = _HEADER.unpack_from(head, _HEAD.size)[-1], file.stat().st_size
            if stream.tell() + _SECTION.size * count > size:
                raise DeviceError(f"{file} is truncated: it ends inside the table of its {count} sections")
            table = stream.read(_SECTION.size * count)
            sections = {}
            for kind, _, offset, length in _SECTION.iter_unpack(table):
                if offset + length > size:
                    raise DeviceError(
                        f"{file} is truncated: it has {size} bytes, but section {kind} ends at "
                        f"{offset + length}"
                    )
                if kind != XclbinSection.BITSTREAM:
                    stream.seek(offset)
                    sections[kind] = stream.read(length)
            return sections
    except OSError as error:
        raise DeviceError(f"{file} cannot be read: {error.strerror}") from error


def bank_table(banks: Sequence[tuple[str, int, int]], used: set[int]) -> bytes:
    """Pack `struct mem_topology`. banks: name, first address and bytes of each bank. used: the indices of the
    banks that have a port."""
    rows = [
        _BANK.pack(_DRAM, index in used, size >> 10, address, name.encode())
        for index, (name, address, size) in enumerate(banks)
    ]
    return struct.pack("<i4x", len(rows)) + b"".join(rows)


def connection_table(banks: Sequence[Mapping[int, int]]) -> bytes:
    """Pack `struct connectivity`. banks: for each kernel, the bank of each pointer argument, by index."""
    rows = [
        _CONNECTION.pack(argument, unit, bank)
        for unit, arguments in enumerate(banks)
        for argument, bank in arguments.items()
    ]
    return struct.pack("<i", len(rows)) + b"".join(rows)


def kernel_table(units: Mapping[str, int]) -> bytes:
    """Pack `struct ip_layout`. units: for each instance, named KERNEL:INSTANCE, its register address."""
    rows = [_UNIT.pack(_KERNEL, _CHAIN, base, name.encode()) for name, base in units.items()]
    return struct.pack("<i4x", len(rows)) + b"".join(rows)


def design_note(manifests: Sequence[Manifest]) -> bytes:
    """The hashes of the designs, for the section of user metadata."""
    hashes = {manifest.top: manifest.design_hash for manifest in manifests}
    return json.dumps({"streamgen": {"designs": hashes}}).encode()


def require_design(path: str | Path, manifest: Manifest) -> None:
    """Raise DeviceError unless a file holds the kernel of a manifest. The check compares name, arguments,
    banks, and the hash of the design if the file has one. Without a hash, the status block of the first run
    tells."""
    sections = read_sections(path)
    note = _hash(sections.get(XclbinSection.USER_METADATA, b""), manifest.top)
    if note not in (None, manifest.design_hash):
        raise DeviceError(
            f"{path} holds design {note}, the manifest describes {manifest.design_hash}: build it again"
        )
    kernel = _kernel(path, sections, manifest.top)
    arguments = [(arg.get("name"), int(arg.get("offset", "-1"), 0)) for arg in kernel.iter("arg")]
    wanted = [(argument.name, argument.offset) for argument in manifest.arguments]
    for index in range(max(len(arguments), len(wanted))):
        here, there = (rows[index] if index < len(rows) else None for rows in (arguments, wanted))
        if here != there:
            raise DeviceError(
                f"{path} holds another design: argument {index} of kernel {manifest.top!r} is {_told(here)}, "
                f"but {_told(there)} in the manifest"
            )
    _require_banks(path, sections, manifest)


def _require_banks(path: str | Path, sections: Mapping[int, bytes], manifest: Manifest) -> None:
    """Raise DeviceError unless the buffers lie in the right banks: those of a single kernel in the banks of
    their channels, each buffer of several kernels in some bank."""
    topology, raw = (
        sections.get(XclbinSection.MEM_TOPOLOGY, b""),
        sections.get(XclbinSection.CONNECTIVITY, b""),
    )
    layout = _rows(_UNIT, sections.get(XclbinSection.IP_LAYOUT, b""), 8)
    units = [row[-1].rstrip(b"\0").decode(errors="replace").partition(":")[0] for row in layout]
    names = [row[-1].rstrip(b"\0").decode(errors="replace") for row in _rows(_BANK, topology, 8)]
    banks: dict[int, set[str]] = {}
    for argument, unit, bank in _rows(_CONNECTION, raw, 4):
        if 0 <= unit < len(units) and units[unit] == manifest.top:
            named = names[bank] if 0 <= bank < len(names) else f"bank {bank}"
            banks.setdefault(argument, set()).add(named)
    alone = len(set(units)) == 1
    channels = {buffer.name: f"HBM[{buffer.channel}]" for buffer in manifest.buffers}
    for index, argument in enumerate(manifest.arguments):
        if argument.kind != "pointer":
            continue
        connected = banks.get(index, set())
        if (channels[argument.name] not in connected) if alone else len(connected) != 1:
            wanted = channels[argument.name] if alone else "one bank"
            raise DeviceError(
                f"{path}: argument {argument.name!r} of kernel {manifest.top!r} must be connected to "
                f"{wanted}, but it is connected to {', '.join(sorted(connected)) or 'no bank'}. Link the "
                "file with the link.cfg of its package"
            )


def _kernel(path: str | Path, sections: Mapping[int, bytes], name: str) -> Element:
    try:
        root = fromstring(sections.get(XclbinSection.EMBEDDED_METADATA, b"").rstrip(b"\0"))
    except ParseError as error:
        raise DeviceError(f"{path} has no readable description of its kernels: {error}") from error
    kernels = {kernel.get("name", ""): kernel for kernel in root.iter("kernel")}
    if name not in kernels:
        raise DeviceError(
            f"{path} does not hold kernel {name!r}; its kernels are: {', '.join(kernels) or 'none'}"
        )
    return kernels[name]


def _rows(row: struct.Struct, table: bytes, head: int) -> list[tuple]:
    count = min(int.from_bytes(table[:4], "little"), (len(table) - head) // row.size)
    return [row.unpack_from(table, head + k * row.size) for k in range(count)]


def _hash(note: bytes, top: str) -> str | None:
    try:
        return json.loads(note.rstrip(b"\0"))["streamgen"]["designs"][top]
    except (ValueError, KeyError, TypeError):
        return None


def _told(argument: tuple[str | None, int] | None) -> str:
    return "missing" if argument is None else f"{argument[0]!r} at {argument[1]:#x}"
