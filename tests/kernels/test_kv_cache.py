"""kernels.attention.kv_cache: rtl == golden, promises, and a real cache in memory with late responses."""

from random import Random
from typing import Any

import numpy as np
import pytest
from amaranth import Module, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from sim.axi import AxiBench, Sink, Source
from sim.memory import Channel
from streamgen.buffers.kv_layout import KvLayout
from streamgen.itensor import ITensor
from streamgen.kernels.attention.kv_cache import KvAppendParams, KvReadParams
from streamgen.numbers import formats
from streamgen.platform.axi import AxiSignature
from streamgen.platform.dma import LoadParams, StoreParams
from streamgen.platform.master import ChannelMasterParams
from streamgen.runtime.memory import MemoryModel
from streamgen.testing.bench import Stalls, run
from streamgen.testing.kernel import Case, check_golden, check_promises, descriptor_word

LAYOUTS = [
    KvLayout(dtype="i8", width=64, heads=1, layers=3, positions=37, channels=1),
    KvLayout(dtype="i8", width=20, heads=3, layers=3, positions=37, channels=2),
    KvLayout(dtype="i8", width=70, heads=2, layers=3, positions=40, channels=4),
    KvLayout(dtype="i24", width=3, heads=1, layers=2, positions=9, channels=8),
]


def _append(layout: KvLayout, layer: int, position: int, rows: int, seed: int = 0) -> Case:
    rng = np.random.default_rng([layer, position, rows, seed])
    bounds = {"layer": layer, "position": position, "rows": rows}
    ports = KvAppendParams(layout=layout).inputs(bounds)
    bits = formats.bits(layout.dtype)
    values = rng.integers(-1 << bits - 1, 1 << bits - 1, ports.pop("i").shape)
    done = {name: np.ones(itensor.shape, np.uint8) for name, itensor in ports.items()}
    return bounds, {"i": values.astype(formats.numpy_dtype(layout.dtype)), **done}


def _read(layout: KvLayout, layer: int, rows: int, waits: int) -> Case:
    inputs = {"i_appended": np.ones(waits, np.uint8)} if waits else {}
    return {"layer": layer, "rows": rows, "waits": waits}, inputs


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_appends_match_golden(layout: KvLayout, stalls: Stalls | None) -> None:
    """Descriptors back to back: the whole cache, single rows, the first and the last position."""
    end = layout.positions
    places = ((0, 0, end), (1, end - 1, 1), (1, 0, 1), (0, 3, 5), (1, 5, 1), (1, 6, 3))
    cases = [_append(layout, *place) for place in places]
    check_golden(KvAppendParams(layout=layout), cases, stalls)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_reads_match_golden(layout: KvLayout, stalls: Stalls | None) -> None:
    end = layout.positions
    places = ((0, end, 1), (1, 1, 0), (1, end - 1, 3), (0, 2, 0), (1, 8, 15), (0, 5, 0), (0, 6, 2))
    check_golden(KvReadParams(layout=layout), [_read(layout, *place) for place in places], stalls)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_promises(layout: KvLayout) -> None:
    for position, rows in ((0, layout.positions), (1, 8)):
        check_promises(KvAppendParams(layout=layout), *_append(layout, 1, position, rows))
    for rows, waits in ((layout.positions, 1), (8, 3)):
        check_promises(KvReadParams(layout=layout), *_read(layout, 1, rows, waits))


def test_reset_in_mid_run() -> None:
    layout = LAYOUTS[1]
    stalls = Stalls(seed=1, sources=0.3, sinks=0.3)
    appends = [_append(layout, *place) for place in ((0, 0, 7), (1, 3, 4))]
    reads = [_read(layout, *place) for place in ((0, 9, 2), (1, 30, 1))]
    for cycle in (6, 17, 33):
        check_golden(KvAppendParams(layout=layout), appends, stalls, reset_at=cycle)
        check_golden(KvReadParams(layout=layout), reads, stalls, reset_at=cycle)


def test_nothing_appended_before_it_is_done() -> None:
    """No token until the last response; while tokens wait, a limit of descriptors is taken."""
    layout = LAYOUTS[0]
    params = KvAppendParams(layout=layout)
    cases = [_append(layout, 0, position, 1) for position in range(14)]
    streams = {
        "i_descriptor": [descriptor_word(params, bounds) for bounds, _ in cases],
        "i": [1] * 14,
        "i_done_0": [1] * 14,
    }
    counts = {"o_0": 14, "o_descriptor_0": 14, "o_appended": 14}
    late = run(params.build(), streams, counts, hold={"i_done_0": 200})
    assert min(late.cycles["o_appended"]) > 200
    assert sum(cycle < 200 for cycle in late.cycles["i"]) == 2  # one gives rows, one is on its way
    held = run(params.build(), streams, counts, hold={"o_appended": 200})
    assert 8 <= sum(cycle < 200 for cycle in held.cycles["i"]) <= 10


