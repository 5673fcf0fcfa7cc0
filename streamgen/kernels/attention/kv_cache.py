"""The KV cache as memory streams: rows and descriptors for stores, descriptors for loads.

    KvAppend: row (p, h) of i -> channel p mod channels, as a token and a store's descriptor {place of it, 1}
    KvRead:   for each head h: {begin of its stripe, rows of the first n positions there} to every channel

Where rows lie is said by `buffers.kv_layout.KvLayout`. Stores and loads have its `memory` as their layout,
and max_tokens of 1 and of `rows_per_channel`: then their descriptors are those sent here.

A store says `done` when the responses to its writes have come; KvAppend takes that as a token on `i_done_c`
(never refused, as a row is counted before it leaves) and, when every row of a descriptor is in memory, sends
one token on `o_appended`. To a sequencer, which ends a run when all stores are done, a token that moves is
the completion of an append; so the next run reads what this one has appended, and no run what it appends.
KvAppend works on two descriptors at a time, one that gives rows and one whose rows are on their way.
With eight tokens not taken it stops.

Tiles in: `i` (1, width), position by position, head by head; or in several `pieces`: some heads of all
positions, then the next ones. Out: `o_c` (1, padded width), zeros behind the row, and `o_descriptor_c`, both
in the order of `i`; of KvRead `o_descriptor_c`, head by head. A channel that a descriptor gives no row to
gets nothing. One row a cycle.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from amaranth import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for
from numpy import ndarray

from streamgen.artifact.kv_layout import KvLayout
from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.queue import Queue, QueueParams
from streamgen.gateware.stream import (
    CountdownParams,
    add_skid,
    descriptor_layout,
    descriptor_signature,
    skid_resources,
)
from streamgen.itensor import ITensor
from streamgen.numbers import formats

_OFFSET_BITS = 32
_COUNT_BITS = 8  # rows on their way in a channel; from half of that on no more are taken
_AHEAD = 8  # tokens on `o_appended` that may wait


@dataclass(frozen=True, kw_only=True)
class KvAppendParams:
    """layout: the cache. pieces: the number of pieces in which the heads come, a divisor of the heads: the
    first piece of all positions comes before the second.

    Bounds: layer, position (of the first row), rows (positions to append).
    """

    layout: KvLayout
    pieces: int = 1

    def __post_init__(self) -> None:
        if self.pieces < 1 or self.layout.heads % self.pieces:
            raise ValueError(
                f"KvAppend.pieces is {self.pieces}; it must divide the {self.layout.heads} heads"
            )

    @property
    def together(self) -> int:
        """The number of heads of a piece."""
        return self.layout.heads // self.pieces

    @property
    def row_bits(self) -> int:
        return self.layout.width * formats.bits(self.layout.dtype)

    @property
    def memory_bits(self) -> int:
        """Bits of a row in the form for stores."""
        return self.layout.padded_width * formats.bits(self.layout.dtype)

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        done = {
            f"i_done_{c}": ITensor((1,), "u1", (count * self.layout.heads,), (1,), ((0,),))
            for c, count in self._rows(bounds).items()
        }
        return {"i": rows_of_pass(self.layout, bounds["rows"], self.pieces), **done}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        layout, width = self.layout, self.layout.padded_width
        ports = {"o_appended": ITensor((1,), "u1", (1,), (1,), ((0,),))}
        for c, count in self._rows(bounds).items():
            ports[f"o_{c}"] = _order(count, layout.heads, self.pieces, width, layout.dtype)
            ports[f"o_descriptor_{c}"] = _order(count, layout.heads, self.pieces, 1, f"u{_OFFSET_BITS + 1}")
        return ports

    def descriptor_fields(self) -> tuple[Field, ...]:
        """Beats before the layer, position of the first row, rows of all heads; the number of positions, if
        there are several pieces."""
        layout = self.layout
        fields = (
            Field("base", _OFFSET_BITS),
            Field("position", bits_for(layout.positions - 1)),
            Field("rows", bits_for(layout.positions * layout.heads)),
        )
        return fields if self.pieces == 1 else (*fields, Field("positions", bits_for(layout.positions)))

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        layout, layer, position, rows = self.layout, *(bounds[n] for n in ("layer", "position", "rows"))
        _check("KvAppend", "layer", layer, 0, layout.layers - 1)
        _check("KvAppend", "position", position, 0, layout.positions - 1)
        _check("KvAppend", "rows", rows, 1, layout.positions - position)
        values = {"base": layer * layout.layer_beats, "position": position, "rows": rows * layout.heads}
        return values if self.pieces == 1 else {**values, "positions": rows}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """Rows [rows here, heads * padded width] and descriptors, uint64 [rows here, heads], by channel."""
        layout, first = self.layout, bounds["position"]
        rows = inputs["i"].reshape(bounds["rows"], layout.heads, layout.width)
        padded = np.zeros((*rows.shape[:2], layout.padded_width), rows.dtype)
        padded[:, :, : layout.width] = rows
        result: dict[str, ndarray] = {"o_appended": np.ones(1, np.uint8)}
        for c in self._rows(bounds):
            mine = [p for p in range(bounds["rows"]) if (first + p) % layout.channels == c]
            places = [
                [layout.place(bounds["layer"], head, first + p)[1] for head in range(layout.heads)]
                for p in mine
            ]
            result[f"o_{c}"] = padded[mine].reshape(len(mine), -1)
            result[f"o_descriptor_{c}"] = np.array(places, np.uint64) | np.uint64(1 << _OFFSET_BITS)
        return result

    def cost(self, bounds: Bounds) -> Cost:
        """Cycles if the stores finish at once."""
        rows = self.describe(bounds)["rows"]
        return Cost(resources=self._resources, ii=1.0, latency=1, cycles=rows + 4)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        layout, total = self.layout, self.describe(bounds)["rows"]
        curves = {"i": Curve.nest(1, (total, 1)), "o_appended": Curve.nest(total + 3)}
        for c, count in self._rows(bounds).items():
            before = (c - bounds["position"]) % layout.channels * self.together
            loops = (
                (self.pieces, bounds["rows"] * self.together),
                (count, layout.channels * self.together),
                (self.together, 1),
            )
            curves |= {
                port: Curve.nest(2 + before, *loops)
                for port in (f"o_{c}", f"o_descriptor_{c}", f"i_done_{c}")
            }
        return curves

    def build(self) -> "KvAppend":
        return KvAppend(self)

    def _rows(self, bounds: Bounds) -> dict[int, int]:
        """For each channel that gets positions, their number."""
        first, end = bounds["position"], bounds["position"] + bounds["rows"]
        counts = np.subtract(self.layout.rows(end), self.layout.rows(first))
        return {c: int(count) for c, count in enumerate(counts) if count}

    @property
    def _resources(self) -> Resources:
        """Fitted to synthesis: the register stage, a counter pair for each channel, the walk."""
        layout = self.layout
        stage = skid_resources(_OFFSET_BITS + layout.channels + self.row_bits, 2)
        heads = 32 if layout.heads > 1 else 0
        again = 0 if self.pieces == 1 else 2 * bits_for(layout.positions) + 32 + layout.channels
        return stage + Resources(
            lut=110 + heads + 2.5 * again + 43.5 * layout.channels,
            ff=60 + heads + again + 16 * layout.channels,
        )


@dataclass(frozen=True, kw_only=True)
class KvReadParams:
    """layout: the cache. Bounds: layer, rows (positions to read, from 0 on; there may be none)."""

    layout: KvLayout

    @property
    def tokens_bits(self) -> int:
        """Bits of the token count in a load's descriptor."""
        return bits_for(self.layout.rows_per_channel)

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        dtype, heads = f"u{_OFFSET_BITS + self.tokens_bits}", self.layout.heads
        return {
            f"o_descriptor_{c}": ITensor((1,), dtype, (heads,), (1,), ((0,),))
            for c, count in enumerate(self.layout.rows(bounds["rows"]))
            if count
        }

    def descriptor_fields(self) -> tuple[Field, ...]:
        """Beats before the layer, positions."""
        return Field("base", _OFFSET_BITS), Field("rows", bits_for(self.layout.positions))

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        layout = self.layout
        _check("KvRead", "layer", bounds["layer"], 0, layout.layers - 1)
        _check("KvRead", "rows", bounds["rows"], 0, layout.positions)
        return {"base": bounds["layer"] * layout.layer_beats, "rows": bounds["rows"]}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """Descriptors by channel, uint64 [heads]."""
        layout = self.layout
        begins = [layout.place(bounds["layer"], head, 0)[1] for head in range(layout.heads)]
        return {
            f"o_descriptor_{c}": np.array(begins, np.uint64) | np.uint64(count << _OFFSET_BITS)
            for c, count in enumerate(layout.rows(bounds["rows"]))
            if count
        }

    def cost(self, bounds: Bounds) -> Cost:
        """Cycles if loads take a descriptor per cycle."""
        self.describe(bounds)
        return Cost(resources=self._resources, ii=1.0, latency=3, cycles=3 + self.layout.heads)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        return {port: Curve.nest(3, (self.layout.heads, 1)) for port in self.outputs(bounds)}

    def build(self) -> "KvRead":
        return KvRead(self)

    @property
    def queue(self) -> QueueParams:
        """Descriptors that wait while heads of the previous one are sent."""
        return QueueParams(bits=sum(field.bits for field in self.descriptor_fields()), depth=2)

    @property
    def _resources(self) -> Resources:
        """Fitted to synthesis: offsets, the queue, for each channel a choice of two counts."""
        channels = self.layout.channels
        queue = Resources(lut=0, ff=self.queue.resources.ff)
        return queue + Resources(lut=75 + (self.tokens_bits + 4.5) * channels, ff=80 + 3 * channels)


