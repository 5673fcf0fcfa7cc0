"""Passes over a KV cache in memory whose writes come late: each sees what those before it have appended.

Rows of a pass go to store and load at the same time, as in a decoder; the next pass begins when the stores
have said that all is in memory.
"""

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from sim.axi import AxiBench, Source
from sim.memory import MEMORY, Channel
from streamgen.artifact.kv_layout import KvLayout
from streamgen.kernels.memory import KvLoadParams, KvStoreParams
from streamgen.numbers import formats
from streamgen.platform.axi import AxiSignature
from streamgen.platform.master import ChannelMasterParams
from streamgen.runtime.memory import MemoryModel
from streamgen.testing.kernel import descriptor_word, encode_port
from tests.shared.campaigns import sampled
from tests.unit.kernels.memory.test_memory_promises import Done

_BASE = 1 << 20
CODES = KvLayout(dtype="i8", width=64, heads=2, layers=2, positions=12, channels=4)
SCALES = KvLayout(dtype="i24", width=2, heads=1, layers=2, positions=12, channels=4)
LOADS = [
    KvLoadParams(layout=CODES, lanes=2, max_new=4, max_again=3, **MEMORY),
    KvLoadParams(layout=SCALES, lanes=4, parts=2, max_new=4, max_again=3, **MEMORY),
]
IN_PIECES = [replace(load, pieces=2) for load in LOADS]  # those of scales are stored row by row


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


def store_of(load: KvLoadParams) -> KvStoreParams:
    """What appends the rows that a load sees."""
    return KvStoreParams(layout=load.layout, pieces=load.pieces if load.layout.heads > 1 else 1, **MEMORY)


class Cache(wiring.Component):
    """Caches of several layouts, as a design has them, over the same channels."""

    def __init__(self, loads: list[KvLoadParams]) -> None:
        self.loads = [load.build() for load in loads]
        self.stores = [store_of(load).build() for load in loads]
        self.channels = range(loads[0].layout.channels)
        super().__init__({f"m_axi_{c}": Out(AxiSignature()) for c in self.channels})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        count = len(self.loads)
        for c in self.channels:
            master = ChannelMasterParams(readers=count, writers=count).build()
            m.submodules[f"master_{c}"] = master
            wiring.connect(m, wiring.flipped(getattr(self, f"m_axi_{c}")), master.m_axi)
            for kind, several in (("read", self.loads), ("write", self.stores)):
                for k, one in enumerate(several):
                    wiring.connect(m, getattr(one, f"memory_{c}"), getattr(master, f"{kind}_{k}"))
                    m.d.comb += getattr(one, f"base_{c}").eq(_BASE * (k + 1))
        for kind, several in (("load", self.loads), ("store", self.stores)):
            for k, one in enumerate(several):
                m.submodules[f"{kind}_{k}"] = one
        return m


class Gated(Source):
    """Shows token k when the stores have said often enough that all is in memory."""

    def __init__(self, *arguments: Any, gates: list[int], stores: list[Done]) -> None:
        super().__init__(*arguments)
        self._gates, self._stores, self._pause = gates, stores, self._chance

    def step(self, cycle: int, values: Any, drive: Any) -> bool:
        following = len(self.cycles) + int(values[0] and values[1])
        done = min(len(store.cycles) for store in self._stores)
        shut = following < len(self._gates) and done < self._gates[following]
        self._chance = 1.0 if shut else self._pause
        return super().step(cycle, values, drive)


def _image(layout: KvLayout, seed: int) -> tuple[bytes, ...]:
    """Of the channels, full of rows."""
    shape = (layout.layers, layout.heads, layout.positions, layout.width)
    rows = np.random.default_rng([layout.width, seed]).integers(-128, 128, shape)
    return layout.pack(rows.astype(formats.numpy_dtype(layout.dtype)))


def _rows(layout: KvLayout, image: bytes) -> np.ndarray:
    """A channel as golden sees it."""
    return layout.memory.unpack(layout.order, image).reshape(-1, layout.padded_width)