class LateChannel(Channel):
    """Memory whose writes take place with their response, `late` cycles after the beat, as AXI allows."""

    late = 0

    def __post_init__(self) -> None:
        self.seen = {base: bytearray(content) for base, content in self.buffers.items()}
        self._served: list[tuple[int, bytes]] = []  # beats whose response is to come
        self._bursts: list[int] = []  # how many of them belong to each response
        super().__post_init__()

    def step(self, master: Any) -> Any:
        pins = super().step(master)
        while len(self._bursts) > len(self.responses):
            for address, beat in self._served[: self._bursts[0]]:
                base = max(first for first in self.seen if first <= address)
                self.seen[base][address - base : address - base + 64] = beat
            del self._served[: self._bursts.pop(0)]
        return pins

    def _serve_read(self) -> bool:
        buffers, self.buffers = self.buffers, self.seen
        served = super()._serve_read()
        self.buffers = buffers
        return served

    def _serve_write(self) -> bool:
        if not (self.writes and self.data):
            return False
        burst, (beat, _, last) = self.writes[0], self.data[0]
        self._served.append((burst.address, beat.to_bytes(64, "little")))
        super()._serve_write()
        if last:
            burst.time += self.late
            self._bursts.append(len(self._served) - sum(self._bursts))
        return True


class Cache(wiring.Component):
    """Caches of several layouts, as a design has them, over the same channels."""

    def __init__(self, layouts: list[KvLayout]) -> None:
        self.layouts = layouts
        self.appends = [KvAppendParams(layout=layout).build() for layout in layouts]
        self.reads = [KvReadParams(layout=layout).build() for layout in layouts]
        self.channels = range(layouts[0].channels)
        self.stores = [[self._store(layout).build() for _ in self.channels] for layout in layouts]
        self.loads = [[self._load(layout).build() for _ in self.channels] for layout in layouts]
        super().__init__({f"m_axi_{c}": Out(AxiSignature()) for c in self.channels})

    @staticmethod
    def _store(layout: KvLayout) -> StoreParams:
        return StoreParams(layout=layout.memory, max_tokens=1, depth=8, burst=4)

    @staticmethod
    def _load(layout: KvLayout) -> LoadParams:
        return LoadParams(layout=layout.memory, max_tokens=layout.rows_per_channel, prefetch=32, burst=16)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        count = len(self.layouts)
        masters = [ChannelMasterParams(readers=count, writers=count).build() for _ in self.channels]
        for c, master in enumerate(masters):
            m.submodules[f"master_{c}"] = master
            wiring.connect(m, wiring.flipped(getattr(self, f"m_axi_{c}")), master.m_axi)
        for k in range(count):
            append, read = self.appends[k], self.reads[k]
            m.submodules[f"append_{k}"], m.submodules[f"read_{k}"] = append, read
            wiring.connect(m, append.o_appended, read.i_appended)
            for c, master in enumerate(masters):
                store, load = self.stores[k][c], self.loads[k][c]
                m.submodules[f"store_{k}_{c}"], m.submodules[f"load_{k}_{c}"] = store, load
                wiring.connect(m, store.memory, getattr(master, f"write_{k}"))
                wiring.connect(m, load.memory, getattr(master, f"read_{k}"))
                done = getattr(append, f"i_done_{c}")
                m.d.comb += [
                    *(base.eq(_BASE * (k + 1)) for base in (store.base, load.base)),
                    done.valid.eq(store.done),
                    done.payload.eq(1),
                ]
                for source, target in (
                    (getattr(append, f"o_{c}"), store.i),
                    (getattr(append, f"o_descriptor_{c}"), store.i_descriptor),
                    (getattr(read, f"o_descriptor_{c}"), load.i_descriptor),
                ):
                    m.d.comb += [
                        target.valid.eq(source.valid),
                        Value.cast(target.payload).eq(source.payload),
                        source.ready.eq(target.ready),
                    ]
        return m


_BASE = 1 << 20
CACHES = [
    KvLayout(dtype="i8", width=64, heads=2, layers=2, positions=12, channels=2),
    KvLayout(dtype="i24", width=2, heads=1, layers=2, positions=12, channels=2),
]


class Gated(Source):
    """Shows token k when `gates[k]` tokens have come to the sinks."""

    def __init__(self, *arguments: Any, gates: list[int], sinks: list[Sink]) -> None:
        super().__init__(*arguments)
        self._gates, self._sinks, self._pause = gates, sinks, self._chance

    def step(self, cycle: int, values: Any, drive: Any) -> bool:
        following = len(self.cycles) + int(values[0] and values[1])
        came = sum(len(sink.tokens) for sink in self._sinks)
        shut = following < len(self._gates) and came < self._gates[following]
        self._chance = 1.0 if shut else self._pause
        return super().step(cycle, values, drive)


