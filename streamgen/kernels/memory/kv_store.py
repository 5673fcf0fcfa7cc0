"""Rows into the KV cache in memory.

    cache[layer, head, position + t] = row (t, head) of i        t < rows

Rows lie as `buffers.kv_layout` says, in a buffer of each channel (memory ports `memory_<c>`). Tiles in:
`i` (1, width), position by position, head by head, or in several `pieces`. Inside are a `KvAppend`, which
finds the places and knows when all rows of a descriptor are in memory, and a `Store` for each channel.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from operator import add
from typing import Any, Literal

import numpy as np
from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.artifact.kv_layout import KvLayout
from streamgen.artifact.packing import BEAT_BITS
from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve
from streamgen.fifo.clocks import Clocks, Transfers
from streamgen.fifo.curves import KernelSide
from streamgen.gateware.rtl import Shared
from streamgen.gateware.stream import descriptor_signature
from streamgen.itensor import ITensor
from streamgen.kernels.attention.kv_cache import KvAppendParams
from streamgen.kernels.memory.joints import COMMAND, join, paced, unused
from streamgen.platform.axi import WritePort
from streamgen.platform.dma import StoreParams

_PUSHED = 2  # cycles from a row to its first beat in the FIFO of its store
_COUNTED = 5  # cycles from a response to `done`, when it is the last one
_DONE = 12  # cycles from the last row to `done`, beside those of the store


@dataclass(frozen=True, kw_only=True)
class KvStoreParams:
    """layout: the cache. pieces: the number of pieces in which the heads come, a divisor of the heads: the
    first piece of all positions comes before the second. rate, latency: of the memory, as of a Store.

    Bounds: layer, position (of the first row), rows (positions to append).
    """

    layout: KvLayout
    pieces: int = 1
    rate: float
    latency: int

    @property
    def append(self) -> KvAppendParams:
        """The unit that finds the places."""
        return KvAppendParams(layout=self.layout, pieces=self.pieces)

    @property
    def store(self) -> StoreParams:
        """The store of a channel. A row of one beat is a command of its own, so no row waits for others."""
        depth, burst = (1, 1) if self.layout.row_beats == 1 else (8, 4)
        return StoreParams(
            layout=self.layout.memory,
            max_tokens=1,
            depth=depth,
            burst=burst,
            rate=self.rate,
            latency=self.latency,
        )

    @property
    def memory_ports(self) -> Mapping[str, Literal["write"]]:
        return {f"memory_{c}": "write" for c in range(self.layout.channels)}

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": self.append.inputs(bounds)["i"]}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {}

    def descriptor_fields(self) -> tuple[Field, ...]:
        return self.append.descriptor_fields()

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        return self.append.describe(bounds)

    def traffic(self, bounds: Bounds) -> Mapping[str, int]:
        return self.layout.traffic(bounds["position"], bounds["rows"])

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """`memory_<c>`: the rows of the cache in a channel, [rows, padded width]."""
        layout = self.layout
        memory = {name: inputs[name].copy() for name in self.memory_ports}
        rows = inputs["i"].reshape(bounds["rows"], layout.heads, layout.width)
        for t, heads in enumerate(rows):
            for head, row in enumerate(heads):
                channel, beat = layout.place(bounds["layer"], head, bounds["position"] + t)
                place = memory[f"memory_{channel}"][beat // layout.row_beats]
                place[:] = 0
                place[: layout.width] = row
        return memory

    def cost(self, bounds: Bounds) -> Cost:
        """Cycles until the rows are in memory."""
        parts = [self.append.cost(bounds).resources]
        append, queue = self.append, self.store.client.queue
        padding = append.memory_bits - append.row_bits if self.layout.row_beats == 1 else 0
        stored = queue.bits - BEAT_BITS + append.memory_bits
        parts += [self.store._resources + -1 * unused(queue, stored, padding)] * self.layout.channels
        appended = self._appended(bounds)
        ii = max(1.0, float(self._pace))
        return Cost(resources=reduce(add, parts), ii=ii, latency=appended, cycles=appended + 1)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        return {"i": paced(1, self.describe(bounds)["rows"], self._pace)}

    def _appended(self, bounds: Bounds) -> int:
        """The cycle in which all rows are in memory."""
        written = int(self.layout.row_beats / self.rate) + self.store.client.queue.latency
        return int(self.curves(bounds)["i"].cycles()[-1]) + written + self.latency + _DONE

    def clocks(self, bounds: Bounds) -> Clocks:
        """Rows go to the store of their channel, each with a command; the last response is the end."""
        layout, first, rows = self.layout, bounds["position"], bounds["rows"]
        take = KernelSide("take", self.curves(bounds)["i"].cycles(), None)
        appended = KernelSide("appended", np.array([self._appended(bounds)]))
        every, client = np.arange(rows * layout.heads), self.store.client
        order = every.reshape(rows, -1, self.append.together).swapaxes(0, 1).ravel()  # t * heads + head
        positions, heads = first + order // layout.heads, order % layout.heads
        channels = positions % layout.channels
        parts, streams, transfers = [take], [], []
        for c in range(layout.channels):
            mine = every[channels == c]
            beats = np.arange(len(mine) * layout.row_beats)
            push = KernelSide(f"push_{c}", _PUSHED + beats)
            parts.append(push)
            if len(mine):
                streams.append(take.to(push, mine, beats[:: layout.row_beats], latency=_PUSHED))
                places = [layout.place(bounds["layer"], int(heads[k]), int(positions[k]))[1] for k in mine]
                transfers.append(
                    Transfers(
                        port=f"memory_{c}",
                        burst=client.burst,
                        depth=client.depth,
                        latency=_COUNTED,
                        beats=np.full(len(mine), layout.row_beats),
                        offsets=np.array(places),
                        part=push,
                        moves=beats,
                        done=(appended, np.zeros(1, np.int64)),
                    )
                )
        return Clocks((*parts, appended), {"i": (take, every)}, tuple(streams), tuple(transfers))

    def build(self) -> "KvStore":
        return KvStore(self)

    @property
    def _pace(self) -> Fraction:
        """Cycles of a row: those of memory, unless the path to it takes longer.

        A row of one beat delays the next one until its command is taken. Longer rows of a position go to one
        channel beat by beat, and two cycles pass until the next channel has its turn.
        """
        layout = self.layout
        turns = min(layout.channels, 2)  # the store of one channel drains while another one fills
        memory = Fraction(layout.row_beats, turns) / Fraction(self.rate).limit_denominator(64)
        if layout.row_beats == 1:
            return max(Fraction(COMMAND), memory)
        together = self.append.together
        if layout.channels == 1 or together == 1:
            return memory
        return max(memory, Fraction((together - 1) * layout.row_beats + 2, together))


class KvStore(wiring.Component):
    """The hardware of a KvStoreParams; `base_<c>`: the byte address of the cache's buffer in a channel."""

    def __init__(self, params: KvStoreParams) -> None:
        self.params = params
        channels = range(params.layout.channels)
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(stream.Signature(params.append.row_bits)),
                **{f"memory_{c}": Out(WritePort) for c in channels},
                **{f"base_{c}": In(64) for c in channels},
                "done": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.append = append = self.params.append.build()
        join(m, self.i_descriptor, append.i_descriptor)
        join(m, self.i, append.i)
        m.d.comb += [append.o_appended.ready.eq(1), self.done.eq(append.o_appended.valid)]
        for c in range(self.params.layout.channels):
            m.submodules[f"store_{c}"] = store = Shared(self.params.store)
            wiring.connect(m, wiring.flipped(getattr(self, f"memory_{c}")), store.memory)
            join(m, getattr(append, f"o_{c}"), store.i)
            join(m, getattr(append, f"o_descriptor_{c}"), store.i_descriptor)
            finished = getattr(append, f"i_done_{c}")
            m.d.comb += [
                store.base.eq(getattr(self, f"base_{c}")),
                finished.valid.eq(store.done),
                finished.payload.eq(1),
            ]
        return m