def _run_passes(
    steps: list[tuple[int, int]], *, late: int, seed: int, loads: list[KvLoadParams] = LOADS
) -> bool:
    """Passes (position, rows), each over both layers. True if every tile is right."""
    top, random = Cache(loads), Random(seed)
    bench = AxiBench(top, seed=seed, chance=0.2)
    images = [_image(load.layout, seed) for load in loads]
    channels = []
    for c in top.channels:
        buffers = {_BASE * (k + 1): bytearray(image[c]) for k, image in enumerate(images)}
        channel = LateChannel(MemoryModel(rate=1, latency=15, delays=8, seed=seed), c, buffers)
        channel.late = late
        channels.append(channel)
        bench.memory(getattr(top, f"m_axi_{c}"), channel, f"memory {c}")
    done = [bench.add(Done(store.done, 2 * len(steps))) for store in top.stores]
    sinks, expected, latest = [], [], []
    for k, load in enumerate(loads):
        layout, store = load.layout, store_of(load)
        memory = {f"memory_{c}": _rows(layout, image) for c, image in enumerate(images[k])}
        words: tuple[list[int], list[int]] = ([], [])
        tokens: tuple[list[int], list[int]] = ([], [])
        gates: tuple[list[int], list[int], list[int]] = ([], [], [])
        tiles: list[int] = []
        for n, (position, rows) in enumerate(steps):
            for layer in range(layout.layers):
                bounds = {"layer": layer, "position": position, "rows": rows, "again": 1 + n % 3}
                orders = [one.inputs(bounds)["i"] for one in (store, load)]
                new = np.random.default_rng([n, layer, seed]).integers(-128, 128, orders[0].shape)
                new = new.astype(memory["memory_0"].dtype)
                words[0].append(descriptor_word(store, bounds))
                words[1].append(descriptor_word(load, bounds))
                for order, given, when in zip(orders, tokens, gates[1:], strict=True):
                    given += encode_port(order, new)
                    when += [2 * n] * order.token_count
                tiles += encode_port(
                    load.outputs(bounds)["o"], load.golden(bounds, {"i": new, **memory})["o"]
                )
                memory = store.golden(bounds, {"i": new, **memory})
                gates[0].append(2 * n)
        for m, (name, one) in enumerate((("store", top.stores[k]), ("load", top.loads[k]))):
            several = ((one.i_descriptor, words[m], gates[0]), (one.i, tokens[m], gates[1 + m]))
            for interface, given, when in several:
                bench.add(Gated(f"{name} {k}", interface, given, 0.2, random, gates=when, stores=done))
        sinks.append(bench.sink(top.loads[k].o, len(tiles), f"tiles {k}"))
        expected.append(tiles)
        latest.append((layout, memory))
    bench.run(watchdog=2 * late + 2000)
    for k, (layout, memory) in enumerate(latest):  # what was appended is there, nothing else has changed
        for c, channel in enumerate(channels):
            found = _rows(layout, bytes(channel.seen[_BASE * (k + 1)]))
            np.testing.assert_array_equal(found, memory[f"memory_{c}"])
    return all(sink.tokens == tiles for sink, tiles in zip(sinks, expected, strict=True))


STEPS = [(0, 3), (3, 1), (4, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(("late", "steps", "loads"), [(0, 3, LOADS), (1000, 2, LOADS), (0, 3, IN_PIECES)])
def test_a_pass_sees_itself_and_those_before(late: int, steps: int, loads: list[KvLoadParams]) -> None:
    """Prefill and decode over two layers, codes and scales on the same channels, late answers."""
    assert _run_passes(STEPS[:steps], late=late, seed=late, loads=loads)


@pytest.mark.slow
@pytest.mark.parametrize("loads", [LOADS, IN_PIECES])
@pytest.mark.parametrize("seed", sampled(range(4), [0]))
def test_many_passes(seed: int, loads: list[KvLoadParams]) -> None:
    steps = [(0, 4), *((position, 1) for position in range(4, 9)), (9, 3)]
    assert _run_passes(steps, late=(0, 40, 1000, 1000)[seed], seed=seed, loads=loads)