def _run_cache(steps: list[tuple[int, int]], *, late: int, waits: int, ordered: bool, seed: int) -> bool:
    """Steps (position, rows), each in both layers: append, read all there is. True if every row is right.

    ordered: rows of a step are there when all rows of the read before have come, as in a decoder.
    """
    top = Cache(CACHES)
    random = Random(seed)
    bench = AxiBench(top, seed=seed, chance=0.2)
    channels = []
    for c in top.channels:
        buffers = {
            _BASE * (k + 1): bytearray(random.randbytes(64 * layout.beats)) for k, layout in enumerate(CACHES)
        }
        channel = LateChannel(MemoryModel(rate=1, latency=15, delays=8, seed=seed), c, buffers)
        channel.late = late
        channels.append(channel)
        bench.memory(getattr(top, f"m_axi_{c}"), channel, f"memory {c}")
    sinks, expected = [], []
    contents = []
    for k, layout in enumerate(CACHES):
        append, read = KvAppendParams(layout=layout), KvReadParams(layout=layout)
        images = [bytes(channel.buffers[_BASE * (k + 1)]) for channel in channels]
        content = np.zeros((layout.layers, layout.heads, layout.positions, layout.width), np.int64)
        words: tuple[list[int], list[int]] = ([], [])
        tokens: list[int] = []
        rows_read: list[list[int]] = [[] for _ in top.channels]
        needed: list[int] = []  # for each row in, how many rows must have come out
        for position, rows in steps:
            for layer in range(layout.layers):
                bounds, inputs = _append(layout, layer, position, rows, seed)
                itensor = append.inputs(bounds)["i"]
                words[0].append(descriptor_word(append, bounds))
                words[1].append(descriptor_word(read, _read(layout, layer, position + rows, waits)[0]))
                new = formats.encode_ints(layout.dtype, itensor.to_tokens(inputs["i"]))
                tokens += new
                needed += [sum(map(len, rows_read))] * len(new)
                appended = inputs["i"].reshape(rows, layout.heads, layout.width).transpose(1, 0, 2)
                content[layer, :, position : position + rows] = appended
                for c in top.channels:
                    for head in range(layout.heads):
                        there = content[layer, head, c : position + rows : layout.channels]
                        there = there.astype(formats.numpy_dtype(layout.dtype))
                        rows_read[c] += formats.encode_ints(layout.dtype, there[:, None])
        bench.source(top.appends[k].i_descriptor, words[0], f"appends {k}")
        bench.source(top.reads[k].i_descriptor, words[1], f"reads {k}")
        mine = [bench.sink(top.loads[k][c].o, len(rows_read[c]), f"rows {k} {c}") for c in top.channels]
        interface = top.appends[k].i
        gates = needed if ordered else [0] * len(needed)
        bench.add(Gated(f"tokens {k}", interface, tokens, 0.2, random, gates=gates, sinks=mine))
        sinks += mine
        expected += rows_read
        contents.append((layout, content, images))
    bench.run(watchdog=2 * late + 2000)
    if waits:  # else the run ends before the responses
        for k, (layout, content, images) in enumerate(contents):
            _check_memory(
                layout, content, images, [channel.seen[_BASE * (k + 1)] for channel in channels], steps
            )
    return all(sink.tokens == rows for sink, rows in zip(sinks, expected, strict=True))


def _check_memory(layout: KvLayout, content: Any, before: Any, after: Any, steps: Any) -> None:
    """What was appended lies where the layout says, and nothing else has changed."""
    end = steps[-1][0] + steps[-1][1]
    images = layout.pack(content.astype(formats.numpy_dtype(layout.dtype)))
    expected = [bytearray(image) for image in before]
    for layer in range(layout.layers):
        for head in range(layout.heads):
            for position in range(end):
                c, beat = layout.place(layer, head, position)
                place = slice(64 * beat, 64 * (beat + layout.row_beats))
                expected[c][place] = images[c][place]
    assert expected == list(after)


STEPS = [(0, 3), (3, 1), (4, 1)]


@pytest.mark.parametrize(("late", "steps"), [(0, 3), (1000, 2)])
def test_a_step_reads_what_it_appended(late: int, steps: int) -> None:
    """Prefill and decode over two layers, codes and scales on one channel, responses 1,000 cycles late."""
    assert _run_cache(STEPS[:steps], late=late, waits=1, ordered=late > 0, seed=late)


