"""Rearrange: elements of a row of f24 at other places, once, several times or not at all, and numbers.

    o[r, j] = i[r, places[j]]            places[j] >= 0
              numbers[-1 - places[j]]    otherwise                r = 0 ... rows - 1

Tiles in and out: (1, 1), row-major. Rows wait in two halves of a memory: while one is read in the order of
the places, which are a table of the kernel, the next is written. An element a cycle comes in, and one goes
out.

The next descriptor is taken with the last token of `i`, before the last row is sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from amaranth import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.clocks import Clocks
from streamgen.fifo.curves import KernelSide
from streamgen.fifo.queue import QueueParams
from streamgen.gateware.arith import F24
from streamgen.gateware.stream import CountdownParams, add_skid, descriptor_signature
from streamgen.itensor import ITensor
from streamgen.kernels.row_parts import ring_resources, ring_style

LONGEST = 1 << 16  # elements of a row
_LATENCY = 3  # cycles from the reading of the table to the element that is sent
_HELD = 4  # elements between these
_HALVES = 2


@dataclass(frozen=True, kw_only=True)
class RearrangeParams:
    """features: elements of a row of `i`. places: by element of a row of `o`, its place in `i`, or -1 - k for
    numbers[k], which are values of f24. max_rows: of one descriptor. Bounds: rows."""

    features: int
    places: tuple[int, ...]
    numbers: tuple[float, ...] = ()
    max_rows: int
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, size in (("features", self.features), ("places", len(self.places))):
            if not 1 <= size <= LONGEST:
                raise ValueError(f"{name} of a rearrangement must be 1 to {LONGEST} elements, not {size}")
        least, most = -len(self.numbers), self.features - 1
        if min(self.places) < least or max(self.places) > most:
            raise ValueError(
                f"places of a rearrangement must be {least} to {most}, not {min(self.places)} to "
                f"{max(self.places)}"
            )
        if not 1 <= self.max_rows * self.features < 1 << 32:
            raise ValueError(
                f"max_rows of a rearrangement is {self.max_rows}; its rows must be 1 to 2^32 - 1 tokens"
            )

    @property
    def counter(self) -> CountdownParams:
        """Counts the tokens of a descriptor."""
        return CountdownParams(bits=(self.max_rows * self.features).bit_length())

    @property
    def half(self) -> int:
        """Words of half of the memory."""
        return 1 << (self.features - 1).bit_length()

    @property
    def word_bits(self) -> int:
        """Width of the table: whether an element is a number; its bits, or its place."""
        return 1 + (F24.bits if self.numbers else max(1, (self.features - 1).bit_length()))

    @property
    def has_table(self) -> bool:
        """Whether the words of the table differ."""
        return len(set(self.places)) > 1

    @cached_property
    def table(self) -> list[int]:
        """The words of the table."""
        numbers = [int(F24.encode(np.array(number))) for number in self.numbers]
        return [place << 1 if place >= 0 else numbers[-1 - place] << 1 | 1 for place in self.places]

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": _rows(bounds["rows"], self.features)}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": _rows(bounds["rows"], len(self.places))}

    def descriptor_fields(self) -> tuple[Field, ...]:
        return (Field("tokens", self.counter.bits),)

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        if not 1 <= bounds["rows"] <= self.max_rows:
            raise ValueError(f"Rearrange: rows is {bounds['rows']}; it must be 1 to {self.max_rows}")
        return {"tokens": bounds["rows"] * self.features}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """o [rows, places] of i [rows, features]."""
        x = inputs["i"]
        places = np.array(self.places)
        numbers = np.array([*self.numbers, 0.0], x.dtype)
        o = x[:, np.maximum(places, 0)]
        o[:, places < 0] = numbers[-1 - places[places < 0]]
        return {"o": o}

    def cost(self, bounds: Bounds) -> Cost:
        curves = self.curves(bounds)
        busiest = max((curve.cycles() for curve in curves.values()), key=len)
        out = curves["o"].cycles()
        gaps = len(busiest) - 1
        return Cost(
            resources=self._resources(),
            ii=float(busiest[-1] - busiest[0]) / gaps if gaps else 1.0,
            latency=int(out[0]) - 1,
            cycles=int(out[-1]) + 1,
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        """A row is written when its half is free, and read when it is complete."""
        writes, reads = self._begins(bounds["rows"])
        return {
            "i": Curve.at((writes[:, None] + np.arange(self.features)).reshape(-1)),
            "o": Curve.at((reads[:, None] + _LATENCY + np.arange(len(self.places))).reshape(-1)),
        }

    def clocks(self, bounds: Bounds) -> Clocks:
        """A row is read when all of it is there. When it is read, the row after the next may be written."""
        rows, features, sent = bounds["rows"], self.features, len(self.places)
        curves = {name: curve.cycles() for name, curve in self.curves(bounds).items()}
        take, send = KernelSide("take", curves["i"]), KernelSide("send", curves["o"])
        read = KernelSide("read", curves["o"] - _LATENCY)
        row, own = np.arange(rows), np.arange(rows * sent)
        later = row[_HALVES:]
        streams = (
            take.to(read, row * features + features - 1, row * sent),
            read.to(take, (later - _HALVES) * sent + sent - 1, later * features, latency=2),
            read.to(send, own, own, latency=_LATENCY),
            send.to(read, own[:-_HELD], own[_HELD:]),
        )
        moves = {port: (part, np.arange(len(part.cycles))) for port, part in (("i", take), ("o", send))}
        return Clocks((take, read, send), moves, streams)

    def build(self) -> "RearrangeKernel":
        return RearrangeKernel(self)

    def _begins(self, rows: int) -> tuple[ndarray, ndarray]:
        """The cycles in which each row begins to be written, and to be read."""
        writes, reads = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        for row in range(rows):
            written = writes[row - 1] + self.features if row else 1
            freed = reads[row - _HALVES] + len(self.places) + 1 if row >= _HALVES else 1
            writes[row] = max(written, freed)
            read = reads[row - 1] + len(self.places) if row else 1
            reads[row] = max(read, writes[row] + self.features)
        return writes, reads

    def _resources(self) -> Resources:
        """Fitted to synthesis."""
        table = QueueParams(bits=self.word_bits, depth=max(len(self.table), 8), memory="bram").storage
        rows = ring_resources(F24.bits, _HALVES * self.half)
        bits = (self.features - 1).bit_length() + (len(self.places) - 1).bit_length()
        control = Resources(
            lut=2.0 * bits + 1.5 * self.counter.bits + 46,
            ff=bits + self.counter.bits + 60 + (13 if self.numbers else 0),
        )
        return rows + control + Resources(lut=0, ff=0, bram=table.bram * self.has_table)


def _rows(rows: int, features: int) -> ITensor:
    return ITensor((1, 1), "f24", (rows, features), (1, 1), ((0,), (1,)))


class RearrangeKernel(wiring.Component):
    """`i` to `o`, which is registered."""

    def __init__(self, params: RearrangeParams) -> None:
        self._params = params
        token = stream.Signature(F24.bits)
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(token),
                "o": Out(token),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        m.submodules.count = count = p.counter.build()
        m.submodules.rows = rows = Memory(
            shape=F24.bits, depth=_HALVES * p.half, init=[], attrs=ring_style(_HALVES * p.half)
        )
        results = stream.Signature(F24.bits).create()
        add_skid(m, results, [wiring.flipped(self.o)])
        full = Array(Signal(name=f"full_{half}") for half in range(_HALVES))

        # A row is written into its half.
        write = rows.write_port()
        column, into = Signal(range(p.half)), Signal()
        step, row_ends = Signal(), column == p.features - 1
        m.d.comb += [
            *count.takes(self.i_descriptor, self.i_descriptor.payload.tokens),
            self.i.ready.eq(count.active & ~full[into]),
            step.eq(self.i.valid & self.i.ready),
            count.step.eq(step),
            write.en.eq(step),
            write.addr.eq(Cat(column, into) if p.half > 1 else into),
            write.data.eq(self.i.payload),
        ]
        with m.If(step):
            m.d.sync += column.eq(Mux(row_ends, 0, column + 1))
            with m.If(row_ends):
                m.d.sync += [full[into].eq(1), into.eq(~into)]

        # The table says what is read of a full half: a word of it in one cycle, the element in the next.
        element = rows.read_port()
        index, half = Signal(range(max(len(p.places), 2))), Signal()
        move, issue, last = Signal(), Signal(), index == len(p.places) - 1
        found, found_half, found_last = Signal(), Signal(), Signal()
        ready, number, is_number = Signal(), Signal(F24.bits), Signal()
        word: Any = Const(p.table[0], p.word_bits)
        if p.has_table:
            m.submodules.table = table = Memory(
                shape=p.word_bits, depth=len(p.table), init=p.table, attrs={"rom_style": "block"}
            )
            port = table.read_port()
            m.d.comb += [port.en.eq(move), port.addr.eq(index)]
            word = port.data
        place = word[1:]
        m.d.comb += [
            move.eq(~results.valid | results.ready),
            issue.eq(move & full[half]),
            element.en.eq(move),
            element.addr.eq(Cat(place[: (p.half - 1).bit_length()], found_half)),
            results.valid.eq(ready),
            results.payload.eq(Mux(is_number, number, element.data) if p.numbers else element.data),
        ]
        with m.If(move):
            m.d.sync += [found.eq(issue), found_half.eq(half), found_last.eq(last), ready.eq(found)]
            if p.numbers:
                m.d.sync += [number.eq(place), is_number.eq(word[0])]
            with m.If(found & found_last):
                m.d.sync += full[found_half].eq(0)
        with m.If(issue):
            m.d.sync += index.eq(Mux(last, 0, index + 1))
            with m.If(last):
                m.d.sync += half.eq(~half)
        return m
