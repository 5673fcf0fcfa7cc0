"""Softmax of rows that come as one token each: the values of `softmax`, in fewer cycles.

    o = exp(i - max) / sum(exp(i - max))

Tiles in: `i` (1, lanes) f24, one a row. Out: `o` (1, lanes) f24. A row has `length` elements. Those behind
them are ignored; they go out as zeros, in a row of NaN as NaN.

    greatest element -> difference, exponential and term of each element -> sum, its float, its reciprocal
    exponentials wait in shift registers ----------------------------------------------------------> products

All rows have one length, so nothing is masked, and neither rows nor exponentials wait in memories. Stages of
units share cycles where their paths together stay within the limit of LUT levels (`gateware.arith.pipeline`).
Nothing in between ever stalls: a row is taken when the queue has room for its results.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np
from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.hdl import ShapeLike
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.clocks import Clocks, pipe
from streamgen.fifo.queue import QueueParams
from streamgen.gateware.arith import F24, IntToFloatParams, MergedUnitParams, MultiplyParams, ReciprocalParams
from streamgen.gateware.arith.pipeline import Pipeline, delayed, operand
from streamgen.gateware.arith.unit import UnitParams
from streamgen.gateware.rtl import Shared
from streamgen.gateware.stream import descriptor_signature, signature
from streamgen.itensor import ITensor
from streamgen.kernels.row_parts import halve, maximum
from streamgen.kernels.softmax.masked_rows import bits_of_key, key_of
from streamgen.kernels.softmax.rows import has_room
from streamgen.kernels.softmax.softmax import SoftmaxParams
from streamgen.kernels.softmax.terms import (
    DIFFERENCE,
    E_BITS,
    EXPONENTIAL,
    TERM_FRACTION,
    ExponentialParams,
    term_stage,
)

MOST_LANES = 32
_TERM_BITS = TERM_FRACTION + 1
_MULTIPLY, _RECIPROCAL = MultiplyParams(form=F24), ReciprocalParams(form=F24)
_ROOM = 3  # cycles in which the queue's room is not known yet, and a place that stays free


def _tree(pipe: Pipeline, values: list[Value], levels: int, join: Any) -> list[Value]:
    for _ in range(levels):
        values = halve(values, lambda a, b: pipe.wire(join(a, b)))
    return values


def _levels(values: int, first: int) -> tuple[int, ...]:
    """Levels of a tree by stage: `first` in the first one, then at most two."""
    left = ceil_log2(values) - first
    return (first,) if left <= 0 else (first, *[2] * (left // 2), *[1] * (left % 2))


@dataclass(frozen=True, kw_only=True)
class QuickTermParams(MergedUnitParams):
    """Operands x and the negated maximum of its row; the exponential, then its term (`terms`)."""

    form = F24
    operands = ("x", "negated")
    kept = frozenset((1, 3, 4, 5, 6, 7, 9, 11, 12, 13, 15, 16))

    @property
    def resources(self) -> Resources:
        """Fitted to synthesis."""
        units = DIFFERENCE.resources + EXPONENTIAL.resources
        return Resources(lut=units.lut + 99, ff=9 * units.ff // 10, dsp=units.dsp)

    def golden(self, x: ndarray, negated: ndarray) -> ndarray:
        """int64 array of results: exponentials, of which the terms are bits 23 and up."""
        e, terms = ExponentialParams().golden(x, negated)
        return F24.encode(e) | terms << E_BITS

    def shapes(self) -> dict[str, ShapeLike]:
        return {**super().shapes(), "o": E_BITS + _TERM_BITS}

    def stages(self, m: Module, pipe: Pipeline, x: Value, negated: Value) -> Value:
        own = self.merged(m, pipe)
        bits = EXPONENTIAL.stages(m, own, DIFFERENCE.stages(m, own, x, negated))
        s = term_stage(own, bits)
        return Cat(s.e, s.term)


@dataclass(frozen=True, kw_only=True)
class QuickFactorParams(MergedUnitParams):
    """The factor of a row from the sum of its terms, and whether it is NaN. width: of the sum, which is not
    negative."""

    width: int
    form = F24
    operands = ("total", "nan")
    kept = frozenset((2, 3, 5, 7, 8, 10, 11, 12))

    @property
    def convert(self) -> IntToFloatParams:
        return IntToFloatParams(width=self.width + 1, form=F24)

    @property
    def resources(self) -> Resources:
        """Fitted to synthesis."""
        units = self.convert.resources + _RECIPROCAL.resources
        return Resources(lut=units.lut, ff=4 * units.ff // 5, dsp=units.dsp)

    def golden(self, total: ndarray, nan: ndarray) -> ndarray:
        """float64 array of factors for int64 sums; 0 for 0."""
        value = self.convert.golden(total)
        with np.errstate(invalid="ignore"):
            factor = np.where(value == 0, 0.0, _RECIPROCAL.golden(value) * 2.0**TERM_FRACTION)
        return np.where(nan, np.nan, factor)

    def shapes(self) -> dict[str, ShapeLike]:
        return {**super().shapes(), "total": self.width, "nan": 1}

    def stages(self, m: Module, pipe: Pipeline, total: Value, nan: Value) -> Value:
        own, beside = self.merged(m, pipe), self.merged(m, pipe)
        for _ in range(self.convert.latency + _RECIPROCAL.latency):
            nan = beside.stage(nan=nan).nan
        value = self.convert.stages(m, own, Cat(total, Const(0, 1)).as_signed())
        parts = operand(F24, _RECIPROCAL.stages(m, own, value))
        raised = Cat(parts.fraction, (parts.exponent + TERM_FRACTION)[:8])
        factor = Mux(parts.exponent.all(), 0, raised)
        return own.stage(bits=Mux(nan, F24.nan, factor)).bits


@dataclass(frozen=True, kw_only=True)
class QuickProductParams(MergedUnitParams):
    """An exponential times the factor of its row."""

    form = F24
    operands = _MULTIPLY.operands
    kept = frozenset((2, 3, 4))

    @property
    def resources(self) -> Resources:
        """Fitted to synthesis."""
        unit = _MULTIPLY.resources
        return Resources(lut=unit.lut, ff=unit.ff - 2 * F24.precision, dsp=unit.dsp)

    def golden(self, a: ndarray, b: ndarray) -> ndarray:
        """float64 array of products of values of the format."""
        return _MULTIPLY.golden(a, b)

    def stages(self, m: Module, pipe: Pipeline, a: Value, b: Value) -> Value:
        return _MULTIPLY.stages(m, self.merged(m, pipe), a, b)


@dataclass(frozen=True, kw_only=True)
class QuickSoftmaxParams:
    """lanes: elements of a token. length: of a row. max_rows: of an execution.

    Bounds: rows. Raises ValueError for a row that is longer than a token, and for more than 32 lanes.
    """

    lanes: int
    length: int
    max_rows: int

    def __post_init__(self) -> None:
        if not 1 <= self.lanes <= MOST_LANES:
            raise ValueError(f"QuickSoftmax.lanes is {self.lanes}; 1 to {MOST_LANES} are allowed")
        if not 1 <= self.length <= self.lanes:
            raise ValueError(f"QuickSoftmax.length is {self.length}; it must be 1 to lanes = {self.lanes}")
        if self.max_rows < 1:
            raise ValueError(f"QuickSoftmax.max_rows is {self.max_rows}; it must be at least 1")

    @property
    def maxima(self) -> tuple[int, ...]:
        """Levels of the tree of maxima, by stage."""
        return _levels(self.length, 0)

    @property
    def adders(self) -> tuple[int, ...]:
        """Levels of the tree of terms, by stage."""
        return _levels(self.length, 1)

    @property
    def term(self) -> QuickTermParams:
        return QuickTermParams()

    @property
    def factor(self) -> QuickFactorParams:
        return QuickFactorParams(width=_TERM_BITS + ceil_log2(self.length))

    @property
    def product(self) -> QuickProductParams:
        return QuickProductParams()

    @property
    def stages(self) -> int:
        """Cycles from a row to its results in the queue."""
        trees = len(self.maxima) + len(self.adders)
        return trees + self.term.latency + self.factor.latency + self.product.latency

    @property
    def latency(self) -> int:
        """Cycles from a row taken to its results offered."""
        return self.stages + 1

    @property
    def queue(self) -> QueueParams:
        """The queue of results: with room for all rows that are under way."""
        depth = 1 << ceil_log2(self.latency + _ROOM)
        return QueueParams(bits=self.length * F24.bits + 1, depth=depth, memory="lutram")

    @property
    def _rows(self) -> SoftmaxParams:
        return SoftmaxParams(lanes=self.lanes, max_length=self.length)

    def itensor(self, bounds: Bounds) -> ITensor:
        """A token for each row."""
        return ITensor((1, self.lanes), "f24", (bounds["rows"], 1), (1, self.lanes), ((0,), (1,)))

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": self.itensor(bounds)}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": self.itensor(bounds)}

    def descriptor_fields(self) -> tuple[Field, ...]:
        return (Field("rows", self.max_rows.bit_length()),)

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        if not 1 <= bounds["rows"] <= self.max_rows:
            raise ValueError(f"QuickSoftmax: rows is {bounds['rows']}; it must be 1 to {self.max_rows}")
        return {"rows": bounds["rows"]}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        return self._rows.golden({"rows": bounds["rows"], "length": self.length}, inputs)

    def cost(self, bounds: Bounds) -> Cost:
        cycles = self.latency + bounds["rows"] + 1
        return Cost(resources=self.resources, ii=1.0, latency=self.latency, cycles=cycles)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        rows = bounds["rows"]
        return {"i": Curve.nest(1, (rows, 1)), "o": Curve.nest(1 + self.latency, (rows, 1))}

    def clocks(self, bounds: Bounds) -> Clocks:
        """A pipe that takes a row if the queue has room for it."""
        return pipe(("i",), ("o",), bounds["rows"], self.latency, self.queue.depth - 1)

    @property
    def resources(self) -> Resources:
        """Fitted to synthesis."""
        of_element = self.term.resources + self.product.resources + Resources(lut=120, ff=70)
        return (
            self.length * of_element + self.factor.resources + self.queue.resources + Resources(lut=60, ff=60)
        )

    def build(self) -> "QuickSoftmax":
        return QuickSoftmax(self)


class QuickSoftmax(wiring.Component):
    """i -> o."""

    def __init__(self, params: QuickSoftmaxParams) -> None:
        self.params = params
        bounds = {"rows": 1}
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(signature(params.inputs(bounds)["i"])),
                "o": Out(signature(params.outputs(bounds)["o"])),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self.params
        taken = self._take(m)
        moving = Signal(p.stages)
        m.d.sync += moving.eq(Cat(taken, moving))
        elements = [self.i.payload.word_select(lane, F24.bits) for lane in range(p.length)]

        elements, negated = self._greatest(m, elements)
        is_nan = negated[: F24.bits - 1][F24.fraction_bits - 1 :].all()
        results = [self._unit(m, f"term_{k}", p.term, x=x, negated=negated) for k, x in enumerate(elements)]
        tree = Pipeline(m, Const(1))
        partial = [result[E_BITS:] for result in results]
        for levels in p.adders:
            partial = _tree(tree, partial, levels, add)
            s = tree.stage(**{f"sum{k}": value for k, value in enumerate(partial)})
            partial = [getattr(s, f"sum{k}") for k in range(len(partial))]
        total = partial[0][: p.factor.width]
        nan = delayed(m, is_nan, p.term.latency + len(p.adders))
        factor = self._unit(m, "factor", p.factor, total=total, nan=nan)
        waits = len(p.adders) + p.factor.latency
        products = []
        for k, result in enumerate(results):
            e = delayed(m, result[:E_BITS], waits)
            products.append(self._unit(m, f"product_{k}", p.product, a=Cat(e, Const(0, 1)), b=factor))

        m.submodules.queue = queue = p.queue.build()
        m.d.comb += [
            queue.i.valid.eq(moving[-1]),
            queue.i.payload.eq(Cat(products, delayed(m, nan, p.factor.latency + p.product.latency))),
            self.o.valid.eq(queue.o.valid),
            queue.o.ready.eq(self.o.ready),
        ]
        behind = Mux(queue.o.payload[-1], Const(F24.nan, F24.bits), 0)
        m.d.comb += self.o.payload.eq(Cat(queue.o.payload[:-1], *[behind] * (p.lanes - p.length)))
        return m

    def _take(self, m: Module) -> Signal:
        """Take the rows of a descriptor. Returns whether one is taken."""
        p = self.params
        running, rows = Signal(), Signal(p.max_rows.bit_length(), reset_less=True)
        taken, room = Signal(), Signal()
        m.d.comb += [
            self.i_descriptor.ready.eq(~running),
            self.i.ready.eq(running & room),
            taken.eq(self.i.valid & self.i.ready),
            room.eq(has_room(m, taken, self.o.valid & self.o.ready, p.queue.depth)),
        ]
        with m.If(~running):
            m.d.sync += [running.eq(self.i_descriptor.valid), rows.eq(self.i_descriptor.payload.rows)]
        with m.If(taken):
            m.d.sync += [rows.eq(rows - 1), running.eq(rows != 1)]
        return taken

    def _greatest(self, m: Module, elements: list[Value]) -> tuple[list[Value], Value]:
        """The elements, and the greatest of them with its sign turned: NaN for NaN and infinity."""
        tree = Pipeline(m, Const(1))
        partial: list[Value] = [key_of(tree, element, Const(1, 1)) for element in elements]
        row: Value = Cat(elements)
        for levels in self.params.maxima:
            partial = _tree(tree, partial, levels, maximum)
            s = tree.stage(row=row, **{f"max{k}": value for k, value in enumerate(partial)})
            partial, row = [getattr(s, f"max{k}") for k in range(len(partial))], s.row
        not_finite = partial[0][F24.fraction_bits :].all()
        negated = tree.wire(Mux(not_finite, F24.nan, bits_of_key(partial[0], Const(1, 1))))
        return [row.word_select(k, F24.bits) for k in range(len(elements))], negated

    def _unit(self, m: Module, name: str, params: UnitParams, **operands: Value) -> Value:
        """The result of a unit."""
        m.submodules[name] = unit = Shared(params)
        m.d.comb += [unit.enable.eq(1), *(getattr(unit, pin).eq(value) for pin, value in operands.items())]
        return unit.o
