"""Ping-pong converter: the same tensor, or the part of it that the target reads, in another order.

    o = i[: extents of the target]

Tiles come in the order of `source` and leave in the order of `target`. What the two orders have in common
are the shared loops (`infer_converter`); in one iteration of them, a window, the source fills one half of a
memory while the target reads the window before from the other half. Elements that the target never reads
are dropped, elements sent again are written again.

A token moves in `pieces` accesses, a cycle each (see `banking`; one where the shapes allow it). A window
takes F = tokens in * pieces cycles to fill and D = tokens out * pieces to drain, so max(F, D) in steady
state. From the descriptor in cycle 0 and with every port ready

    window w fills from cycle 1 + w * F                           (F >= D)
                     or cycle 1, then 1 + F + (w - 1) * D         (F < D)
    and drains from cycle 1 + F + w * max(F, D); a read reaches the port `latency` cycles later.

The hardware is built for the greatest bounds. A descriptor holds, for each loop whose greatest trip is not
1, the trip minus one: those of the shared loops, of the loops that fill and of those that read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from streamgen import formats
from streamgen.contract import Bounds, Field
from streamgen.converters.banking import Banking, Loop, Nest, Side, choose
from streamgen.converters.walker import Axis, Walker, WalkerParams, WalkLoop
from streamgen.cost import Cost, Curve, Resources
from streamgen.fifo.queue import Queue, QueueParams
from streamgen.itensor import Converter, ITensor, infer_converter
from streamgen.stream import descriptor_signature, signature

__all__ = ["PingPong", "PingPongParams"]

# Tokens that wait for `o`: more than the reads in flight, so that a token a cycle can leave.
_QUEUE_DEPTH = 8
_RAM_STYLE = {"lutram": "distributed", "bram": "block", "uram": "ultra"}


@dataclass(frozen=True, kw_only=True)
class PingPongParams:
    """source, target: the streams at the greatest bounds; bounds are {"source": ITensor, "target": ITensor}.

    Bounds differ in trip counts only, such that `converter.at` finds the same windows in them and no loop
    of its nests is longer than at the greatest bounds. Raises ValueError where `infer_converter` does, and
    where there is nothing to convert.
    """

    source: ITensor
    target: ITensor

    def __post_init__(self) -> None:
        if infer_converter(self.source, self.target) is None:
            raise ValueError(
                f"source and target are the same stream, nothing is to be converted: {self.source}"
            )

    @cached_property
    def converter(self) -> Converter:
        """The windows at the greatest bounds."""
        converter = infer_converter(self.source, self.target)
        assert converter is not None
        return converter

    @cached_property
    def banking(self) -> Banking:
        """The geometry of the memory."""
        group = self.atom[-1]
        nests = []
        for nest in (self.converter.fill_window, self.converter.read_window):
            loops = zip(nest.tripcounts, nest.steps, nest.dimensions, strict=True)
            last = nest.rank - 1
            nests.append(
                Nest(
                    (*nest.element_shape[:-1], nest.element_shape[-1] // group),
                    tuple(
                        Loop(trip, step // group if dim == last else step, dim) for trip, step, dim in loops
                    ),
                )
            )
        lo = [t - s for t, s in zip(self.target.base, self.source.base, strict=True)]
        return choose(*nests, (*lo[:-1], lo[-1] // group))

    @property
    def atom(self) -> tuple[int, ...]:
        """Elements that are never cut, by dimension."""
        return (
            *(1 for _ in self.source.base[1:]),
            formats.MX_GROUP if formats.is_mx(self.source.dtype) else 1,
        )

    @property
    def atom_bits(self) -> int:
        """Bits of an atom."""
        return formats.token_bits(self.source.dtype, self.atom)

    @property
    def bank(self) -> QueueParams:
        """Width, depth and memory of a bank; one for each box that the source can write in a word."""
        bits, depth = self.atom_bits * prod(self.banking.source.box), 2 * self.banking.words
        queue = QueueParams(bits=bits, depth=depth)
        return queue if queue.kind != "register" else QueueParams(bits=bits, depth=depth, memory="lutram")

    @property
    def latency(self) -> int:
        """Cycles from a read to its atoms on `o`."""
        return 3 + (self.bank.kind != "lutram") + (prod(self.banking.target.ways) > 1)

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": bounds["source"]}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": bounds["target"]}

    def descriptor_fields(self) -> tuple[Field, ...]:
        return tuple(Field(name, bits_for(trip - 1)) for name, trip in self._trips(self.converter).items())

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        return {name: trip - 1 for name, trip in self._fit(bounds).items()}

    def golden(self, bounds: Bounds, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return {"o": inputs["i"][tuple(slice(extent) for extent in bounds["target"].shape)]}

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        trips = self._fit(bounds)
        windows, fills, reads = (
            prod(trip for name, trip in trips.items() if name.startswith(prefix))
            for prefix in ("shared", "fill", "read")
        )
        write, read = prod(self.banking.source.pieces), prod(self.banking.target.pieces)
        filling, draining = fills * write, reads * read
        if filling >= draining:
            taken = Curve.nest(write, (windows * fills, write))
        elif windows == 1:
            taken = Curve.nest(write, (fills, write))
        else:
            later = (write + filling, ((windows - 1, draining), (fills, write)))
            taken = Curve(((write, ((fills, write),)), later))
        first = filling + read + self.latency
        return {"i": taken, "o": Curve.nest(first, (windows, max(filling, draining)), (reads, read))}

    def cost(self, bounds: Bounds) -> Cost:
        """ii is the mean over the run, the first and the last window included."""
        ends = {port: _ends(curve) for port, curve in self.curves(bounds).items()}
        port = max(("i", "o"), key=lambda port: ends[port][0])
        count, first, last = ends[port]
        return Cost(
            resources=self.resources,
            ii=(last - first) / (count - 1) if count > 1 else 1.0,
            latency=ends["o"][1] - ends["i"][1],
            cycles=ends["o"][2] + 1,
        )

    @property
    def resources(self) -> Resources:
        """Fitted to Yosys; the memory is `bank` as often as there are banks."""
        return Resources(lut=0, ff=0)

    def walker(self, side: Side, nest: ITensor) -> WalkerParams:
        """The address generator of one side."""
        group = self.atom[-1]
        loops = []
        for trip, step, dim in list(zip(nest.tripcounts, nest.steps, nest.dimensions, strict=True))[
            self.converter.shared :
        ]:
            move = (0, 0) if dim is None else side.move(dim, step // group if dim == nest.rank - 1 else step)
            loops.append(WalkLoop(trip, False, dim, *move))
        pieces = [
            WalkLoop(trip, True, dim, *side.move(dim, side.box[dim]))
            for dim, trip in enumerate(side.pieces)
            if trip > 1
        ]
        geometry = self.banking
        clipped = geometry.clipped if side is geometry.source else (False,) * nest.rank
        axes = zip(side.ways, geometry.strides, geometry.rows, side.start, clipped, strict=True)
        return WalkerParams(
            shared=nest.tripcounts[: self.converter.shared],
            inner=(*loops, *pieces),
            pieces=len(pieces),
            axes=tuple(Axis(ways, stride, rows, *start, clip) for ways, stride, rows, start, clip in axes),
            words=geometry.words,
        )

    def build(self) -> "PingPong":
        return PingPong(self)

    def _trips(self, converter: Converter) -> dict[str, int]:
        """Trip count of every loop by its name."""
        shared = converter.shared
        nests = [
            ("shared", converter.fill.tripcounts[:shared]),
            ("fill", converter.fill.tripcounts[shared:]),
            ("read", converter.read.tripcounts[shared:]),
        ]
        return {f"{name}{k}": trip for name, trips in nests for k, trip in enumerate(trips)}

    def _fit(self, bounds: Bounds) -> dict[str, int]:
        """Trip counts for these bounds; ValueError when they are not those of the hardware."""
        trips = self._trips(self.converter.at(bounds["source"], bounds["target"]))
        for name, greatest in self._trips(self.converter).items():
            if trips[name] > greatest:
                raise ValueError(
                    f"{name} of the converter is built for {greatest} iterations at most, not {trips[name]}"
                )
        return trips


def _ends(curve: Curve) -> tuple[int, int, int]:
    """Number of tokens, first and last cycle."""
    count = sum(prod(trip for trip, _ in loops) for _, loops in curve.pieces)
    start, loops = curve.pieces[-1]
    return count, curve.pieces[0][0], start + sum((trip - 1) * period for trip, period in loops)


class PingPong(wiring.Component):
    """`i` to `o`."""

    def __init__(self, params: PingPongParams) -> None:
        self._params = params
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(signature(params.source)),
                "o": Out(signature(params.target)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        m.submodules.writer = writer = Walker(p.walker(p.banking.source, p.converter.fill))
        m.submodules.reader = reader = Walker(p.walker(p.banking.target, p.converter.read))
        self._start(m, writer, reader)

        # halves that are full, or full and being read
        one, two = Signal(), Signal()
        filled, drained = Signal(), Signal()
        with m.If(filled & ~drained):
            m.d.sync += [one.eq(1), two.eq(one)]
        with m.Elif(drained & ~filled):
            m.d.sync += [one.eq(two), two.eq(0)]
        m.d.comb += [
            filled.eq(writer.step & writer.window_last),
            drained.eq(reader.step & reader.window_last),
        ]

        ready = writer.running & ~two
        m.d.comb += [writer.step.eq(ready & self.i.valid), self.i.ready.eq(ready & writer.token_last)]
        banks = self._write(m, writer)
        room = self._read(m, reader, banks)
        m.d.comb += reader.step.eq(reader.running & one & room)
        return m

    def _start(self, m: Module, writer: Walker, reader: Walker) -> None:
        """Take descriptors; the reader's part waits in a queue of two until the reader is idle."""
        descriptor = self.i_descriptor
        fields = {field.name: descriptor.payload[field.name] for field in self._params.descriptor_fields()}
        fill, read = (
            Cat(*(field for name, field in fields.items() if name.startswith(("shared", own))))
            for own in ("fill", "read")
        )
        m.submodules.waiting = waiting = Queue(QueueParams(bits=len(read), depth=2))
        m.d.comb += [
            descriptor.ready.eq(~writer.running & waiting.i.ready),
            writer.load.eq(descriptor.valid & descriptor.ready),
            writer.lasts.eq(fill),
            waiting.i.valid.eq(writer.load),
            waiting.i.payload.eq(read),
            waiting.o.ready.eq(~reader.running),
            reader.load.eq(waiting.o.valid & waiting.o.ready),
            reader.lasts.eq(waiting.o.payload),
        ]

    def _write(self, m: Module, writer: Walker) -> list[Memory]:
        """Register a piece of the token, then write it to the bank of its way."""
        p = self._params
        side, bank = p.banking.source, p.bank
        token = self._atoms(self.i.payload)
        pieces = [Cat(*(token[k] for k in box)) for box in _boxes(side.box, side.pieces)]
        piece = Signal(range(len(pieces)))
        with m.If(writer.step):
            m.d.sync += piece.eq(Mux(writer.token_last, 0, piece + 1))
        data = Signal(bank.bits, reset_less=True)
        m.d.sync += data.eq(_select(m, piece, dict(enumerate(pieces))))
        banks = []
        for number, way in enumerate(_ways(side.ways)):
            attributes = {"ram_style": _RAM_STYLE[bank.kind]}
            memory = Memory(shape=bank.bits, depth=bank.depth, init=[], attrs=attributes)
            m.submodules[f"bank{number}"] = memory
            port = memory.write_port()
            m.d.comb += [
                port.addr.eq(writer.address),
                port.data.eq(data),
                port.en.eq(writer.strobe & writer.inside & (writer.way.as_value() == way)),
            ]
            banks.append(memory)
        return banks

    def _read(self, m: Module, reader: Walker, banks: list[Memory]) -> Value:
        """Read a word, select the box of the way, collect the pieces of a token, send it. Gives whether
        the queue has room for another token besides those under way."""
        p = self._params
        geometry, side = p.banking, p.banking.target
        last, strobe, way = Signal(), reader.strobe, reader.way.as_value()
        m.d.sync += last.eq(reader.step & reader.token_last)

        def follow(*values: Value) -> list[Signal]:
            registers = [Signal(len(value), reset_less=len(value) > 1) for value in values]
            m.d.sync += [register.eq(value) for register, value in zip(registers, values, strict=True)]
            return registers

        word: list[Value] = [Const(0)] * prod(geometry.word)
        for memory, places in zip(banks, _boxes(geometry.source.box, geometry.source.ways), strict=True):
            port = memory.read_port()
            m.d.comb += [port.addr.eq(reader.address), port.en.eq(strobe)]
            data = port.data if p.bank.kind == "lutram" else follow(port.data)[0]
            for place, atom in zip(places, self._atoms(data), strict=True):
                word[place] = atom
        for _ in range(1 if p.bank.kind == "lutram" else 2):
            strobe, last, way = follow(strobe, last, way)
        ways = [Cat(*(word[place] for place in places)) for places in _boxes(side.box, side.ways)]
        box = _select(m, way, dict(zip(_ways(side.ways), ways, strict=True)))
        if len(ways) > 1:
            strobe, last, box = follow(strobe, last, box)

        pieces: list[Value] = [
            Signal.like(box, name=f"piece{k}", reset_less=True) for k in range(prod(side.pieces) - 1)
        ]
        pieces.append(box)
        with m.If(strobe):
            m.d.sync += [piece.eq(later) for piece, later in pairwise(pieces)]
        token: list[Value] = [Const(0)] * prod(b * n for b, n in zip(side.box, side.pieces, strict=True))
        for piece, places in zip(pieces, _boxes(side.box, side.pieces), strict=True):
            for place, atom in zip(places, self._atoms(piece), strict=True):
                token[place] = atom

        m.submodules.queue = queue = Queue(
            QueueParams(bits=p.target.token_bits, depth=_QUEUE_DEPTH, memory="lutram")
        )
        m.d.comb += [queue.i.valid.eq(last), queue.i.payload.eq(Cat(*token))]
        wiring.connect(m, wiring.flipped(self.o), queue.o)

        free, room = Signal(range(_QUEUE_DEPTH + 1), init=_QUEUE_DEPTH), Signal(init=1)
        asked, sent = Signal(), Signal()
        m.d.comb += [asked.eq(reader.step & reader.token_last), sent.eq(queue.o.valid & queue.o.ready)]
        with m.If(asked & ~sent):
            m.d.sync += [free.eq(free - 1), room.eq(free != 1)]
        with m.Elif(sent & ~asked):
            m.d.sync += [free.eq(free + 1), room.eq(1)]
        return room

    def _atoms(self, value: Value) -> list[Value]:
        """The atoms of a box, row-major."""
        bits = self._params.atom_bits
        return [value[k : k + bits] for k in range(0, len(value), bits)]


