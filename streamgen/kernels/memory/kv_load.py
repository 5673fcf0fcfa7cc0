"""The KV cache out of memory, tile by tile, with the rows of the pass that are on their way into it.

    o = cache[layer, head, p]        head by head, p < position + rows; a head is sent `again` times

Rows of positions before the pass lie as `buffers.kv_layout` says, in a buffer of each channel (memory ports
`memory_<c>`); they are asked for as soon as there is a descriptor. Those of the pass come in on `i`, as a
`KvStore` takes them: nobody waits for memory to have them.

A load without rows of the pass (`max_new` 0) sends what the host has written, and has no port `i`.

Tiles in: `i` (1, width), position by position, head by head, or in several `pieces`. Out: `o` (lanes, width /
parts) of a tensor [positions padded to tiles, heads * width], zeros in the padding. Inside are a `KvRead`,
which says where the rows lie, a `Load` for each channel, and `KvTiles`, which puts them together and holds
the longest context.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from operator import add
from typing import Any, ClassVar, Literal

import numpy as np
from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.artifact.kv_layout import KvLayout
from streamgen.artifact.packing import BEAT_BITS
from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve
from streamgen.fifo.clocks import Clocks
from streamgen.fifo.curves import KernelSide, NodeStream
from streamgen.gateware.rtl import Shared
from streamgen.gateware.stream import descriptor_signature
from streamgen.itensor import ITensor
from streamgen.kernels.attention.kv_cache import KvReadParams, rows_of_pass
from streamgen.kernels.memory.joints import COMMAND, beat_pace, join, paced, unused
from streamgen.kernels.memory.kv_tiles import KvTilesParams
from streamgen.platform.axi import ReadPort
from streamgen.platform.dma import LoadParams

_ASKED = 3  # cycles to the command, beside those of the load
_BUILT = 1  # from a row taken to its tile in the ring
_OWN = 3  # from a row of the pass taken to its tile in the ring
_SENT = 2  # from a tile in the ring to the tile sent
_FIRST_OWN = 2  # cycle in which the first row of the pass is taken


@dataclass(frozen=True, kw_only=True)
class KvLoadParams:
    """layout: the cache. lanes: positions of a tile, a divisor of the channels. parts: of a row, sent one
    after the other (a row of scales holds those of all heads). pieces: the pieces in which rows of the pass
    come: some heads or, if there is one head, some parts, of all positions, then the next. max_new: positions
    of a pass; 0 for a cache that the host writes. max_again: the most times that a head is sent. prefetch,
    burst, rate, latency: as of a Load.

    Bounds: layer, position (of the first row of the pass), rows (positions of the pass), again.
    """

    layout: KvLayout
    lanes: int = 1
    parts: int = 1
    pieces: int = 1
    max_new: int
    max_again: int = 1
    prefetch: int = 32
    burst: int = 16
    rate: float
    latency: int
    link_depth: ClassVar[int] = 1
    patient: ClassVar[bool] = True  # the ring of its tiles holds the longest context

    def __post_init__(self) -> None:
        self.tiles  # noqa: B018 which checks them

    @property
    def read(self) -> KvReadParams:
        """The unit that finds the rows."""
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
    def tiles(self) -> KvTilesParams:
        """The unit that joins rows and holds a context."""
        return KvTilesParams(
            layout=self.layout,
            lanes=self.lanes,
            parts=self.parts,
            pieces=self.pieces,
            max_new=self.max_new,
            max_again=self.max_again,
        )

    @property
    def held_bits(self) -> int:
        return self.tiles.held_bits

    @property
    def memory_ports(self) -> Mapping[str, Literal["read"]]:
        return {f"memory_{c}": "read" for c in range(self.layout.channels)}

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": rows_of_pass(self.layout, bounds["rows"], self.pieces)} if self.max_new else {}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        layout, width = self.layout, self.layout.width // self.parts
        loops = (layout.heads * self.parts, bounds["again"], self._count(bounds))
        return {
            "o": ITensor((self.lanes, width), layout.dtype, loops, (width, 1, self.lanes), ((2,), (0,))),
        }

    def descriptor_fields(self) -> tuple[Field, ...]:
        """Beats before the layer, then those of the tiles."""
        return self.read.descriptor_fields()[:1] + self.tiles.descriptor_fields()

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        position, rows, again = (bounds[name] for name in ("position", "rows", "again"))
        base = self.read.describe({"layer": bounds["layer"], "rows": position})["base"]
        most = min(self.max_new, self.layout.positions - position)
        limits = [("again", again, 1, self.max_again)]
        if self.max_new:
            limits.append(("rows", rows, 1, most))
        else:
            limits += [("rows", rows, 0, 0), ("position", position, 1, self.layout.positions)]
        for name, value, least, most in limits:
            if not least <= value <= most:
                raise ValueError(f"KvLoad: {name} is {value}; it must be {least} to {most}")
        values = {"base": base, "position": position, "rows": rows, "again": again}
        return {name: values[name] for name in (field.name for field in self.descriptor_fields())}

    def traffic(self, bounds: Bounds) -> Mapping[str, int]:
        return self.layout.traffic(0, bounds["position"])

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """`memory_<c>`: the rows of the cache in a channel, [rows, padded width]."""
        layout, position = self.layout, bounds["position"]
        shape = (self._count(bounds) * self.lanes, layout.heads * layout.width)
        result = np.zeros(shape, inputs["i" if self.max_new else "memory_0"].dtype)
        for head in range(layout.heads):
            for p in range(position):
                channel, beat = layout.place(bounds["layer"], head, p)
                row = inputs[f"memory_{channel}"][beat // layout.row_beats]
                result[p, head * layout.width : (head + 1) * layout.width] = row[: layout.width]
        if self.max_new:
            result[position : position + bounds["rows"]] = inputs["i"]
        return {"o": result}

    def cost(self, bounds: Bounds) -> Cost:
        cycles = self.curves(bounds)["o"].cycles()
        parts = [self.read.cost({**bounds, "rows": 0}).resources, self.tiles.resources]
        padding = BEAT_BITS - self.tiles.row_bits if self.layout.row_beats == 1 else 0
        queue = self.load.client.queue
        parts += [self.load._resources + -1 * unused(queue, BEAT_BITS, padding)] * self.layout.channels
        ii = float(cycles[-1] - cycles[0]) / (len(cycles) - 1) if len(cycles) > 1 else 1.0
        return Cost(
            resources=reduce(add, parts),
            ii=max(1.0, ii),
            latency=int(cycles[0]) - 2,
            cycles=int(cycles[-1]) + 1,
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        """The first time, a head is sent as memory and the rows of the pass come; later a tile per cycle."""
        position, rows = bounds["position"], bounds["rows"]
        tiles, whole, times = self._count(bounds), self._whole(bounds), self._times(bounds)
        pace = self._pace(position)
        own = _FIRST_OWN + 1 + self._arrivals(rows)
        of_rows = self.tiles.row_pieces > 1
        sent = _SENT + self.tiles.piece_words - 1
        memory = _ASKED + self.load._first + _BUILT  # to the first tile that has rows of memory
        memory += _SENT + self.tiles.words - 1 if whole else sent
        pieces: list[Any] = []
        end = 0
        for head in range(self.tiles.turns):
            in_memory = 0 if of_rows else head  # heads before this one
            begin = max(end, memory + int(pace * whole * in_memory) if position else 0)
            if whole:
                first = paced(begin, whole, pace if times == 1 or not head else Fraction(1))
                pieces += first.pieces
                end = int(first.cycles()[-1]) + 1
            else:
                end = begin
            for k in range(tiles - whole):  # rows of the pass one after the other
                there = min(rows, (k + 1) * self.lanes - position % self.lanes)
                last = int(own[head, rows - 1 if of_rows else there - 1]) + _OWN + sent - 1
                done = min(self.lanes, rows) if k else min(self.lanes - position % self.lanes, rows)
                end = max(end + done - 1 if done > 1 else end, last if not head or rows > 1 else 0)
                pieces.append((end, ()))
                end += 1
            if times > 1:
                pieces.append((end, ((times - 1, tiles), (tiles, 1))))
                end += (times - 1) * tiles
        curves = {"o": Curve(tuple(pieces))}
        return {"i": Curve.nest(_FIRST_OWN, (rows * self.tiles.turns, 1)), **curves} if rows else curves

    def clocks(self, bounds: Bounds) -> Clocks:
        """A command for each head to every channel; rows from there and those of the pass fill the ring."""
        layout, position, rows = self.layout, bounds["position"], bounds["rows"]
        heads, turns = np.arange(layout.heads), np.arange(self.tiles.turns)
        tiles, whole, times = self._count(bounds), self._whole(bounds), self._times(bounds)
        of_rows = self.tiles.row_pieces > 1
        # Steps in which a tile is put together: one for each row of the pass, at least one. Of tiles with
        # such rows a piece is put together in each turn, the others are in the first one.
        tile_of_own = (position + np.arange(rows)) // self.lanes
        steps = np.maximum(1, np.bincount(tile_of_own, minlength=tiles))
        first, per_turn = np.cumsum(steps) - steps, int(steps[whole if of_rows else 0 :].sum())
        order = np.concatenate([np.arange(whole if turn and of_rows else 0, tiles) for turn in turns])
        # The next tile begins when all words of the one before are in the ring.
        words = np.full(tiles, self.tiles.words)
        words[whole:] //= self.tiles.row_pieces
        waits = np.cumsum(words[order] - 1) - (words[order] - 1)
        built = np.arange(int(steps[order].sum())) + np.repeat(waits, steps[order])
        ask = KernelSide("ask", _ASKED + heads)
        begin = _FIRST_OWN + _OWN  # what comes out of memory waits for it
        fill = KernelSide("fill", begin + built, None)
        sent = np.arange(len(turns) * times * tiles)
        send = KernelSide("send", begin + _SENT + int(words[0]) - 1 + sent)
        parts, transfers = [ask], []
        streams: list[NodeStream] = []
        begins = [layout.place(bounds["layer"], head, 0)[1] for head in range(layout.heads)]
        for c, count in enumerate(layout.rows(position)):
            pop, row, ways = self.load.unpacked(layout.heads * count, f"_{c}")
            parts += [pop, row]
            if count:
                at = first[(c + layout.channels * np.arange(count)) // self.lanes]
                mine, own = (heads[:, None] * per_turn + at).ravel(), np.arange(layout.heads * count)
                streams += [*ways, row.to(fill, own, mine, latency=_BUILT)]
                streams.append(fill.to(row, mine[:-1], own[1:], latency=0))
                beats = [count * layout.row_beats] * layout.heads
                transfers.append(self.load.reads(f"memory_{c}", (ask, heads), pop, beats, begins))
        ports = {}
        if rows:
            # Rows of the pass are taken in another order than they come: only a new latest one waits.
            take = KernelSide("take", _FIRST_OWN + np.arange(rows * len(turns)))
            at = first[tile_of_own] + np.arange(rows) - np.searchsorted(tile_of_own, tile_of_own)
            wanted, mine = self._arrivals(rows).ravel(), (turns[:, None] * per_turn + at).ravel()
            latest = np.flatnonzero(np.diff(np.maximum.accumulate(wanted), prepend=-1) > 0)
            streams.append(take.to(fill, wanted[latest], mine[latest], latency=_OWN))
            parts.append(take)
            ports["i"] = (take, np.arange(rows * len(turns)))
        # A tile is there after its last step, a piece with the last one of its turn.
        ends = turns[:, None] * per_turn + first + steps - 1
        reads = (turns[:, None, None] * times + np.arange(times)[:, None]) * tiles + np.arange(tiles)
        latency = _SENT + int(words[-1]) - 1
        if of_rows:
            streams.append(fill.to(send, ends[:, -1], reads[:, 0, whole], latency=latency))
            if whole:
                more = int(words[0] - words[-1])
                streams.append(fill.to(send, ends[0, :whole], reads[0, 0, :whole], latency=latency + more))
        else:
            streams.append(fill.to(send, ends.ravel(), reads[:, 0].ravel(), latency=latency))
        # Its place is free when it is read the last time.
        depth, last, ends = self.tiles.depth, reads[:, -1].ravel(), ends.ravel()
        if len(ends) > depth and not of_rows:
            streams.append(send.to(fill, last[:-depth], ends[depth:], latency=0))
        ports["o"] = (send, sent)
        return Clocks((*parts, fill, send), ports, tuple(streams), tuple(transfers))

    def build(self) -> "KvLoad":
        return KvLoad(self)

    def _times(self, bounds: Bounds) -> int:
        """The number of times that tiles, or parts of them, are sent for a head or for a piece of a row."""
        times: int = bounds["again"] * self.parts // self.tiles.row_pieces
        return times

    def _arrivals(self, rows: int) -> ndarray:
        """The index of the token on `i` for a head, or a piece of a row, at a position: [turns, rows]."""
        turns = self.tiles.turns
        together = turns // self.pieces
        turn, row = np.arange(turns)[:, None], np.arange(rows)
        return (turn // together * rows + row) * together + turn % together

    def _count(self, bounds: Bounds) -> int:
        """Tiles of a head."""
        return -(-(bounds["position"] + bounds["rows"]) // self.lanes)

    def _whole(self, bounds: Bounds) -> int:
        """Tiles of a head without rows of the pass."""
        return bounds["position"] // self.lanes if self.max_new else self._count(bounds)

    def _pace(self, rows: int) -> Fraction:
        """Cycles of a tile: a head is one command to each channel, and channels take turns."""
        if not rows:
            return Fraction(1)
        layout = self.layout
        beats = layout.heads * layout.row_beats * -(-rows // layout.channels)
        share = Fraction(layout.row_beats * self.lanes, layout.channels)
        return max(
            Fraction(COMMAND * self.lanes, rows),
            share * beat_pace(self.load, beats),
            Fraction(self.tiles.words),
        )


class KvLoad(wiring.Component):
    """The hardware of a KvLoadParams; `base_<c>`: the byte address of the cache's buffer in a channel."""

    def __init__(self, params: KvLoadParams) -> None:
        self.params = params
        channels = range(params.layout.channels)
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                **({"i": In(stream.Signature(params.tiles.own_bits))} if params.max_new else {}),
                "o": Out(stream.Signature(params.tiles.out_bits)),
                **{f"memory_{c}": Out(ReadPort) for c in channels},
                **{f"base_{c}": In(64) for c in channels},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        params = self.params
        m.submodules.read = read = params.read.build()
        m.submodules.tiles = tiles = params.tiles.build()
        fields, both = self.i_descriptor.payload, (read.i_descriptor, tiles.i_descriptor)
        for source, other in (both, both[::-1]):
            m.d.comb += source.valid.eq(self.i_descriptor.valid & other.ready)
        m.d.comb += [
            self.i_descriptor.ready.eq(read.i_descriptor.ready & tiles.i_descriptor.ready),
            read.i_descriptor.payload.base.eq(fields.base),
            read.i_descriptor.payload.rows.eq(fields.position),
            *(
                tiles.i_descriptor.payload[f.name].eq(fields[f.name])
                for f in params.tiles.descriptor_fields()
            ),
        ]
        if params.max_new:
            join(m, self.i, tiles.i)
        join(m, tiles.o, self.o)
        for c in range(params.layout.channels):
            m.submodules[f"load_{c}"] = load = Shared(params.load)
            wiring.connect(m, wiring.flipped(getattr(self, f"memory_{c}")), load.memory)
            m.d.comb += load.base.eq(getattr(self, f"base_{c}"))
            join(m, getattr(read, f"o_descriptor_{c}"), load.i_descriptor)
            rows = getattr(tiles, f"i_{c}")
            m.d.comb += [
                rows.valid.eq(load.o.valid),
                rows.payload.eq(load.o.payload[: params.tiles.row_bits]),
                load.o.ready.eq(rows.ready),
            ]
        return m
