"""Embedding rows: descriptors equal to golden, and rows from a simulated memory through a real load."""

from typing import Any

import numpy as np
import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from sim.axi import AxiBench
from sim.memory import MEMORY
from streamgen.artifact.packing import MemoryLayout
from streamgen.itensor import ITensor
from streamgen.kernels.moves.embedding import EmbeddingParams, with_unknown_row
from streamgen.numbers import formats
from streamgen.platform.axi import ReadPort
from streamgen.platform.dma import LoadParams
from streamgen.testing.bench import Stalls
from streamgen.testing.conformance import ASPECTS, check
from streamgen.testing.kernel import Case, check_golden, check_promises, descriptor_word, encode_port
from tests.unit.platform.rig import BASE, Rig, channel

PARAMS = EmbeddingParams(row_beats=6, row_tokens=5, load_tokens=900, max_rows=49_152, max_ids=100)


def case(ids: int, vocabulary: int, offset: int, seed: int) -> Case:
    """Ids of all kinds: the last known one, the first unknown one, the greatest number."""
    rng = np.random.default_rng(seed)
    borders = np.array([0, vocabulary - 1, vocabulary, vocabulary + 1, 2**31, 2**32 - 1])
    drawn = rng.integers(0, vocabulary, ids)
    drawn = np.where(rng.random(ids) < 0.3, rng.choice(borders, ids), drawn)
    return {"ids": ids, "vocabulary": vocabulary, "offset": offset}, {"i": drawn.astype(np.uint32)}


CASES = [
    case(40, 49_152, 7, 1),
    case(1, 1, 0, 2),
    case(1, 49_151, 2**32 - 49_152 * 6, 3),
    case(100, 1000, 2**31, 4),
]


def test_matches_golden(stalls: Stalls | None) -> None:
    """Descriptors back to back, each with its own table."""
    check_golden(PARAMS, CASES + CASES[1:3], stalls)


def test_golden_by_hand() -> None:
    bounds = {"ids": 5, "vocabulary": 10, "offset": 100}
    found = PARAMS.golden(bounds, {"i": np.array([0, 9, 10, 11, 2**32 - 1], np.uint32)})["o"]
    assert (found & np.uint64(2**32 - 1)).tolist() == [100, 154, 160, 160, 160]
    assert (found >> np.uint64(32)).tolist() == [5] * 5


@pytest.mark.parametrize("ids", [1, 2, 100])
def test_promises(ids: int) -> None:
    check_promises(PARAMS, *case(ids, 50, 3, ids))


def test_reset() -> None:
    for cycle in (2, 5, 20):
        check_golden(PARAMS, CASES, reset_at=cycle)


