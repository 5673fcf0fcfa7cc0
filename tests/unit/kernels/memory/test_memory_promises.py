"""Kernels with memory ports alone, a channel master and a memory on each port: values, cycles, curves.

Memory sets their pace, so curves are held to what is measured as those of loads and stores are: the first
token exact, each one within a margin, and so the end.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from sim.axi import AxiBench
from sim.memory import MEMORY
from streamgen.artifact.kv_layout import KvLayout
from streamgen.artifact.manifest import MemoryTiming
from streamgen.compiler.explore.tokens import Fifo, TokenRun
from streamgen.contract import Bounds, traffic
from streamgen.fifo.clocks import Clocks, clocks_of
from streamgen.fifo.curves import KernelSide
from streamgen.itensor import ITensor
from streamgen.kernels.memory import (
    KvLoadParams,
    KvStoreParams,
    RowsLoadParams,
    SpillLayout,
    SpillLoadParams,
    SpillStoreParams,
)
from streamgen.numbers import formats
from streamgen.platform.axi import AxiSignature
from streamgen.platform.master import ChannelMasterParams
from streamgen.testing.bench import Simulated, stream_ports
from streamgen.testing.kernel import descriptor_word, encode_port
from tests.shared.campaigns import sampled
from tests.unit.platform.rig import BASE, channel

RATE, LATENCY = 0.6927, 100

Params = KvLoadParams | KvStoreParams | RowsLoadParams | SpillLoadParams | SpillStoreParams


class Masters(wiring.Component):
    """A kernel with a channel master of its own on every memory port, `m_axi_<k>`; buffers begin at BASE."""

    def __init__(self, params: Params) -> None:
        self.kernel: Any = params.build()
        self.ports = dict(params.memory_ports)
        super().__init__({f"m_axi_{k}": Out(AxiSignature()) for k in range(len(self.ports))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.kernel = self.kernel
        for k, (port, kind) in enumerate(self.ports.items()):
            reads = int(kind == "read")
            m.submodules[f"master_{k}"] = master = ChannelMasterParams(
                readers=reads, writers=1 - reads
            ).build()
            wiring.connect(m, getattr(self.kernel, port), getattr(master, f"{kind}_0"))
            wiring.connect(m, wiring.flipped(getattr(self, f"m_axi_{k}")), master.m_axi)
            m.d.comb += getattr(self.kernel, port.replace("memory", "base")).eq(BASE)
        return m


class Done:
    """Waits until a kernel that writes has said so often that all is in memory."""

    name = "done"

    def __init__(self, signal: Any, count: int) -> None:
        self.signals, self._count = [signal], count
        self.cycles: list[int] = []

    def step(self, cycle: int, values: Sequence[int], drive: Any) -> bool:
        if values[0]:
            self.cycles.append(cycle)
        return bool(values[0])

    def left(self) -> str:
        left = self._count - len(self.cycles)
        return f"{left} times" if left > 0 else ""


@lru_cache(maxsize=2)  # tests of the same params follow one another
def masters_of(params: Params) -> Simulated:
    return Simulated(Masters(params))


def measure(
    params: Params, several: list[tuple[Bounds, Mapping[str, np.ndarray]]], images: list[bytearray]
) -> dict[str, np.ndarray]:
    """Cycles of the tokens on every port from the first descriptor on; outputs are those of `golden`, which
    sees the inputs, bytes moved those of `traffic`. images: of the channels, which are read or written."""
    simulated = masters_of(params)
    masters: Any = simulated.component
    kernel = masters.kernel
    bench = AxiBench(simulated)
    pace = Fraction(RATE).limit_denominator(1000)
    memories = []
    for k, image in enumerate(images):
        model = channel({BASE: image}, rate=pace, latency=LATENCY)
        memories.append(bench.memory(getattr(masters, f"m_axi_{k}"), model))
    tokens: dict[str, list[int]] = {}
    expected: dict[str, list[int]] = {}
    for bounds, inputs in several:
        tokens.setdefault("i_descriptor", []).append(descriptor_word(params, bounds))
        golden = params.golden(bounds, inputs)
        for port, itensor in params.inputs(bounds).items():
            tokens.setdefault(port, []).extend(encode_port(itensor, inputs[port]))
        for port, itensor in params.outputs(bounds).items():
            expected.setdefault(port, []).extend(encode_port(itensor, golden[port]))
    found: dict[str, Any] = {}
    for port in stream_ports(kernel, In):
        found[port] = bench.source(getattr(kernel, port), tokens.get(port, []), port)
    for port in stream_ports(kernel, Out):
        found[port] = bench.sink(getattr(kernel, port), len(expected[port]), port)
    if hasattr(kernel, "done"):
        found["done"] = bench.add(Done(kernel.done, len(several)))
    bench.run()
    for port, words in expected.items():
        assert found[port].tokens == words, port
    for port, memory in zip(params.memory_ports, memories, strict=True):
        moved = sum(beats for _, _, _, beats, _ in memory.bursts)
        assert moved == sum(traffic(params, bounds)[port] for bounds, _ in several), port
    start = found["i_descriptor"].cycles[0]
    return {port: np.array(one.cycles) - start for port, one in found.items()}


def cache(
    width: int, heads: int, channels: int, positions: int = 64
) -> tuple[KvLayout, np.ndarray, list[bytearray]]:
    """A cache full of rows: its layout, [layers, heads, positions, width], the images of its channels."""
    layout = KvLayout(dtype="i8", width=width, heads=heads, layers=3, positions=positions, channels=channels)
    shape = (layout.layers, heads, layout.positions, width)
    rows = np.random.default_rng(width).integers(-128, 128, shape).astype(np.int8)
    return layout, rows, [bytearray(image) for image in layout.pack(rows)]


def memories(layout: KvLayout, images: list[bytearray]) -> dict[str, np.ndarray]:
    """The channels as golden sees them."""
    return {
        f"memory_{c}": np.frombuffer(bytes(image), np.int8).reshape(-1, layout.padded_width)
        for c, image in enumerate(images)
    }


ROWS = [1, 5, pytest.param(40, marks=pytest.mark.slow)]
CACHES = [(64, 3, 1), (64, 3, 4), (40, 1, 2), (128, 8, 2), (256, 2, 4)]  # width, heads, channels
STORES = [*((1, sizes) for sizes in CACHES), (3, (64, 3, 4)), (2, (128, 8, 2)), (2, (256, 4, 4))]
LOADS = [  # width, heads, channels; lanes, parts, again, pieces
    *(((64, 3, 1), (1, 1, 1)), ((64, 3, 4), (2, 1, 1)), ((40, 1, 2), (2, 5, 3)), ((128, 2, 2), (1, 1, 4))),
    *(((80, 2, 4), (4, 1, 2)), ((6, 1, 8), (8, 3, 1)), ((64, 2, 8), (2, 1, 3)), ((20, 2, 16), (16, 2, 2))),
    *(((40, 1, 2, 256), (2, 20, 1)), ((48, 1, 8, 1024), (8, 8, 2))),
    *(((64, 4, 4), (2, 1, 3, 2)), ((40, 6, 8), (8, 1, 1, 6)), ((48, 1, 8), (4, 8, 3, 4))),
    *(((32, 1, 4), (2, 2, 1, 2)), ((48, 1, 8, 1024), (8, 16, 2, 4)), ((24, 1, 4, 1024), (4, 12, 1, 2))),
]
PLACES = [(0, 1), (0, 5), (1, 1), (13, 1), (40, 1), (16, 3), (21, 12), (63, 1)]  # position, rows
ALONE = [
    pytest.param(*load, place, marks=[] if (k - n) % 8 == 0 else [pytest.mark.slow, pytest.mark.campaign])
    for k, load in enumerate(LOADS)
    for n, place in enumerate(PLACES)
]


def cache_loads(
    sizes: tuple[int, ...], built: tuple[int, ...], places: list[tuple[int, int]]
) -> tuple[KvLoadParams, list[tuple[Bounds, Mapping[str, np.ndarray]]], list[bytearray]]:
    """A load of a full cache, executions of it with rows of their pass, the images of the channels."""
    layout, _, images = cache(*sizes)
    lanes, parts, again, *pieces = built
    params = KvLoadParams(
        layout=layout,
        lanes=lanes,
        parts=parts,
        pieces=pieces[0] if pieces else 1,
        max_new=12 if any(rows for _, rows in places) else 0,
        max_again=4,
        **MEMORY,
    )
    several = []
    for k, (position, rows) in enumerate(places):
        bounds = {"layer": k % 3, "position": position, "rows": rows, "again": again}
        new = np.random.default_rng(k).integers(-128, 128, (rows, layout.heads * layout.width))
        given = {"i": new.astype(np.int8)} if rows else {}
        several.append((bounds, {**given, **memories(layout, images)}))
    return params, several, images


HELD = [1, 2, 7, 13, 16, 40, 64]  # positions that the host has written
HELD_LOADS = [load for load in LOADS if len(load[1]) == 3]


@pytest.mark.parametrize(("sizes", "built"), sampled(HELD_LOADS, HELD_LOADS[::3]))
def test_loads_of_what_the_host_has_written_follow_one_another(
    sizes: tuple[int, ...], built: tuple[int, ...]
) -> None:
    measure(*cache_loads(sizes, built, [(held, 0) for held in HELD]))


@pytest.mark.parametrize(
    ("sizes", "built", "held"),
    [
        pytest.param(*load, held, marks=[] if (k - n) % 5 == 0 else [pytest.mark.slow, pytest.mark.campaign])
        for k, load in enumerate(HELD_LOADS)
        for n, held in enumerate(HELD)
    ],
)
def test_load_of_what_the_host_has_written_keeps_its_promise(
    sizes: tuple[int, ...], built: tuple[int, ...], held: int
) -> None:
    """As `test_cache_load_keeps_its_promise`."""
    params, several, images = cache_loads(sizes, built, [(held, 0)])
    cycles = measure(params, several, images)
    (bounds, _) = several[0]
    promised, cost = params.curves(bounds)["o"].cycles(), params.cost(bounds)
    assert abs(cycles["o"][0] - promised[0]) <= 2 and cost.latency == promised[0] - 2
    assert cost.cycles == promised[-1] + 1
    _near(params, bounds, cycles)


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "built"), sampled(LOADS, LOADS[::3]))
def test_cache_loads_follow_one_another(sizes: tuple[int, ...], built: tuple[int, ...]) -> None:
    """All places, one after the other: values, and bytes moved."""
    measure(*cache_loads(sizes, built, PLACES))


@pytest.mark.parametrize(("sizes", "built", "place"), ALONE)
def test_cache_load_keeps_its_promise(
    sizes: tuple[int, ...], built: tuple[int, ...], place: tuple[int, int]
) -> None:
    """The first tile within two cycles, none further from its curve than a trip to the memory and a
    hundredth; nearer to predictions."""
    params, several, images = cache_loads(sizes, built, [place])
    cycles = measure(params, several, images)
    (bounds, _) = several[0]
    curves, cost = params.curves(bounds), params.cost(bounds)
    promised = curves["o"].cycles()
    assert abs(cycles["o"][0] - promised[0]) <= 2 and cost.latency == promised[0] - 2
    assert cost.cycles == promised[-1] + 1
    np.testing.assert_array_equal(cycles["i"], curves["i"].cycles())
    _near(params, bounds, cycles)


def test_a_channel_without_rows_moves_nothing() -> None:
    """As in a run of fewer positions than channels."""
    params = KvLoadParams(layout=cache(64, 3, 4)[0], max_new=1, **MEMORY)
    clocks = params.clocks({"layer": 1, "position": 2, "rows": 1, "again": 1})
    assert [transfers.port for transfers in clocks.transfers] == ["memory_0", "memory_1"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lanes": 3}, "KvLoad.lanes is 3; it must be a divisor of the 4 channels"),
        ({"lanes": 8}, "KvLoad.lanes is 8; it must be a divisor of the 4 channels"),
        ({"parts": 3}, "KvLoad.parts is 3; it must be a divisor of the width, 64"),
        ({"pieces": 2}, "KvLoad.pieces is 2; it must be a divisor of 3 heads"),
        ({"max_new": -1}, "KvLoad.max_new is -1; it must be at least 0"),
        ({"max_new": 0, "pieces": 3}, "KvLoad.pieces is 3; it must be 1 without rows of the pass"),
        ({"max_again": 0}, "KvLoad.max_again is 0; it must be at least 1"),
    ],
)
def test_bad_loads(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        KvLoadParams(layout=cache(64, 3, 4)[0], **{"max_new": 2, **change}, **MEMORY)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "KvLoad: rows is 0; it must be 1 to 2"),
        ({"rows": 3}, "KvLoad: rows is 3; it must be 1 to 2"),
        ({"position": 63, "rows": 2}, "KvLoad: rows is 2; it must be 1 to 1"),
        ({"again": 3}, "KvLoad: again is 3; it must be 1 to 2"),
    ],
)
def test_bad_bounds_of_loads(change: dict[str, int], message: str) -> None:
    params = KvLoadParams(layout=cache(64, 3, 4)[0], max_new=2, max_again=2, **MEMORY)
    with pytest.raises(ValueError) as caught:
        params.describe({"layer": 0, "position": 7, "rows": 1, "again": 1, **change})
    assert str(caught.value) == message


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("pieces", "sizes"), STORES)
def test_cache_store_keeps_its_promise(pieces: int, sizes: tuple[int, int, int], rows: int) -> None:
    """The first row exact, the others and `done` within a tenth and a few cycles."""
    layout, _, images = cache(*sizes)
    params = KvStoreParams(layout=layout, pieces=pieces, **MEMORY)
    bounds = {"layer": 2, "position": 3, "rows": rows}
    width = layout.heads * layout.width
    new = np.random.default_rng(rows).integers(-128, 128, (rows, width)).astype(np.int8)
    golden = params.golden(bounds, {"i": new, **memories(layout, images)})
    cycles = measure(params, [(bounds, {"i": new, **memories(layout, images)})], images)
    for name, array in memories(layout, images).items():
        np.testing.assert_array_equal(array, golden[name])
    curves, cost = params.curves(bounds), params.cost(bounds)
    promised = curves["i"].cycles()
    assert cycles["i"][0] == promised[0]
    assert (np.abs(cycles["i"] - promised) <= 8 + 0.1 * cycles["i"]).all()
    assert abs(cycles["done"][0] - cost.latency) <= 8 + 0.1 * cost.latency
    assert cost.cycles == cost.latency + 1


def test_rows_that_fill_no_beats() -> None:
    """They are stored longer, where that is behind what is sent."""
    params = RowsLoadParams(shape=(2, 5), tile=(2, 1), vocabulary=50, max_ids=64, **MEMORY)
    assert params.stored == (2, 8) and params.row_beats == 1
    with pytest.raises(ValueError, match=r"\(2, 4\) of f24 in tiles \(1, 4\) does not fill whole beats"):
        RowsLoadParams(shape=(2, 4), tile=(1, 4), vocabulary=50, max_ids=64, **MEMORY)


@pytest.mark.parametrize("ids", [1, 3, 20])
@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((64,), (4,)),
        ((576,), (4,)),
        ((576,), (16,)),
        ((576,), (32,)),
        ((2, 32), (2, 4)),
        ((32,), (16,)),
        ((2, 12), (2, 4)),
    ],
)
def test_rows_keep_their_promise(shape: tuple[int, ...], tile: tuple[int, ...], ids: int) -> None:
    """The first tile exact, none is further than a trip to the memory from its curve; ids are not late."""
    _keeps_its_promise(RowsLoadParams(shape=shape, tile=tile, vocabulary=50, max_ids=64, **MEMORY), ids)


@pytest.mark.parametrize("ids", [1, 3, 20])
def test_wide_rows_come_as_fast_as_memory_gives_them(ids: int) -> None:
    params = RowsLoadParams(
        shape=(1024,),
        tile=(16,),
        vocabulary=50,
        max_ids=64,
        prefetch=128,
        burst=64,
        rate=RATE,
        latency=MEMORY["latency"],
    )
    last = _keeps_its_promise(params, ids)
    assert last <= LATENCY + 30 + 1.1 * ids * params.row_beats / RATE


def _keeps_its_promise(params: RowsLoadParams, ids: int) -> int:
    """The cycle of the last tile."""
    rng = np.random.default_rng(ids)
    table = formats.round_f24(rng.normal(size=(51, *params.stored)))
    image = bytearray(params.layout.pack(params.table, table))
    bounds = {"ids": ids, "offset": 0}
    inputs = {"i": rng.integers(0, 53, ids).astype(np.uint32), "memory": table}
    cycles = measure(params, [(bounds, inputs)], [image])
    curves, cost = params.curves(bounds), params.cost(bounds)
    promised = curves["o"].cycles()
    assert cycles["o"][0] == promised[0] == cost.latency
    assert np.abs(cycles["o"] - promised).max() <= LATENCY + 0.01 * promised[-1]
    assert (cycles["i"] <= curves["i"].cycles()).all()
    assert cost.cycles == promised[-1] + 1
    return int(cycles["o"][-1])


SPILLS = [(2, 1), (2, 37), (16, 200), (24, 60), (1, 33)]  # lanes of a token, tokens


def spilled(lanes: int, tokens: int) -> tuple[SpillLayout, Bounds, np.ndarray, bytearray]:
    """Three values in memory: their places, the bounds of the second one, itself, the image of all."""
    itensor = ITensor((1, lanes), "f24", (tokens,), (1,), ((0,), ()))
    layout = SpillLayout(token_bits=24 * lanes, max_tokens=tokens + 5, values=3)
    value = formats.round_f24(np.random.default_rng(tokens).normal(size=itensor.shape))
    return layout, {"itensor": itensor, "place": 1}, value, bytearray(3 * 64 * layout.value_beats)


def _near(params: Params, bounds: Bounds, cycles: dict[str, np.ndarray]) -> None:
    """No token is further from its curve than a trip to the memory and a hundredth; nearer to predictions."""
    executions, fifos = {"kernel": {0: clocks_of(params, bounds)}}, []
    for port, itensor in {**params.inputs(bounds), **params.outputs(bounds)}.items():
        moves = np.arange(itensor.token_count)
        outside = KernelSide("outside", moves, None)
        executions[port] = {0: Clocks((outside,), {port: (outside, moves)})}
        ends = (port, port), ("kernel", port)
        fifos.append(Fifo(*(ends if port in params.inputs(bounds) else ends[::-1]), 0, 0))
    pace = Fraction(RATE).limit_denominator(1000)
    timing = MemoryTiming(beats=pace.numerator, cycles=pace.denominator, latency=LATENCY)
    channels = {("kernel", port): k for k, port in enumerate(params.memory_ports)}
    run = TokenRun([0], executions, fifos, timing, channels, times=True)
    for k, (port, found) in enumerate((port, cycles[port]) for port in [*executions][1:]):
        promised = params.curves(bounds)[port].cycles()
        assert (np.abs(found - promised) <= LATENCY + 0.01 * promised).all(), port
        if port in params.outputs(bounds):
            assert (np.abs(run.sent(k) - found) <= 8 + 0.02 * found).all(), port


@pytest.mark.parametrize(("lanes", "tokens"), SPILLS)
def test_spills_keep_their_promise(lanes: int, tokens: int) -> None:
    """A value into memory and out of it: the image of its bytes, cycles."""
    layout, bounds, value, image = spilled(lanes, tokens)
    store, load = SpillStoreParams(layout=layout, **MEMORY), SpillLoadParams(layout=layout, **MEMORY)
    inputs = {"i": value, "memory": np.zeros(layout.order.shape, np.uint8)}
    memory = store.golden(bounds, inputs)["memory"]
    cycles = measure(store, [(bounds, inputs)], [image])
    assert bytes(image) == layout.memory.pack(layout.order, memory)
    _near(store, bounds, cycles)
    assert store.cost(bounds).cycles == store.curves(bounds)["o_stored"].cycles()[-1] + 1
    cycles = measure(load, [(bounds, {"i_stored": np.ones(1, np.uint8), "memory": memory})], [image])
    _near(load, bounds, cycles)
    promised = load.curves(bounds)["o"].cycles()
    assert cycles["i_stored"] == 0 and cycles["o"][0] == promised[0] == load.cost(bounds).latency
    assert load.cost(bounds).cycles == promised[-1] + 1
