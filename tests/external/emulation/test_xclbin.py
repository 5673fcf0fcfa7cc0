"""Xclbins: what is written is read, and the wrong ones are refused before a card sees them."""

import dataclasses
import io
import struct
import zipfile

import pytest

from sim.add_one import manifest
from streamgen.artifact.manifest import Manifest
from streamgen.base.errors import DeviceError
from streamgen.package.emulation.binary import emulation_xclbin
from streamgen.runtime.card import Card
from streamgen.runtime.xclbin import (
    XclbinSection,
    connection_table,
    packed_xclbin,
    read_sections,
    require_design,
)

DESIGN = manifest(2)


@pytest.fixture
def binary(tmp_path):
    file = tmp_path / "add.xclbin"
    file.write_bytes(emulation_xclbin(Card.alone(DESIGN), [DESIGN], [b"library"]))
    return file


def test_right_one(binary):
    require_design(binary, DESIGN)
    assert emulation_xclbin(Card.alone(DESIGN), [DESIGN], [b"library"]) == binary.read_bytes()
    content = binary.read_bytes()
    with zipfile.ZipFile(io.BytesIO(content[content.index(b"PK\3\4") :])) as archive:
        files = {name.rpartition("/")[2]: archive.read(name) for name in archive.namelist()}
    assert files["device.so"] == b"library"
    assert Manifest.from_json(files["manifest.json"].decode()) == DESIGN


def changed(binary, **sections):
    """The file with other sections in it."""
    found = {XclbinSection(kind): content for kind, content in read_sections(binary).items()}
    found |= {XclbinSection[name]: content for name, content in sections.items()}
    binary.write_bytes(packed_xclbin(found, "u55c", 4))
    return binary


def test_other_design(binary):
    other = dataclasses.replace(DESIGN, design_hash="0123456789abcdef")
    with pytest.raises(DeviceError, match=r"holds design \w+, the manifest describes 0123456789abcdef"):
        require_design(binary, other)
    changed(binary, USER_METADATA=b"")
    require_design(binary, other)  # a linker's file has no hash; the status block of a run tells


def test_other_kernel(binary):
    changed(binary, USER_METADATA=b"")
    with pytest.raises(DeviceError, match=rf"does not hold kernel 'other'; its kernels are: {DESIGN.top}$"):
        require_design(binary, dataclasses.replace(DESIGN, top="other"))
    with pytest.raises(DeviceError, match=r"argument \d+ of kernel .* is .*, but .* in the manifest$"):
        require_design(binary, manifest(3))


@pytest.mark.parametrize(
    "table",
    [
        bytes(4),
        b"\xff" * 4,  # rows, of which the file has none
        *(connection_table([{}] * unit + [{0: 0}]) for unit in (1, 5)),
        struct.pack("<4i", 1, 0, -5, 0),  # a kernel before the first
    ],
)
def test_bank_not_connected(binary, table):
    changed(binary, CONNECTIVITY=table)
    with pytest.raises(DeviceError, match=r"must be connected to HBM\[0\], but it is connected to no bank"):
        require_design(binary, DESIGN)


def test_no_xclbin(tmp_path, binary):
    with pytest.raises(DeviceError, match=r"none\.xclbin cannot be read: No such file"):
        require_design(tmp_path / "none.xclbin", DESIGN)
    content = binary.read_bytes()
    for cut, message in ((100, "not an xclbin"), (460, "is truncated"), (len(content) - 1, "is truncated")):
        binary.write_bytes(content[:cut])
        with pytest.raises(DeviceError, match=message):
            require_design(binary, DESIGN)
    binary.write_bytes(b"x" * 1000)
    with pytest.raises(DeviceError, match="it has no xclbin header"):
        require_design(binary, DESIGN)
    binary.write_bytes(content)
    changed(binary, EMBEDDED_METADATA=b"<")
    with pytest.raises(DeviceError, match="has no readable description of its kernels"):
        require_design(binary, DESIGN)