def test_without_waiting_it_would_not() -> None:
    """The memory of these tests shows a read that comes too soon."""
    assert not _run_cache(STEPS[:1], late=1000, waits=0, ordered=False, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_many_steps(seed: int) -> None:
    steps = [(0, 4), *((position, 1) for position in range(4, 9)), (9, 3)]
    assert _run_cache(steps, late=(0, 40, 1000, 1000)[seed], waits=1, ordered=bool(seed % 2), seed=seed)


def test_the_layout_is_what_it_says() -> None:
    """Every row has a place of its own; pack and unpack are inverse and agree with `place`."""
    for layout in LAYOUTS:
        rng = np.random.default_rng(layout.width)
        shape = (layout.layers, layout.heads, layout.positions, layout.width)
        array = rng.integers(-128, 128, shape).astype(formats.numpy_dtype(layout.dtype))
        images = layout.pack(array)
        assert [len(image) for image in images] == [64 * layout.beats] * layout.channels
        assert np.array_equal(layout.unpack(images), array)
        row = ITensor(layout.memory.element_shape, layout.dtype, (1,), (1,), ((0,), ()))
        places = set()
        for layer, head, position in np.ndindex(shape[:3]):
            c, beat = layout.place(layer, head, position)
            places.add((c, beat))
            stored = layout.memory.unpack(row, images[c][64 * beat : 64 * (beat + layout.row_beats)])
            assert stored[0, : layout.width].tolist() == array[layer, head, position].tolist()
            assert not stored[0, layout.width :].any()
        assert len(places) == np.prod(shape[:3])
        assert sum(layout.rows(layout.positions)) == layout.positions


def test_rows_read_are_one_piece() -> None:
    """The first n rows of a head lie in each channel from the begin of its stripe on, without a hole."""
    layout = LAYOUTS[2]
    for count in (1, 3, 4, 39, 40):
        for c, here in enumerate(layout.rows(count)):
            places = [layout.place(1, 1, position) for position in range(count)]
            mine = [beat for channel, beat in places if channel == c]
            begin = layout.place(1, 1, 0)[1]
            assert mine == list(range(begin, begin + here * layout.row_beats, layout.row_beats))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 0}, "KvLayout.width is 0; at least 1 is needed"),
        ({"heads": 0}, "KvLayout.heads is 0; at least 1 is needed"),
        ({"positions": -1}, "KvLayout.positions is -1; at least 1 is needed"),
        ({"channels": 12}, "KvLayout.channels is 12; it must be a power of two"),
        ({"layers": 1 << 30}, "the cache has 10737418240 beats a channel; 2^32 - 1 are allowed"),
    ],
)
def test_bad_layouts(change: dict[str, int], message: str) -> None:
    choices: dict[str, Any] = {"width": 70, "heads": 1, "layers": 2, "positions": 20, "channels": 4}
    with pytest.raises(ValueError) as caught:
        KvLayout(dtype="i8", **choices | change)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.place(3, 0, 0), "layer is 3; the cache has 3"),
        (lambda x: x.place(0, 3, 0), "head is 3; the cache has 3"),
        (lambda x: x.place(0, 0, 37), "position is 37; the cache has 37"),
        (lambda x: x.place(0, 0, -1), "position is -1; the cache has 37"),
        (
            lambda x: x.pack(np.zeros((3, 3, 37, 21), np.int8)),
            "the cache holds (3, 3, 37, 20); the array has (3, 3, 37, 21)",
        ),
        (lambda x: x.unpack([b""]), "the cache lies in 2 channels; there are 1 images"),
    ],
)
def test_bad_places(call: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        call(LAYOUTS[1])
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("params", "bounds", "message"),
    [
        (KvAppendParams, {"layer": 3}, "KvAppend: layer is 3; it must be 0 to 2"),
        (KvAppendParams, {"position": 37}, "KvAppend: position is 37; it must be 0 to 36"),
        (KvAppendParams, {"rows": 0}, "KvAppend: rows is 0; it must be 1 to 36"),
        (KvAppendParams, {"rows": 37}, "KvAppend: rows is 37; it must be 1 to 36"),
        (KvReadParams, {"layer": -1}, "KvRead: layer is -1; it must be 0 to 2"),
        (KvReadParams, {"rows": 0}, "KvRead: rows is 0; it must be 1 to 37"),
        (KvReadParams, {"rows": 38}, "KvRead: rows is 38; it must be 1 to 37"),
        (KvReadParams, {"waits": 16}, "KvRead: waits is 16; it must be 0 to 15"),
    ],
)
def test_bad_bounds(params: Any, bounds: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        params(layout=LAYOUTS[1]).describe({"layer": 0, "position": 1, "rows": 1, "waits": 0} | bounds)
    assert str(caught.value) == message
