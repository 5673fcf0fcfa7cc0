"""The manifest survives JSON; phase table and status block have the documented bytes; errors are named."""

import dataclasses
import json

import numpy as np
import pytest

from streamgen.artifact.manifest import (
    MANIFEST_VERSION,
    STATUS_MAGIC,
    Argument,
    BoardFacts,
    Buffer,
    Counter,
    Manifest,
    MemoryPort,
    MemoryTiming,
    RunError,
    StatusBlock,
    VariantFacts,
    argument_map,
)
from streamgen.artifact.phase_table import Descriptor, PhaseTable, TableSection, Word

PROGRAM = PhaseTable(
    sections=(
        TableSection(descriptors=(Descriptor(target=1, words=(Word(base=5, tiles=-3), Word(layer=7))),)),
        TableSection(
            descriptors=(Descriptor(target=2), Descriptor(target=3, words=(Word(position=2),), awaited=True)),
            repeats=3,
        ),
    )
)
MANIFEST = Manifest(
    board=BoardFacts(name="u55c", channels=32, channel_bytes=512 << 20),
    top="top",
    verilog="top.v",
    design_hash="0123456789abcdef",
    clock_mhz=250.0,
    tokens_per_tile=4,
    max_tokens=16,
    ports=(MemoryPort(name="m_axi_gmem0", channel=0, id_bits=4),),
    buffers=(
        Buffer(name="table", role="table", channel=0, bytes=1024),
        Buffer(name="status", role="status", channel=0, bytes=128),
        Buffer(
            name="x",
            role="input",
            channel=0,
            bytes=4096,
            itensor="itensor<1x16xf24, iter_space: [4,4]*[1,16], iter_map: (d0,d1)->(d0,d1)>",
            tile_loop=0,
            shape=(16, 60),
        ),
    ),
    program=PROGRAM,
    counters=(Counter(name="load", kind="busy"), Counter(name="load", kind="stalled")),
    memory=MemoryTiming(beats=5, cycles=6, latency=100),
)