class EmbeddedRows(wiring.Component):
    """The kernel and its load."""

    def __init__(self, embedding: EmbeddingParams, load: LoadParams) -> None:
        self.kernel, self.load = embedding.build(), load.build()
        super().__init__({"base": In(64), "memory": Out(ReadPort)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.kernel, m.submodules.load = self.kernel, self.load
        wiring.connect(m, wiring.flipped(self.memory), self.load.memory)
        m.d.comb += [
            self.load.i_descriptor.payload.eq(self.kernel.o.payload),
            self.load.i_descriptor.valid.eq(self.kernel.o.valid),
            self.kernel.o.ready.eq(self.load.i_descriptor.ready),
            self.load.base.eq(BASE),
        ]
        return m


@pytest.mark.parametrize(
    ("dtype", "shape", "row_tokens"),
    [("f24", (1, 16), 3), ("f24", (1, 4), 5), ("f24", (1, 32), 2), ("i8", (1, 32), 3)],
)
@pytest.mark.parametrize("chance", [0.0, 0.3])
def test_rows_from_memory(dtype: str, shape: tuple[int, int], row_tokens: int, chance: float) -> None:
    """Random ids, two descriptors back to back: rows as the table has them, for unknown ids the last one."""
    rng = np.random.default_rng(row_tokens)
    vocabulary, offset, width = 40, 9, row_tokens * shape[1]
    layout = MemoryLayout(dtype, shape)
    row = ITensor(shape, dtype, (row_tokens,), (shape[1],), ((), (0,)))
    if dtype == "f24":
        table = with_unknown_row(formats.round_f24(rng.normal(size=(vocabulary, width))))
    else:
        table = rng.integers(-128, 128, (vocabulary + 1, width)).astype(np.int8)
    image = b"".join(layout.pack(row, line[None]) for line in table)
    memory = bytearray(64 * offset) + bytearray(image) + bytearray(64 * 64)
    load = LoadParams(layout=layout, max_tokens=100, prefetch=64, **MEMORY)
    params = EmbeddingParams(
        row_beats=layout.beats(row_tokens),
        row_tokens=row_tokens,
        load_tokens=load.max_tokens,
        max_rows=64,
        max_ids=50,
    )
    top = EmbeddedRows(params, load)
    rig = Rig([top], [])
    bench = AxiBench(rig, seed=1, chance=chance)
    bench.memory(rig.m_axi, channel({BASE: memory}, rate=1, latency=20, delays=8, seed=2))
    cases = [case(ids, vocabulary, offset, ids) for ids in (13, 20)]
    ids = np.concatenate([inputs["i"] for _, inputs in cases])
    expected = [
        token for line in table[np.minimum(ids, vocabulary)] for token in encode_port(row, line[None])
    ]
    assert (ids >= vocabulary).any()
    bench.source(top.kernel.i_descriptor, [descriptor_word(params, bounds) for bounds, _ in cases], "bounds")
    bench.source(top.kernel.i, ids.tolist(), "ids")
    sink = bench.sink(top.load.o, len(expected), "rows")
    bench.run()
    assert sink.tokens == expected


def test_unknown_row() -> None:
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    with_row = with_unknown_row(table)
    np.testing.assert_array_equal(with_row[:3], table)
    assert with_row.shape == (4, 2)
    assert np.isnan(with_row[3]).all()


def test_fields_of_the_load() -> None:
    """A token of `o` is the payload of the load's descriptor."""
    load = LoadParams(layout=MemoryLayout("f24", (1, 16)), max_tokens=900, **MEMORY)
    fields = load.descriptor_fields()
    assert [field.name for field in fields] == ["offset", "tokens"]
    assert sum(field.bits for field in fields) == PARAMS.outputs({"ids": 1})["o"].token_bits
    row = ITensor((1, 16), "f24", (5,), (16,), ((), (0,)))
    word = descriptor_word(load, {"itensor": row, "offset": 3 + 7 * 6})
    found = PARAMS.golden({"ids": 1, "vocabulary": 9, "offset": 3}, {"i": np.array([7], np.uint32)})["o"]
    assert found.tolist() == [word]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"row_beats": 0}, "Embedding.row_beats is 0; it must be from 1 to 2147483648"),
        ({"row_tokens": 901}, "Embedding.row_tokens is 901; it must be from 1 to 900"),
        ({"row_tokens": 0}, "Embedding.row_tokens is 0; it must be from 1 to 900"),
        ({"load_tokens": 0}, "Embedding.load_tokens is 0; it must be from 1 to 4294967295"),
        ({"max_rows": 0}, "Embedding.max_rows is 0; it must be from 1 to 715827881"),
        ({"max_rows": 715_827_882}, "Embedding.max_rows is 715827882; it must be from 1 to 715827881"),
        ({"max_ids": 1 << 32}, "Embedding.max_ids is 4294967296; it must be from 1 to 4294967295"),
    ],
)
def test_bad_params(change: dict[str, int], message: str) -> None:
    good = {"row_beats": 6, "row_tokens": 5, "load_tokens": 900, "max_rows": 10, "max_ids": 9}
    with pytest.raises(ValueError) as caught:
        EmbeddingParams(**good | change)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": 0}, "Embedding: ids is 0; it must be from 1 to 100"),
        ({"ids": 101}, "Embedding: ids is 101; it must be from 1 to 100"),
        ({"vocabulary": 0}, "Embedding: vocabulary is 0; it must be from 1 to 49152"),
        ({"vocabulary": 49_153}, "Embedding: vocabulary is 49153; it must be from 1 to 49152"),
        ({"offset": -1}, "Embedding: offset is -1; it must be from 0 to 4294967230"),
        ({"offset": 4294967231}, "Embedding: offset is 4294967231; it must be from 0 to 4294967230"),
    ],
)
def test_bad_bounds(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        PARAMS.describe({"ids": 1, "vocabulary": 10, "offset": 0} | change)
    assert str(caught.value) == message


@pytest.mark.slow
@pytest.mark.parametrize("aspect", [aspect for aspect in ASPECTS if aspect != "resources"])
def test_conforms(aspect: str) -> None:
    """Resources are in the sweep of all blocks."""
    refused = [{"ids": 101, "vocabulary": 9, "offset": 0}]
    check(PARAMS, CASES, refused=refused, aspects=[aspect])