def rows_of_pass(layout: KvLayout, rows: int, pieces: int) -> ITensor:
    """An order of rows of that many positions, [rows, heads * width], where a token is a row of a head or,
    for a layout of one head, a piece of a row."""
    if layout.heads % pieces:
        return _order(rows, pieces, pieces, layout.width // pieces, layout.dtype)
    return _order(rows, layout.heads, pieces, layout.width, layout.dtype)


def _order(rows: int, heads: int, pieces: int, width: int, dtype: str) -> ITensor:
    """[rows, heads * width]: piece by piece, position by position, head by head."""
    if pieces == 1:
        return ITensor((1, width), dtype, (rows, heads), (1, width), ((0,), (1,)))
    trips, steps = (pieces, rows, heads // pieces), (heads // pieces * width, 1, width)
    return ITensor((1, width), dtype, trips, steps, ((1,), (0, 2)))


class KvAppend(wiring.Component):
    """The hardware of a KvAppendParams."""

    def __init__(self, params: KvAppendParams) -> None:
        self.params = params
        channels = range(params.layout.channels)
        descriptor = stream.Signature(unsigned(_OFFSET_BITS + 1))
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(stream.Signature(unsigned(params.row_bits))),
                **{f"i_done_{c}": In(stream.Signature(unsigned(1))) for c in channels},
                **{f"o_{c}": Out(stream.Signature(unsigned(params.memory_bits))) for c in channels},
                **{f"o_descriptor_{c}": Out(descriptor) for c in channels},
                "o_appended": Out(stream.Signature(unsigned(1))),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        layout = self.params.layout
        channels = range(layout.channels)
        fields = self.i_descriptor.payload
        m.submodules.count = count = CountdownParams(bits=len(fields.rows)).build()
        room, step = Signal(), Signal()
        here = Signal(layout.channels, reset_less=True)  # channel of the row, one-hot
        offset = Signal(_OFFSET_BITS, reset_less=True)
        row = stream.Signature(_OFFSET_BITS + layout.channels + self.params.row_bits).create()
        m.d.comb += [
            count.i_count.payload.eq(fields.rows),
            count.i_count.valid.eq(self.i_descriptor.valid),
            self.i_descriptor.ready.eq(count.i_count.ready),
            row.valid.eq(self.i.valid & count.active & room),
            row.payload.eq(Cat(offset, here, self.i.payload)),
            self.i.ready.eq(count.active & room & row.ready),
            step.eq(self.i.valid & self.i.ready),
            count.step.eq(step),
        ]
        self._walk(m, count.taken, step, here, offset)

        # The row and its descriptor go their ways at their own times.
        ways = [stream.Signature(len(row.payload)).create(path=(name,)) for name in ("token", "place")]
        add_skid(m, row, ways)
        for way, name in zip(ways, ("o", "o_descriptor"), strict=True):
            place, there, elements = (
                way.payload[:_OFFSET_BITS],
                way.payload[_OFFSET_BITS:][: layout.channels],
                way.payload[_OFFSET_BITS + layout.channels :],
            )
            zeros = Const(0, self.params.memory_bits - self.params.row_bits)
            payload = Cat(elements, zeros) if name == "o" else Cat(place, Const(1, 1))
            ports = [getattr(self, f"{name}_{c}") for c in channels]
            m.d.comb += way.ready.eq((Cat(port.ready for port in ports) & there).any())
            for c, port in zip(channels, ports, strict=True):
                m.d.comb += [port.valid.eq(way.valid & there[c]), port.payload.eq(payload)]
        self._complete(m, room, step, count.last & step, here)
        return m

    def _walk(self, m: Module, start: Value, step: Value, here: Signal, offset: Signal) -> None:
        """Channel and offset of the next row: head by head, channel by channel; a new piece begins at the
        first channel."""
        layout, together = self.params.layout, self.params.together
        fields = self.i_descriptor.payload
        split = bits_for(layout.channels - 1) if layout.channels > 1 else 0
        head = Signal(range(together))
        line = Signal(_OFFSET_BITS, reset_less=True)  # of the first of the heads
        last = head == together - 1
        following = Mux(last, line, offset) + Mux(
            last, Mux(here[-1], layout.row_beats, 0), Const(layout.stripe_beats, _OFFSET_BITS)
        )
        begin = fields.base + fields.position[split:] * layout.row_beats
        first = Cat(fields.position[:split] == c for c in range(layout.channels))
        with m.If(step):
            m.d.sync += [offset.eq(following), head.eq(Mux(last, 0, head + 1))]
            with m.If(last):
                m.d.sync += [line.eq(following), here.eq(here.rotate_left(1))]
        if self.params.pieces > 1:
            left, positions = (
                Signal(len(fields.positions), name=n, reset_less=True) for n in ("left", "positions")
            )
            top = Signal(_OFFSET_BITS, reset_less=True)  # of the first row of the next piece
            again = Signal(layout.channels, reset_less=True)
            beyond = Const(together * layout.stripe_beats, _OFFSET_BITS)
            with m.If(step & last):
                m.d.sync += left.eq(left - 1)
                with m.If(left == 1):
                    m.d.sync += [left.eq(positions), here.eq(again)]
                    m.d.sync += [offset.eq(top), line.eq(top), top.eq(top + beyond)]
            with m.If(start):
                m.d.sync += [left.eq(fields.positions), positions.eq(fields.positions)]
                m.d.sync += [top.eq(begin + beyond), again.eq(first)]
        with m.If(start):
            m.d.sync += [offset.eq(begin), line.eq(begin), here.eq(first)]

    def _complete(self, m: Module, room: Signal, step: Value, end: Value, here: Signal) -> None:
        """Count the rows in flight in each channel, for two descriptors, which take turns."""
        taking, oldest, ended = Signal(), Signal(), Signal(2)
        may = Signal()  # counters have room, whatever was taken in the cycle before
        busy: list[list[Value]] = [[], []]
        high = []
        for c in range(self.params.layout.channels):
            done = getattr(self, f"i_done_{c}")
            rows = [Signal(_COUNT_BITS, name=f"rows_{turn}_{c}") for turn in range(2)]
            some = Cat(count.any() for count in rows)
            first = Signal(name=f"first_{c}")  # a store is done in order: this one belongs to the oldest
            m.d.comb += [done.ready.eq(some.any()), first.eq(some.bit_select(oldest, 1))]
            for turn, count in enumerate(rows):
                more = step & here[c] & (taking == turn)
                less = done.valid & some[turn] & (first == (oldest == turn))
                m.d.sync += count.eq(count + more - less)
                busy[turn].append(some[turn])
                high.append(count[-1])
        appended = Signal(range(2 * _AHEAD))
        complete = Signal()
        idle = Cat(~Cat(flags).any() for flags in busy)
        m.d.comb += [
            complete.eq((ended & idle).bit_select(oldest, 1)),
            self.o_appended.valid.eq(appended != 0),
            self.o_appended.payload.eq(1),
            room.eq(may & ~ended.bit_select(taking, 1)),
        ]
        for turn in range(2):
            with m.If(end & (taking == turn)):
                m.d.sync += ended[turn].eq(1)
            with m.Elif(complete & (oldest == turn)):
                m.d.sync += ended[turn].eq(0)
        m.d.sync += [
            taking.eq(taking ^ end),
            oldest.eq(oldest ^ complete),
            appended.eq(appended + complete - (self.o_appended.valid & self.o_appended.ready)),
            may.eq(~Cat(high).any() & (appended < _AHEAD)),
        ]


class KvRead(wiring.Component):
    """The hardware of a KvReadParams."""

    def __init__(self, params: KvReadParams) -> None:
        self.params = params
        descriptor = stream.Signature(unsigned(_OFFSET_BITS + params.tokens_bits))
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                **{f"o_descriptor_{c}": Out(descriptor) for c in range(params.layout.channels)},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        layout = self.params.layout
        m.submodules.queue = queue = Queue(self.params.queue)
        fields = data.View(descriptor_layout(self.params.descriptor_fields()), queue.o.payload)
        m.d.comb += [
            queue.i.valid.eq(self.i_descriptor.valid),
            queue.i.payload.eq(self.i_descriptor.payload),
            self.i_descriptor.ready.eq(queue.i.ready),
        ]
        split = bits_for(layout.channels - 1) if layout.channels > 1 else 0
        ports = [getattr(self, f"o_descriptor_{c}") for c in range(layout.channels)]
        running = Signal()
        left = Signal(range(layout.heads + 1), reset_less=True)  # heads to be sent
        base, offset = Signal(_OFFSET_BITS, reset_less=True), Signal(_OFFSET_BITS, reset_less=True)
        fewer, more = (Signal(self.params.tokens_bits, name=n, reset_less=True) for n in ("fewer", "more"))
        longer = Signal(layout.channels, reset_less=True)  # channels that hold a row more than the others
        pending, every = Signal(layout.channels), Signal(layout.channels, reset_less=True)
        taken = Signal()
        rest = fields.rows[:split]
        m.d.comb += [
            queue.o.ready.eq(~running),
            taken.eq((pending & ~Cat(port.ready for port in ports)) == 0),
        ]
        with m.If(~running):
            m.d.sync += [
                running.eq(queue.o.valid),
                left.eq(layout.heads),
                base.eq(fields.base),
                fewer.eq(fields.rows[split:]),
                more.eq(fields.rows[split:] + 1),
                longer.eq(Cat(rest > c for c in range(layout.channels))),
                every.eq(Cat(fields.rows > c for c in range(layout.channels))),
            ]
        with m.Elif(taken):
            m.d.sync += [
                pending.eq(Mux(left != 0, every, 0)),
                offset.eq(base),
                base.eq(base + layout.stripe_beats),
                left.eq(left - 1),
                running.eq(left != 0),
            ]
        with m.Else():
            m.d.sync += pending.eq(pending & ~Cat(port.ready for port in ports))
        for c, port in enumerate(ports):
            m.d.comb += [
                port.valid.eq(pending[c]),
                port.payload.eq(Cat(offset, Mux(longer[c], more, fewer))),
            ]
        return m


def _check(kernel: str, name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{kernel}: {name} is {value}; it must be {least} to {most}")
