"""The common part of all converters: windows, geometry of a word, loops, descriptors.

    o = i[: extents of the target]

Tiles come in the order of `source` and leave in the order of `target`. The common loops of the two orders are
the shared loops (`infer_converter`); one iteration of them is a window. A token moves in `pieces` accesses,
one per cycle (see `banking`; one access if the shapes allow it), so a window takes F = tokens in * pieces
cycles to fill and D = tokens out * pieces to drain.

Words are numbered by dimension; `fold` treats one as two (`folding`), only inside the converter.

The hardware is built for the greatest bounds. A descriptor holds, for each loop whose greatest trip is not 1,
the trip minus one: first the shared loops, then the loops that fill and those that read.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.converters.banking import Banking, Loop, MemorySide, Nest, choose
from streamgen.converters.banks import Banks
from streamgen.converters.folding import Fold, folded
from streamgen.converters.walker import Axis, Walker, WalkerParams, WalkLoop
from streamgen.fifo.clocks import Clocks, of_curves
from streamgen.fifo.queue import Queue, QueueParams
from streamgen.gateware.stream import descriptor_signature, signature
from streamgen.itensor import Converter, ITensor, counted_as, infer_converter
from streamgen.numbers import formats

# Tokens that may wait for `o`: more than the reads in flight, so that a token a cycle can leave.
QUEUE_DEPTH = 8


@dataclass(frozen=True, kw_only=True)
class LayoutParams(ABC):
    """source, target: the streams at the greatest bounds; bounds are {"source": ITensor, "target": ITensor}.
    fold: a dimension that is treated as two, and the elements of the inner one.

    Bounds differ only in trip counts, such that `converter.at` finds the same windows in them and no loop of
    its nests is longer than at the greatest bounds. Raises ValueError if `infer_converter` does, and if no
    conversion is needed.
    """

    source: ITensor
    target: ITensor
    fold: Fold | None = None
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if infer_converter(*self._folded(self.source, self.target)) is None:
            raise ValueError(
                f"source and target are the same stream, so no conversion is needed: {self.source}"
            )

    @cached_property
    def converter(self) -> Converter:
        """The windows at the greatest bounds, folded."""
        converter = infer_converter(*self._folded(self.source, self.target))
        assert converter is not None
        return converter

    @cached_property
    def banking(self) -> Banking:
        """The geometry of the memory."""
        bases = self.converter.target.base, self.converter.source.base
        lo = [t - s for t, s in zip(*bases, strict=True)]
        fill, read = self.nests
        return choose(fill, read, (*lo[:-1], lo[-1] // self._group))

    @property
    def atom_bits(self) -> int:
        """Bits of an atom."""
        atom = (*(1 for _ in self.source.element_shape[1:]), self._group)
        return formats.token_bits(self.source.dtype, atom)

    @property
    def word_bits(self) -> int:
        """Bits of a word of the memory."""
        return self.atom_bits * prod(self.banking.word)

    @cached_property
    def nests(self) -> tuple[Nest, Nest]:
        """Both sides of a window in atoms."""
        scale = [*(1 for _ in self.converter.source.element_shape[1:]), self._group]

        def nest(window: ITensor) -> Nest:
            loops = zip(window.tripcounts, window.steps, window.dimensions, strict=True)
            return Nest(
                tuple(extent // unit for extent, unit in zip(window.element_shape, scale, strict=True)),
                tuple(Loop(trip, step if d is None else step // scale[d], d) for trip, step, d in loops),
            )

        return nest(self.converter.fill_window), nest(self.converter.read_window)

    @property
    def waiting(self) -> QueueParams:
        """The number of descriptors for the draining side that may wait while the filling side is
        one ahead."""
        return QueueParams(bits=max(1, sum(self.reader.last_bits)), depth=2)

    @property
    def queue(self) -> QueueParams:
        """The number of tokens on their way out."""
        return QueueParams(bits=self.target.token_bits, depth=QUEUE_DEPTH, memory="lutram")

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": bounds["source"]}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": bounds["target"]}

    def descriptor_fields(self) -> tuple[Field, ...]:
        return tuple(Field(name, bits_for(trip - 1)) for name, trip in _trips(self.converter).items())

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        return {name: trip - 1 for name, trip in self.trips(bounds).items()}

    def golden(self, bounds: Bounds, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return {"o": inputs["i"][tuple(slice(extent) for extent in bounds["target"].shape)]}

    @abstractmethod
    def curves(self, bounds: Bounds) -> Mapping[str, Curve]: ...

    @property
    def apart(self) -> bool:
        """False if a token is filled in several pieces, which all wait for it."""
        return prod(self.banking.source.pieces) == 1

    def clocks(self, bounds: Bounds) -> Clocks:
        """The filling side, the reading side, and the queue of `o`: the reader waits for words, the writer
        for places, and QUEUE_DEPTH tokens may be on their way."""
        return self._sides(bounds) if self.apart else of_curves(self, bounds)

    @abstractmethod
    def _sides(self, bounds: Bounds) -> Clocks: ...

    @property
    @abstractmethod
    def writer(self) -> WalkerParams:
        """The address generator of the side that fills."""

    @property
    @abstractmethod
    def reader(self) -> WalkerParams:
        """The address generator of the side that drains."""

    @property
    @abstractmethod
    def held_bits(self) -> int:
        """Bits of all memory except the queue of `o`; `resources` says which memories hold them."""

    @property
    @abstractmethod
    def resources(self) -> Resources:
        """Resources, counted from the structure."""

    def cost(self, bounds: Bounds) -> Cost:
        """ii is the mean over the run, including the first and the last window."""
        by_port = {port: ends(curve) for port, curve in self.curves(bounds).items()}
        count, first, last = max(by_port.values(), key=lambda end: end[0])
        return Cost(
            resources=self.resources,
            ii=(last - first) / (count - 1) if count > 1 else 1.0,
            latency=by_port["o"][1] - by_port["i"][1],
            cycles=by_port["o"][2] + 1,
        )

    def trips(self, bounds: Bounds) -> dict[str, int]:
        """Trip counts for these bounds; ValueError if the hardware does not support them."""
        return dict(_trips_between(self, bounds["source"], bounds["target"]))

    def trips_between(self, source: ITensor, target: ITensor) -> dict[str, int]:
        """`trips` for these orders."""
        source, target = counted_as(source, self.source), counted_as(target, self.target)
        trips = _trips(self.converter.at(*self._folded(source, target)))
        for name, greatest in _trips(self.converter).items():
            if trips[name] > greatest:
                raise ValueError(f"{name} of this converter runs at most {greatest} times, not {trips[name]}")
        return trips

    def walker(
        self, side: MemorySide, nest: Nest, clipped: Sequence[bool], strides: Sequence[int], **options: Any
    ) -> WalkerParams:
        """The address generator of one side; strides: distance of neighbouring words, by dimension."""
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
        axes = zip(side.ways, strides, self.banking.rows, side.start, clipped, strict=True)
        return WalkerParams(
            shared=self.converter.fill.tripcounts[: self.converter.shared],
            inner=(*loops, *pieces),
            pieces=len(pieces),
            axes=tuple(Axis(ways, stride, rows, *start, clip) for ways, stride, rows, start, clip in axes),
            words=self.banking.words,
            **options,
        )

    def _folded(self, source: ITensor, target: ITensor) -> tuple[ITensor, ITensor]:
        """Both streams inside the converter; ValueError if they cannot be folded."""
        if self.fold is None:
            return source, target
        return folded(source, self.source, self.fold), folded(target, self.target, self.fold)

    @property
    def _group(self) -> int:
        """The number of elements along the last dimension that are never separated."""
        return formats.MX_GROUP if formats.is_mx(self.source.dtype) else 1


@lru_cache(maxsize=4096)
def _trips_between(params: LayoutParams, source: ITensor, target: ITensor) -> dict[str, int]:
    """Cached, because a graph of many phases asks for the same pair repeatedly."""
    return params.trips_between(source, target)


def _trips(converter: Converter) -> dict[str, int]:
    """The trip count of every loop of both nests by name; shared loops occur once."""
    shared = converter.shared
    nests = {
        "shared": converter.fill.tripcounts[:shared],
        "fill": converter.fill.tripcounts[shared:],
        "read": converter.read.tripcounts[shared:],
    }
    return {f"{name}{k}": trip for name, trips in nests.items() for k, trip in enumerate(trips)}


def ends(curve: Curve) -> tuple[int, int, int]:
    """The number of tokens, and the first and last cycle."""
    count = sum(prod(trip for trip, _ in loops) for _, loops in curve.pieces)
    start, loops = curve.pieces[-1]
    return count, curve.pieces[0][0], start + sum((trip - 1) * period for trip, period in loops)


class Sides(NamedTuple):
    """The parts of a converter. one, two: at least so many windows are written and not completely read.

    filled, drained: a window is completely written, completely read. room: `o` has room for another token.
    asked, sent: a token for `o` is read from the memory, has left.
    """

    writer: Walker
    reader: Walker
    banks: Banks
    queue: Queue
    one: Signal
    two: Signal
    filled: Signal
    drained: Signal
    room: Signal
    asked: Signal
    sent: Signal


class WindowConverter(wiring.Component):
    """`i` to `o`: a side that fills windows of a memory, and a side that drains them."""

    def __init__(self, params: LayoutParams) -> None:
        self._params: Any = params
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(signature(params.source)),
                "o": Out(signature(params.target)),
            }
        )

    def _begin(self, m: Module) -> "Sides":
        """Build both sides; take descriptors; count windows and the room in the queue of `o`."""
        p = self._params
        m.submodules.writer = writer = Walker(p.writer)
        m.submodules.reader = reader = Walker(p.reader)
        m.submodules.banks = banks = Banks(p.banks)
        m.submodules.queue = queue = Queue(p.queue)
        self._start_walks(m, writer, reader)

        one, two = Signal(), Signal()  # windows that are written and not completely read
        filled, drained = Signal(), Signal()
        with m.If(filled & ~drained):
            m.d.sync += [one.eq(1), two.eq(one)]
        with m.Elif(drained & ~filled):
            m.d.sync += [one.eq(two), two.eq(0)]
        free, room = Signal(range(QUEUE_DEPTH + 1), init=QUEUE_DEPTH), Signal(init=1)  # room: free != 0
        asked, sent = Signal(), Signal()
        with m.If(asked & ~sent):
            m.d.sync += [free.eq(free - 1), room.eq(free != 1)]
        with m.Elif(sent & ~asked):
            m.d.sync += [free.eq(free + 1), room.eq(1)]
        return Sides(writer, reader, banks, queue, one, two, filled, drained, room, asked, sent)

    def _start_walks(self, m: Module, writer: Walker, reader: Walker) -> None:
        """Take descriptors; the reader's part waits until the reader has finished the previous one."""
        p, descriptor = self._params, self.i_descriptor
        m.submodules.waiting = waiting = Queue(p.waiting)
        fill, read = (
            Cat(
                descriptor.payload[field.name]
                for field in p.descriptor_fields()
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