def test_beats_that_the_hardware_reads() -> None:
    """A chunk, which holds the first walk of the first section or the start of it; then every other walk."""
    assert [len(section.pack()) // 4 for section in PROGRAM.sections] == [1, 1]
    assert PROGRAM.beats_read == 16 + 3 * 1
    long = TableSection(descriptors=(Descriptor(target=1),) * 70, repeats=2)
    assert len(long.pack()) // 4 == 18
    assert PhaseTable(sections=(long, *PROGRAM.sections)).beats_read == 1 + 2 * 18 + 1 + 3 * 1


def test_json_round_trip():
    assert Manifest.from_json(MANIFEST.to_json()) == MANIFEST
    assert MANIFEST.to_json() == Manifest.from_json(MANIFEST.to_json()).to_json()
    assert hash(MANIFEST) == hash(Manifest.from_json(MANIFEST.to_json()))


def test_variants_by_name():
    brief = VariantFacts(name="brief", program=PhaseTable(sections=PROGRAM.sections[:1]), outputs=("y",))
    outputs = tuple(dataclasses.replace(MANIFEST.buffers[2], name=name, role="output") for name in ("y", "z"))
    manifest = dataclasses.replace(MANIFEST, buffers=(*MANIFEST.buffers, *outputs), variants=(brief,))
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert manifest.variant("brief") == brief
    whole = manifest.variant(None)
    assert (whole.program, whole.outputs) == (PROGRAM, ("y", "z"))
    with pytest.raises(ValueError) as error:
        manifest.variant("short")
    assert str(error.value) == "design 'top' has no variant 'short'; known are: brief"
    with pytest.raises(ValueError) as error:
        MANIFEST.variant("brief")
    assert str(error.value).endswith("has no variant 'brief'; known are: none")


def test_register_map():
    assert argument_map(("a", "b")) == (
        Argument(name="command", kind="scalar", offset=0x10),
        Argument(name="tiles", kind="scalar", offset=0x18),
        Argument(name="position", kind="scalar", offset=0x20),
        Argument(name="timeout", kind="scalar", offset=0x28),
        Argument(name="a", kind="pointer", offset=0x30),
        Argument(name="b", kind="pointer", offset=0x3C),
    )
    assert MANIFEST.error_offset == 0x30 + 3 * 12
    assert MANIFEST.status_bytes == 128


def test_phase_table_bytes():
    raw = PROGRAM.pack()
    assert len(raw) == 1024
    words = np.frombuffer(raw, "<u4").reshape(-1, 4)
    assert words[0].tolist() == [0x54504753, 2, 1, 1]
    assert words[1].tolist() == [1, 3, 0, 0]
    assert words[4].tolist() == [0x80020001, 0, 0, 0]
    assert words[5].view("<i4").tolist() == [5, 0, 0, -3]
    assert words[6].tolist() == [0, 7, 0, 0]
    assert words[7].tolist() == [0, 0, 0, 0]
    assert words[8].tolist() == [0x80000002, 0, 0, 0]
    assert words[9].tolist() == [0x81010003, 0, 0, 0]
    assert words[10].tolist() == [0, 0, 2, 0]
    assert not words[11:].any()


def test_expand():
    sent = PROGRAM.expand(position=10, tiles=2)
    assert [(d.target, values) for d, values in sent] == [
        (1, (0xFFFFFFFF, 0)),
        *[(2, ()), (3, (20,))] * 3,
    ]


def test_status_block():
    words = np.zeros(32, "<u4")
    words[:11] = STATUS_MAGIC, 1, 3, 0, 0x89ABCDEF, 0x01234567, 5, 1, 9, 2, 3
    words[16:19] = 7, 8, 9
    status = StatusBlock.unpack(words.tobytes(), 3)
    assert status == StatusBlock(
        error=RunError.TIMEOUT,
        detail=3,
        design_hash="0123456789abcdef",
        cycles=5 + (1 << 32),
        descriptors=9,
        awaited=2,
        counters=(7, 8, 9),
    )
    with pytest.raises(ValueError, match=r"^status block has 3 counters, not 4$"):
        StatusBlock.unpack(words.tobytes(), 4)
    with pytest.raises(ValueError, match=r"^status block of 128 bytes is too short for 17 counters$"):
        StatusBlock.unpack(words.tobytes(), 17)
    with pytest.raises(ValueError, match=r"^status block starts with 0x00000000, not 0x54534753$"):
        StatusBlock.unpack(bytes(128), 3)


def changed(**changes):
    value = json.loads(MANIFEST.to_json())
    value.update(changes)
    return json.dumps(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "manifest: expected an object, not []"),
        (
            changed(version=3),
            f"the manifest has version 3, not {MANIFEST_VERSION}; another release of streamgen wrote it. "
            "Compile again",
        ),
        (changed(top=3), "manifest.top: expected str, not 3"),
        (changed(max_tokens=True), "manifest.max_tokens: expected int, not True"),
        (changed(ports={}), "manifest.ports: expected a list, not {}"),
        (changed(design_hash="12"), "manifest: design_hash must be 16 hexadecimal digits, not '12'"),
        (changed(ports=[]), "manifest: buffer 'table' is on channel 0, which has no port"),
        *(
            (
                changed(ports=[{"name": "m_axi_gmem0", "channel": 0, "id_bits": bits}]),
                f"manifest: ports[0].id_bits must be 0 to 16, not {bits}",
            )
            for bits in (-1, 17, 10**9)
        ),
        (changed(buffers=[]), "manifest: a manifest needs exactly one buffer of role 'table', not 0"),
        (
            changed(counters=[{"name": "n", "kind": "lazy", "depth": 0}]),
            "manifest.counters[0].kind: expected one of ('busy', 'stalled', 'level'), not 'lazy'",
        ),
    ],
)
def test_bad_json(text, message):
    with pytest.raises(ValueError) as error:
        Manifest.from_json(text)
    assert str(error.value) == message


def test_missing_field():
    value = json.loads(MANIFEST.to_json())
    del value["memory"]
    with pytest.raises(ValueError, match=r"^manifest: expected the fields \["):
        Manifest.from_json(json.dumps(value))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Word(base=1 << 31), "descriptor word: base must fit 32 bits signed, not 2147483648"),
        (lambda: Descriptor(target=-1), "descriptor target must be 0 to 65535, not -1"),
        (lambda: Descriptor(target=0, words=(Word(),) * 256), "a descriptor has at most 255 words, not 256"),
        (lambda: TableSection(descriptors=()), "a section of a phase table needs at least one descriptor"),
        (
            lambda: TableSection(descriptors=(Descriptor(target=0),), repeats=0),
            "repeats of a section must be 1 to 65535, not 0",
        ),
        (lambda: PhaseTable(sections=()), "a phase table has 1 to 7 sections, not 0"),
        (
            lambda: Buffer(name="x", role="input", channel=0, bytes=65),
            "buffer 'x': bytes must be a positive multiple of 64, not 65",
        ),
        (
            lambda: dataclasses.replace(MANIFEST, buffers=MANIFEST.buffers + MANIFEST.buffers[2:]),
            "buffer names must differ from one another and from "
            "('command', 'tiles', 'position', 'timeout'): ['table', 'status', 'x', 'x']",
        ),
    ],
)
def test_bad_values(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value) == message


def test_identity_ignores_the_hash_only():
    assert MANIFEST.identity() == dataclasses.replace(MANIFEST, design_hash="f" * 16).identity()
    assert MANIFEST.identity() != dataclasses.replace(MANIFEST, max_tokens=12).identity()