def _boxes(box: Sequence[int], counts: Sequence[int]) -> list[list[int]]:
    """For each box of a grid of boxes, row-major: the places of its atoms in the whole, row-major."""
    places = np.arange(prod(box) * prod(counts)).reshape([b * n for b, n in zip(box, counts, strict=True)])
    return [
        places[tuple(slice(k * b, (k + 1) * b) for k, b in zip(index, box, strict=True))].ravel().tolist()
        for index in np.ndindex(*counts)
    ]


def _ways(counts: Sequence[int]) -> list[int]:
    """The bits of the walker's `way` for each box of a word, row-major."""
    shifts = np.cumsum([0, *map(ceil_log2, counts)])[:-1].tolist()
    return [sum(k << shift for k, shift in zip(index, shifts, strict=True)) for index in np.ndindex(*counts)]


def _select(m: Module, choice: Value, values: Mapping[int, Value]) -> Value:
    """The value of the present choice."""
    if len(values) == 1:
        return next(iter(values.values()))
    selected = Signal(len(next(iter(values.values()))))
    *cases, rest = values.items()
    with m.Switch(choice):
        for number, value in cases:
            with m.Case(number):
                m.d.comb += selected.eq(value)
        with m.Default():
            m.d.comb += selected.eq(rest[1])
    return selected
