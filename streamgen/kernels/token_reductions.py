"""One row for all rows of f24: by feature the sum, the mean, the greatest or the least element.

    sum     o[k] = i[0, k] + i[1, k] + ...         mean    o[k] = (i[0, k] + i[1, k] + ...) · (1 / rows)
    max     o[k] = max over r of i[r, k]           min     o[k] = min over r of i[r, k]

Tiles in: (1, lanes), row-major, rows of whole tokens. Tiles out: (1, lanes), one row.

Sums begin with +0 and are rounded to float32 after each row, in the order of the rows, and to f24 once. The
mean is their product with 1 / rows; the number of rows, its inverse and the product are rounded to f24. A sum
that leaves the range of f24 is infinite. A NaN gives NaN in its feature.

A token is taken every cycle, but a row begins at the earliest `period` cycles after the row before it: its
first token needs what that row has left. Rows of `period` tokens or more follow one another without a gap.
The mean of a single row waits for the inverse of 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from amaranth import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.queue import QueueParams
from streamgen.gateware.arith import (
    F24,
    FLOAT32,
    AddParams,
    ConvertParams,
    DivideParams,
    IntToFloatParams,
    MaximumParams,
    MinimumParams,
    MultiplyParams,
)
from streamgen.gateware.arith.pipeline import delayed
from streamgen.gateware.rtl import Shared
from streamgen.gateware.stream import descriptor_signature, signature
from streamgen.itensor import ITensor
from streamgen.kernels.norm.row_ring import memory_resources
from streamgen.kernels.norm.row_sum import follow
from streamgen.kernels.row_parts import ring_style
from streamgen.kernels.softmax.rows import has_room

LONGEST = 1 << 16
LEAST = 2.0**-126
FUNCTIONS = ("sum", "mean", "max", "min")
_RESULTS = 32  # tokens of the result on their way


@dataclass(frozen=True, kw_only=True)
class TokenReductionsParams:
    """function: "sum", "mean", "max" or "min". lanes: elements of a token. max_length: of a row, a multiple
    of lanes. max_rows: of one descriptor.

    Bounds: rows, length (a multiple of lanes).
    """

    function: Literal["sum", "mean", "max", "min"]
    lanes: int
    max_length: int
    max_rows: int

    def __post_init__(self) -> None:
        if self.function not in FUNCTIONS:
            raise ValueError(
                f"TokenReductions.function is {self.function!r}; {', '.join(map(repr, FUNCTIONS))} are "
                "allowed"
            )
        if not 1 <= self.lanes <= 32:
            raise ValueError(f"TokenReductions.lanes is {self.lanes}; 1 to 32 are allowed")
        if not self.lanes <= self.max_length <= LONGEST or self.max_length % self.lanes:
            raise ValueError(
                f"TokenReductions.max_length is {self.max_length}; a multiple of lanes = {self.lanes} up to "
                f"{LONGEST} is needed"
            )
        if not 1 <= self.max_rows < 1 << 32:
            raise ValueError(f"TokenReductions.max_rows is {self.max_rows}; 1 to 2^32 - 1 are allowed")

    @property
    def unit(self) -> AddParams | MaximumParams:
        """What joins an element with those of the rows before it."""
        if self.function in ("sum", "mean"):
            return AddParams(form=FLOAT32)
        return (MaximumParams if self.function == "max" else MinimumParams)(form=F24)

    @property
    def convert(self) -> ConvertParams | None:
        """The conversion of a sum to f24."""
        return ConvertParams(source=FLOAT32, target=F24) if self.unit.form == FLOAT32 else None

    @property
    def multiply(self) -> MultiplyParams | None:
        """The product of a mean."""
        return MultiplyParams(form=F24) if self.function == "mean" else None

    @property
    def count(self) -> IntToFloatParams:
        """The number of rows of a mean as an f24 value."""
        return IntToFloatParams(width=self.max_rows.bit_length() + 1, form=F24)

    @property
    def inverse(self) -> DivideParams:
        """One over this number."""
        return DivideParams(form=F24)

    @property
    def wait(self) -> int:
        """Cycles from the descriptor until the last row may begin: the inverse must meet its sums."""
        if self.convert is None or self.multiply is None:
            return 0
        return self.count.latency + self.inverse.latency - 1 - self.unit.latency - self.convert.latency

    @property
    def period(self) -> int:
        """The least cycles from row to row: from the reading of a token to the next reading of its place."""
        return self.unit.latency + 2

    @property
    def queue(self) -> QueueParams:
        """The results that wait for their reader."""
        return QueueParams(bits=self.lanes * F24.bits, depth=_RESULTS, memory="lutram")

    @property
    def waiting(self) -> int:
        """Cycles from a token of the last row to its result in the queue."""
        after = (self.convert, self.multiply)
        return 1 + self.unit.latency + sum(unit.latency for unit in after if unit is not None)

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": self._stream(bounds, bounds["rows"])}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": self._stream(bounds, 1)}

    def descriptor_fields(self) -> tuple[Field, ...]:
        """rows; end: tokens of a row less one."""
        end_bits = max(1, (self.max_length // self.lanes - 1).bit_length())
        return Field("rows", self.max_rows.bit_length()), Field("end", end_bits)

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        rows, length = bounds["rows"], bounds["length"]
        if not 1 <= rows <= self.max_rows:
            raise ValueError(f"TokenReductions: rows is {rows}; it must be 1 to {self.max_rows}")
        if not 1 <= length <= self.max_length or length % self.lanes:
            raise ValueError(
                f"TokenReductions: length is {length}; it must be a multiple of {self.lanes} up to "
                f"{self.max_length}"
            )
        return {"rows": rows, "end": length // self.lanes - 1}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        x = inputs["i"]
        with np.errstate(invalid="ignore"):  # a signalling NaN is as good as another
            x = x.astype(np.float64)
        x = np.where(np.abs(x) < LEAST, np.copysign(0.0, x), x)
        sums = self.unit.form == FLOAT32
        total = np.zeros(x.shape[1]) if sums else x[0]
        for row in x:
            total = self.unit.golden(row, total)
        if self.convert is not None:
            total = self.convert.golden(total)
        if self.multiply is not None:
            count = self.count.golden(np.array([bounds["rows"]]))
            total = self.multiply.golden(total, self.inverse.golden(np.ones(1), count))
        return {"o": total.astype(np.float32)[None]}

    def cost(self, bounds: Bounds) -> Cost:
        tokens = bounds["length"] // self.lanes
        first = self._first(bounds)
        last = (bounds["rows"] - 1) * self._paced(tokens) + tokens - 1  # cycles from first to last token
        return Cost(
            resources=self._resources(),
            ii=last / max(1, bounds["rows"] * tokens - 1) or 1.0,
            latency=first - self._begin(bounds["rows"]),
            cycles=first + tokens,
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        rows, tokens = bounds["rows"], bounds["length"] // self.lanes
        return {
            "i": Curve.nest(self._begin(rows), (rows, self._paced(tokens)), (tokens, 1)),
            "o": Curve.nest(self._first(bounds), (tokens, 1)),
        }

    def build(self) -> "TokenReductions":
        return TokenReductions(self)

    def _begin(self, rows: int) -> int:
        """The cycle of the first token."""
        return 1 + (self.wait if rows == 1 else 0)

    def _paced(self, tokens: int) -> int:
        """Cycles from row to row, for rows of so many tokens."""
        return max(tokens, self.period)

    def _first(self, bounds: Bounds) -> int:
        """The cycle of the first result."""
        before = (bounds["rows"] - 1) * self._paced(bounds["length"] // self.lanes)
        return self._begin(bounds["rows"]) + before + self.waiting + 1

    def _stream(self, bounds: Bounds, rows: int) -> ITensor:
        trips = (rows, bounds["length"] // self.lanes)
        return ITensor((1, self.lanes), "f24", trips, (1, self.lanes), ((0,), (1,)))

    def _resources(self) -> Resources:
        """Fitted to synthesis."""
        units = [unit.resources for unit in (self.unit, self.convert, self.multiply) if unit is not None]
        bits = sum(field.bits for field in self.descriptor_fields())
        control = Resources(lut=3 * bits + 30, ff=2 * bits + 30)
        entry = Resources(lut=self.unit.form.bits, ff=F24.bits)
        total = self.queue.resources + control
        for part in (*units, entry):
            total = total + self.lanes * part
        if self.function == "mean":
            total = total + self.count.resources + self.inverse.resources
        depth = self.max_length // self.lanes
        return total + memory_resources(self.lanes * self.unit.form.bits, depth)


class TokenReductions(wiring.Component):
    """i -> a unit for each lane, and a memory that holds a row -> conversion, product -> queue -> o."""

    def __init__(self, params: TokenReductionsParams) -> None:
        self._params = params
        bounds = {"rows": 1, "length": params.max_length}
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(signature(params.inputs(bounds)["i"])),
                "o": Out(signature(params.outputs(bounds)["o"])),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        m.submodules.queue = queue = p.queue.build()
        wiring.connect(m, queue.o, wiring.flipped(self.o))
        taken, index, first, last, rows = self._take(m)
        factor = self._factor(m, rows)
        bits, latency = p.unit.form.bits, p.unit.latency
        depth = p.max_length // p.lanes
        m.submodules.row = row = Memory(
            shape=unsigned(p.lanes * bits), depth=depth, init=[], attrs=ring_style(depth)
        )
        read, write = row.read_port(), row.write_port()
        data, begins = delayed(m, self.i.payload, 1), delayed(m, first, 1)
        results: list[Value] = []
        for lane in range(p.lanes):
            unit = Shared(p.unit)
            m.submodules[f"unit_{lane}"] = unit
            element = data.word_select(lane, F24.bits)
            before = read.data.word_select(lane, bits)
            new = Cat(Const(0, bits - F24.bits), element)
            start = Const(0, bits) if bits != F24.bits else new
            m.d.comb += [unit.enable.eq(1), unit.a.eq(new), unit.b.eq(Mux(begins, start, before))]
            results.append(unit.o)
        written = follow(m, taken, 1 + latency)
        m.d.comb += [
            read.en.eq(1),
            read.addr.eq(index),
            write.en.eq(written),
            write.addr.eq(delayed(m, index, 1 + latency)),
            write.data.eq(Cat(*results)),
            queue.i.valid.eq(follow(m, taken & last, p.waiting)),
            queue.i.payload.eq(Cat(*(self._made(m, lane, o, factor) for lane, o in enumerate(results)))),
        ]
        return m

    def _made(self, m: Module, lane: int, total: Value, factor: Value) -> Value:
        """The result of a lane from what the unit has made of all rows."""
        p = self._params
        if p.convert is not None:
            m.submodules[f"convert_{lane}"] = convert = Shared(p.convert)
            m.d.comb += [convert.enable.eq(1), convert.i.eq(total)]
            total = convert.o
        if p.multiply is not None:
            m.submodules[f"multiply_{lane}"] = multiply = Shared(p.multiply)
            m.d.comb += [multiply.enable.eq(1), multiply.a.eq(total), multiply.b.eq(factor)]
            total = multiply.o
        return total

    def _factor(self, m: Module, rows: Value) -> Value:
        """One over the number of rows, when the last sums of these rows come out of their conversion."""
        p = self._params
        if p.function != "mean":
            return Const(0, F24.bits)
        m.submodules.count = count = p.count.build()
        m.submodules.inverse = inverse = p.inverse.build()
        one = (F24.bias << F24.fraction_bits) & ((1 << F24.bits) - 1)
        m.d.comb += [
            Cat(count.enable, inverse.enable).eq(3),
            count.i.eq(Cat(rows, Const(0, 1)).as_signed()),
            inverse.a.eq(one),
            inverse.b.eq(count.o),
        ]
        return inverse.o

    def _take(self, m: Module) -> tuple[Value, Value, Value, Value, Value]:
        """Take the tokens of a descriptor. Returns: a token is taken; its index in the row; it is of the
        first row, of the last row; the number of rows."""
        p = self._params
        descriptor, given = self.i_descriptor, self.i_descriptor.payload
        rows, end = Signal.like(given.rows, reset_less=True), Signal.like(given.end, reset_less=True)
        index, running, taken, first = Signal.like(end, reset_less=True), Signal(), Signal(), Signal()
        # Cycles until a row may begin. They are counted from the last token of the row before it: the tokens
        # of that row were taken then, or as early as without stalls.
        pause, gap = Signal(range(p.period)), Signal(range(p.period), reset_less=True)
        row_ends, last, waits = Signal(), Signal(), Signal(range(p.wait + 1))
        room = has_room(m, taken & last, self.o.valid & self.o.ready, _RESULTS)
        paused = (index == 0) & (pause != 0) | (waits != 0) & last
        m.d.comb += [
            row_ends.eq(index == end),
            last.eq(rows == 1),
            descriptor.ready.eq(~running | (taken & row_ends & last)),
            self.i.ready.eq(running & ~paused & (room | ~last)),
            taken.eq(self.i.valid & self.i.ready),
        ]
        with m.If(taken & row_ends):
            m.d.sync += pause.eq(gap)
        with m.Elif(pause != 0):
            m.d.sync += pause.eq(pause - 1)
        with m.If(waits != 0):
            m.d.sync += waits.eq(waits - 1)
        with m.If(descriptor.ready):
            m.d.sync += [
                running.eq(descriptor.valid),
                rows.eq(given.rows),
                end.eq(given.end),
                index.eq(0),
                first.eq(1),
                waits.eq(p.wait),
                pause.eq(0),  # a first row reads nothing
                gap.eq(Mux(given.end < p.period - 1, p.period - 1 - given.end, 0)),
            ]
        with m.Elif(taken):
            m.d.sync += [
                index.eq(Mux(row_ends, 0, index + 1)),
                rows.eq(rows - row_ends),
                first.eq(first & ~row_ends),
            ]
        if p.function != "mean":
            return taken, index, first, last, rows
        count = Signal.like(given.rows, reset_less=True)
        with m.If(descriptor.ready):
            m.d.sync += count.eq(given.rows)
        return taken, index, first, last, count
