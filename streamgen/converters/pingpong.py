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

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from streamgen import formats
from streamgen.contract import Bounds, Field
from streamgen.converters.banking import Banking, Loop, Nest, Side, choose
from streamgen.converters.banks import Banks, BanksParams
from streamgen.converters.walker import Axis, Walker, WalkerParams, WalkLoop
from streamgen.cost import Cost, Curve, Resources
from streamgen.fifo.queue import Queue, QueueParams
from streamgen.itensor import Converter, ITensor, infer_converter
from streamgen.stream import descriptor_signature, signature

__all__ = ["PingPong", "PingPongParams"]

# Tokens that may wait for `o`: more than the reads in flight, so that a token a cycle can leave.
_QUEUE_DEPTH = 8


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

    @property
    def bits(self) -> int:
        """Logical size of the buffer; `resources` says which memories hold it."""
        return self.converter.bits

    @cached_property
    def banking(self) -> Banking:
        """The geometry of the memory."""
        lo = [t - s for t, s in zip(self.target.base, self.source.base, strict=True)]
        fill, read = self._nests
        return choose(fill, read, (*lo[:-1], lo[-1] // self._group))

    @cached_property
    def banks(self) -> BanksParams:
        """The memory."""
        atom = (*(1 for _ in self.source.element_shape[1:]), self._group)
        return BanksParams(banking=self.banking, atom_bits=formats.token_bits(self.source.dtype, atom))

    @cached_property
    def writer(self) -> WalkerParams:
        """The address generator of the side that fills."""
        return self._walker(self.banking.source, self._nests[0], self.banking.clipped)

    @cached_property
    def reader(self) -> WalkerParams:
        """The address generator of the side that drains."""
        return self._walker(self.banking.target, self._nests[1], (False,) * self.target.rank)

    @property
    def waiting(self) -> QueueParams:
        """Descriptors of the side that drains, while the other side is already one ahead."""
        return QueueParams(bits=max(1, sum(self.reader.last_bits)), depth=2)

    @property
    def queue(self) -> QueueParams:
        """Tokens on their way out."""
        return QueueParams(bits=self.target.token_bits, depth=_QUEUE_DEPTH, memory="lutram")

    @property
    def latency(self) -> int:
        """Cycles from a read to its token on `o`."""
        return 1 + self.banks.latency + self.queue.latency

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": bounds["source"]}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": bounds["target"]}

    def descriptor_fields(self) -> tuple[Field, ...]:
        return tuple(Field(name, bits_for(trip - 1)) for name, trip in _trips(self.converter).items())

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        return {name: trip - 1 for name, trip in self._fit(bounds).items()}

    def golden(self, bounds: Bounds, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return {"o": inputs["i"][tuple(slice(extent) for extent in bounds["target"].shape)]}

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        trips = self._fit(bounds).items()
        windows, fills, reads = (
            prod(trip for name, trip in trips if name.startswith(prefix))
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
        count, first, last = max(ends.values(), key=lambda end: end[0])
        return Cost(
            resources=self.resources,
            ii=(last - first) / (count - 1) if count > 1 else 1.0,
            latency=ends["o"][1] - ends["i"][1],
            cycles=ends["o"][2] + 1,
        )

    @property
    def resources(self) -> Resources:
        """What is built, counted from the structure."""
        parts = (self.writer, self.reader, self.banks, self.waiting, self.queue)
        return sum((part.resources for part in parts), Resources(lut=8, ff=8))

    def build(self) -> "PingPong":
        return PingPong(self)

    @property
    def _group(self) -> int:
        """Elements along the last dimension that are never cut."""
        return formats.MX_GROUP if formats.is_mx(self.source.dtype) else 1

    @property
    def _nests(self) -> tuple[Nest, Nest]:
        """Both sides of a window in atoms."""
        scale = [*(1 for _ in self.source.element_shape[1:]), self._group]

        def nest(window: ITensor) -> Nest:
            loops = zip(window.tripcounts, window.steps, window.dimensions, strict=True)
            return Nest(
                tuple(extent // unit for extent, unit in zip(window.element_shape, scale, strict=True)),
                tuple(Loop(trip, step if d is None else step // scale[d], d) for trip, step, d in loops),
            )

        return nest(self.converter.fill_window), nest(self.converter.read_window)

    def _walker(self, side: Side, nest: Nest, clipped: tuple[bool, ...]) -> WalkerParams:
        loops = [
            WalkLoop(
                loop.trip,
                False,
                loop.dim,
                *(side.move(loop.dim, loop.step) if loop.dim is not None else (0, 0)),
            )
            for loop in nest.loops
        ]
        pieces = [
            WalkLoop(trip, True, dim, *side.move(dim, side.box[dim]))
            for dim, trip in enumerate(side.pieces)
            if trip > 1
        ]
        axes = zip(side.ways, self.banking.strides, self.banking.rows, side.start, clipped, strict=True)
        return WalkerParams(
            shared=self.converter.fill.tripcounts[: self.converter.shared],
            inner=(*loops, *pieces),
            pieces=len(pieces),
            axes=tuple(Axis(ways, stride, rows, *start, clip) for ways, stride, rows, start, clip in axes),
            words=self.banking.words,
        )

    def _fit(self, bounds: Bounds) -> dict[str, int]:
        """Trip counts for these bounds; ValueError when they are not those of the hardware."""
        trips = _trips(self.converter.at(bounds["source"], bounds["target"]))
        for name, greatest in _trips(self.converter).items():
            if trips[name] > greatest:
                raise ValueError(f"{name} of this converter runs {greatest} times at most, not {trips[name]}")
        return trips


def _trips(converter: Converter) -> dict[str, int]:
    """Trip count of every loop of both nests by name, the shared ones once."""
    shared = converter.shared
    nests = {
        "shared": converter.fill.tripcounts[:shared],
        "fill": converter.fill.tripcounts[shared:],
        "read": converter.read.tripcounts[shared:],
    }
    return {f"{name}{k}": trip for name, trips in nests.items() for k, trip in enumerate(trips)}


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
        m.submodules.writer = writer = Walker(p.writer)
        m.submodules.reader = reader = Walker(p.reader)
        m.submodules.banks = banks = Banks(p.banks)
        m.submodules.queue = queue = Queue(p.queue)
        self._start(m, writer, reader)

        one, two = Signal(), Signal()  # halves that are full, or full and being read
        filled, drained = Signal(), Signal()
        with m.If(filled & ~drained):
            m.d.sync += [one.eq(1), two.eq(one)]
        with m.Elif(drained & ~filled):
            m.d.sync += [one.eq(two), two.eq(0)]
        free, room = Signal(range(_QUEUE_DEPTH + 1), init=_QUEUE_DEPTH), Signal(init=1)  # room: free != 0
        asked, sent = Signal(), Signal()
        with m.If(asked & ~sent):
            m.d.sync += [free.eq(free - 1), room.eq(free != 1)]
        with m.Elif(sent & ~asked):
            m.d.sync += [free.eq(free + 1), room.eq(1)]

        ready, fetch_last = Signal(), Signal()
        m.d.sync += fetch_last.eq(asked)
        m.d.comb += [
            ready.eq(writer.running & ~two),
            self.i.ready.eq(ready & writer.token_last),
            writer.step.eq(ready & self.i.valid),
            filled.eq(writer.step & writer.window_last),
            reader.step.eq(reader.running & one & room),
            drained.eq(reader.step & reader.window_last),
            asked.eq(reader.step & reader.token_last),
            sent.eq(self.o.valid & self.o.ready),
            banks.token.eq(self.i.payload),
            banks.take.eq(writer.step),
            banks.take_last.eq(writer.token_last),
            banks.write.eq(writer.strobe & writer.inside),
            banks.write_address.eq(writer.address),
            banks.write_way.eq(writer.way),
            banks.fetch.eq(reader.strobe),
            banks.fetch_last.eq(fetch_last),
            banks.fetch_address.eq(reader.address),
            banks.fetch_way.eq(reader.way),
            queue.i.valid.eq(banks.complete),  # `free` sees to it that the queue is ready
            queue.i.payload.eq(banks.collected),
        ]
        wiring.connect(m, wiring.flipped(self.o), queue.o)
        return m

    def _start(self, m: Module, writer: Walker, reader: Walker) -> None:
        """Take descriptors; the reader's part waits until the reader is done with the one before."""
        descriptor = self.i_descriptor
        m.submodules.waiting = waiting = Queue(self._params.waiting)
        fill, read = (
            Cat(
                descriptor.payload[field.name]
                for field in self._params.descriptor_fields()
                if field.name.startswith(("shared", own))
            )
            for own in ("fill", "read")
        )
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
