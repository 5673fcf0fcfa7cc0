"""Rows out of the KV cache in memory, when those that must be there are.

    o = cache[layer, head, p]        head by head, p < rows

Rows lie as `buffers.kv_layout` says, in a buffer of each channel (memory ports `memory_<c>`); successive
positions come from successive channels in turn. Tiles out: `o` (1, width) of a tensor [rows, heads * width].
`i_appended`: tokens of a `KvStore`, `waits` of them before the first row is asked for. Inside are a `KvRead`,
which says where the rows lie, a `Load` for each channel, and what takes their rows in turn.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from operator import add
from typing import Any, Literal

import numpy as np
from amaranth import Array, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for
from numpy import ndarray

from streamgen.boards import DEFAULT_BOARD
from streamgen.buffers.kv_layout import KvLayout
from streamgen.buffers.packing import BEAT_BITS
from streamgen.contract import Bounds, Field
from streamgen.cost import Cost, Curve, Resources
from streamgen.fifo.clocks import Clocks
from streamgen.fifo.curves import Part
from streamgen.fifo.queue import Queue, QueueParams
from streamgen.itensor import ITensor
from streamgen.kernels.attention.kv_cache import KvReadParams
from streamgen.memory.joints import COMMAND, beat_pace, join, paced, unused
from streamgen.numbers import formats
from streamgen.platform.axi import ReadPort
from streamgen.platform.dma import LoadParams
from streamgen.stream import RegisterSlice, RegisterSliceParams, descriptor_signature

__all__ = ["KvLoad", "KvLoadParams"]

_OVERHEAD = 4  # cycles from the last token awaited to the first row, beside those of the load


@dataclass(frozen=True, kw_only=True)
class KvLoadParams:
    """layout: the cache. prefetch, burst, rate, latency: as of a Load.

    Bounds: layer, rows (positions to read, from 0 on), waits (appends to wait for).
    """

    layout: KvLayout
    prefetch: int = 32
    burst: int = 16
    rate: float = DEFAULT_BOARD.rate
    latency: int = DEFAULT_BOARD.hbm.latency

    @property
    def read(self) -> KvReadParams:
        """What says where the rows lie."""
        return KvReadParams(layout=self.layout)

    @property
    def load(self) -> LoadParams:
        """The load of a channel."""
        return LoadParams(
            layout=self.layout.memory,
            max_tokens=self.layout.rows_per_channel,
            prefetch=self.prefetch,
            burst=self.burst,
            rate=self.rate,
            latency=self.latency,
        )

    @property
    def row_bits(self) -> int:
        return self.layout.width * formats.bits(self.layout.dtype)

    @property
    def turns(self) -> QueueParams:
        """Rows of the descriptors whose rows are still to be taken from the loads."""
        return QueueParams(bits=bits_for(self.layout.positions), depth=4)

    @property
    def memory_ports(self) -> Mapping[str, Literal["read"]]:
        return {f"memory_{c}": "read" for c in range(self.layout.channels)}

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return self.read.inputs(bounds)

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        layout = self.layout
        loops = (layout.heads, bounds["rows"])
        return {"o": ITensor((1, layout.width), layout.dtype, loops, (layout.width, 1), ((1,), (0,)))}

    def descriptor_fields(self) -> tuple[Field, ...]:
        return self.read.descriptor_fields()

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        return self.read.describe(bounds)

    def traffic(self, bounds: Bounds) -> Mapping[str, int]:
        return self.layout.traffic(0, bounds["rows"])

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """`memory_<c>`: the rows of the cache in a channel, [rows, padded width]."""
        layout, rows = self.layout, bounds["rows"]
        result = np.empty((rows, layout.heads * layout.width), inputs["memory_0"].dtype)
        for head in range(layout.heads):
            for p in range(rows):
                channel, beat = layout.place(bounds["layer"], head, p)
                row = inputs[f"memory_{channel}"][beat // layout.row_beats]
                result[p, head * layout.width : (head + 1) * layout.width] = row[: layout.width]
        return {"o": result}

    def cost(self, bounds: Bounds) -> Cost:
        last = int(self.curves(bounds)["o"].cycles()[-1])
        slice_ = RegisterSliceParams(bits=self.row_bits).resources
        # A bit of one of two channels fits into the LUT of the slice, that of four takes one of its own.
        choosing = -(-self.layout.channels // 4) if self.layout.channels > 2 else 0
        choice = Resources(lut=40 + self.row_bits * choosing, ff=30)
        parts = [self.read.cost(bounds).resources, self.turns.resources, slice_, choice]
        padding = BEAT_BITS - self.row_bits if self.layout.row_beats == 1 else 0
        queue = self.load.client.queue
        parts += [self.load._resources + -1 * unused(queue, BEAT_BITS, padding)] * self.layout.channels
        return Cost(
            resources=reduce(add, parts),
            ii=max(1.0, float(self._pace(bounds["rows"]))),
            latency=self._first(0),
            cycles=last + 1,
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        waits, rows = bounds["waits"], bounds["rows"]
        rows_out = paced(self._first(waits), self.layout.heads * rows, self._pace(rows))
        return {"o": rows_out} | ({"i_appended": Curve.nest(2, (waits, 1))} if waits else {})

    def clocks(self, bounds: Bounds) -> Clocks:
        """A command for each head to every channel; their rows leave in turn."""
        layout, rows, waits = self.layout, bounds["rows"], bounds["waits"]
        heads = np.arange(layout.heads)
        begins = [layout.place(bounds["layer"], head, 0)[1] for head in range(layout.heads)]
        wait, ask = Part("wait", 2 + np.arange(waits)), Part("ask", _OVERHEAD + waits + heads)
        send = Part("send", self.curves(bounds)["o"].cycles())
        every = np.arange(layout.heads * rows)
        parts, transfers = [wait, ask], []
        streams = [wait.to(ask, np.array([waits - 1]), heads[:1], latency=_OVERHEAD - 1)] if waits else []
        for c, count in enumerate(layout.rows(rows)):
            pop, row, ways = self.load.unpacked(layout.heads * count, f"_{c}")
            parts += [pop, row]
            if count:
                mine = every[every % rows % layout.channels == c]
                own, beats = np.arange(len(mine)), [count * layout.row_beats] * layout.heads
                streams += [*ways, row.to(send, own, mine), send.to(row, mine[:-1], own[1:], latency=0)]
                transfers.append(self.load.reads(f"memory_{c}", (ask, heads), pop, beats, begins))
        ports = {"o": (send, every)} | ({"i_appended": (wait, np.arange(waits))} if waits else {})
        return Clocks((*parts, send), ports, tuple(streams), tuple(transfers))

    def build(self) -> "KvLoad":
        return KvLoad(self)

    def _pace(self, rows: int) -> Fraction:
        """Cycles of a row: a head is a command to each channel, and channels take turns."""
        layout = self.layout
        beats = layout.heads * layout.row_beats * -(-rows // layout.channels)
        share = Fraction(layout.row_beats, layout.channels)
        return max(Fraction(COMMAND, rows), share * beat_pace(self.load, beats))

    def _first(self, waits: int) -> int:
        return waits + _OVERHEAD + self.load._first


class KvLoad(wiring.Component):
    """The hardware of a KvLoadParams; `base_<c>`: the byte address of the cache's buffer in a channel."""

    def __init__(self, params: KvLoadParams) -> None:
        self.params = params
        channels = range(params.layout.channels)
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i_appended": In(stream.Signature(1)),
                "o": Out(stream.Signature(params.row_bits)),
                **{f"memory_{c}": Out(ReadPort) for c in channels},
                **{f"base_{c}": In(64) for c in channels},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        params, layout = self.params, self.params.layout
        m.submodules.read = read = params.read.build()
        m.submodules.turns = turns = Queue(params.turns)
        m.d.comb += [
            read.i_descriptor.valid.eq(self.i_descriptor.valid & turns.i.ready),
            read.i_descriptor.payload.eq(self.i_descriptor.payload),
            turns.i.valid.eq(self.i_descriptor.valid & read.i_descriptor.ready),
            turns.i.payload.eq(self.i_descriptor.payload.rows),
            self.i_descriptor.ready.eq(read.i_descriptor.ready & turns.i.ready),
        ]
        join(m, self.i_appended, read.i_appended)
        rows = []
        for c in range(layout.channels):
            m.submodules[f"load_{c}"] = load = params.load.build()
            wiring.connect(m, wiring.flipped(getattr(self, f"memory_{c}")), load.memory)
            m.d.comb += load.base.eq(getattr(self, f"base_{c}"))
            join(m, getattr(read, f"o_descriptor_{c}"), load.i_descriptor)
            rows.append(load.o)
        m.submodules.out = out = RegisterSlice(RegisterSliceParams(bits=params.row_bits))
        join(m, out.o, self.o)
        self._take_turns(m, turns.o, rows, out.i)
        return m

    def _take_turns(self, m: Module, turns: Any, rows: list[Any], out: Any) -> None:
        """Head by head, position by position, the row of the channel whose turn it is."""
        layout = self.params.layout
        running, move = Signal(), Signal()
        channel = Signal(range(layout.channels))
        left = Signal(range(layout.positions + 1), reset_less=True)  # rows of the head that follow this one
        most = Signal.like(left)
        heads = Signal(range(layout.heads + 1), reset_less=True)  # that follow this one
        last = left == 0
        m.d.comb += [
            move.eq(out.valid & out.ready),
            out.valid.eq(running & Array(row.valid for row in rows)[channel]),
            out.payload.eq(Array(row.payload[: self.params.row_bits] for row in rows)[channel]),
            turns.ready.eq(~running | (move & last & (heads == 0))),
        ]
        for c, row in enumerate(rows):
            m.d.comb += row.ready.eq(running & out.ready & (channel == c))
        with m.If(move):
            turn = Mux(channel == layout.channels - 1, 0, channel + 1)
            m.d.sync += [channel.eq(Mux(last, 0, turn)), left.eq(Mux(last, most, left - 1))]
            with m.If(last):
                m.d.sync += [heads.eq(heads - 1), running.eq(heads != 0)]
        with m.If(turns.valid & turns.ready):
            fewer = (turns.payload - 1)[: len(left)]
            m.d.sync += [running.eq(1), left.eq(fewer), most.eq(fewer), heads.eq(layout.heads - 1)]
