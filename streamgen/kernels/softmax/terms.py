"""The arithmetic of softmax on single elements and over lanes: exponentials, shares of full scale, sums.

    e = exp(x - greatest)                   f24, a rounded difference, then the unit of `arith.exp`
    share = round(e * (2^p_bits - 1))       an integer, one rounding to nearest even
    term = floor(e * 2^39)                  40 bits: aligned to the greatest exponential of a row, which is 1

NaN, which a difference of infinities gives, counts as e = 0. Integers are added, so the order of a sum,
hence the number of lanes, cannot matter.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from operator import add
from types import SimpleNamespace
from typing import Any

import numpy as np
from amaranth import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith import F24, AddParams, ExpParams
from streamgen.gateware.arith.pipeline import Pipeline, align, operand, round_up
from streamgen.gateware.arith.remembered import remembered
from streamgen.kernels.row_parts import halve, tree_stages

TERM_FRACTION = 39
DIFFERENCE = AddParams(form=F24)
EXPONENTIAL = ExpParams(form=F24)
E_BITS = F24.bits - 1  # an exponential has no sign


@dataclass(frozen=True, kw_only=True)
class _LaneParams(ABC):
    """Operands x and the negated maximum of its row."""

    @property
    @abstractmethod
    def latency(self) -> int:
        """Cycles from operands to results."""

    @staticmethod
    def exponential(x: ndarray, negated: ndarray) -> ndarray:
        """float64 array: e."""
        e = remembered(EXPONENTIAL)(DIFFERENCE.golden(x, negated))
        return np.where(np.isnan(e), 0.0, e)

    @staticmethod
    def exponential_stages(m: Module, x: Value, negated: Value) -> Value:
        """The bits of e, NaN among them, DIFFERENCE.latency + EXPONENTIAL.latency cycles later."""
        m.submodules.difference = difference = DIFFERENCE.build()
        m.submodules.exponential = exponential = EXPONENTIAL.build()
        m.d.comb += [
            difference.enable.eq(1),
            difference.a.eq(x),
            difference.b.eq(negated),
            exponential.enable.eq(1),
            exponential.i.eq(difference.o),
        ]
        return exponential.o


@dataclass(frozen=True, kw_only=True)
class ShareParams(_LaneParams):
    """p_bits: of the integers that represent 0 to 1."""

    p_bits: int

    @property
    def latency(self) -> int:
        return DIFFERENCE.latency + EXPONENTIAL.latency + 3

    @property
    def sum_bits(self) -> int:
        """Bits of a summand."""
        return self.p_bits

    @property
    def resources(self) -> Resources:
        """Resources of synthesis beyond the two units, within a fifth."""
        own = Resources(lut=6 * self.p_bits + 62, ff=3 * self.p_bits + 44)
        return DIFFERENCE.resources + EXPONENTIAL.resources + own

    def golden(self, x: ndarray, negated: ndarray) -> ndarray:
        """int64 array of shares."""
        # A product of 16 and p_bits bits is exact in float64.
        return np.rint(self.exponential(x, negated) * ((1 << self.p_bits) - 1)).astype(np.int64)

    def build(self) -> "Share":
        return Share(self)


@dataclass(frozen=True, kw_only=True)
class ExponentialParams(_LaneParams):
    """An exponential, and its term of the sum."""

    @property
    def latency(self) -> int:
        return DIFFERENCE.latency + EXPONENTIAL.latency + 1

    @property
    def sum_bits(self) -> int:
        """Bits of a summand."""
        return TERM_FRACTION + 1

    @property
    def resources(self) -> Resources:
        """Resources of synthesis beyond the two units, within a fifth."""
        return DIFFERENCE.resources + EXPONENTIAL.resources + Resources(lut=99, ff=69)

    def golden(self, x: ndarray, negated: ndarray) -> tuple[ndarray, ndarray]:
        """float64 array of exponentials, int64 array of terms."""
        e = self.exponential(x, negated)
        return e, np.floor(e * 2.0**TERM_FRACTION).astype(np.int64)

    def build(self) -> "Exponential":
        return Exponential(self)


class Share(wiring.Component):
    """x, negated: bits of the operands; o: the share, `latency` cycles later."""

    def __init__(self, params: ShareParams) -> None:
        bits = unsigned(F24.bits)
        super().__init__({"x": In(bits), "negated": In(bits), "o": Out(unsigned(params.p_bits))})
        self._params = params

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p_bits = self._params.p_bits
        pipe = Pipeline(m, Const(1))
        e = operand(F24, self._params.exponential_stages(m, self.x, self.negated))
        places = ~e.exponent[:7]  # 127 - exponent; from p_bits + 2 places on the share is 0
        s = pipe.stage(
            product=(Cat(Const(0, p_bits), e.significand) - e.significand)[: F24.precision + p_bits],
            places=places[:5],
            none=e.exponent[7] | places[5:].any(),
        )
        aligned = align(pipe, s.product, s.places, Const(0, 1))
        s = pipe.stage(aligned=aligned, none=s.none)
        whole = s.aligned[F24.fraction_bits :][:p_bits]
        up = round_up(whole[0], s.aligned[: F24.fraction_bits])
        m.d.comb += self.o.eq(pipe.stage(share=Mux(s.none, 0, (whole + up)[:p_bits])).share)
        return m


class Exponential(wiring.Component):
    """x, negated: bits of the operands; e, term: `latency` cycles later."""

    def __init__(self, params: ExponentialParams) -> None:
        bits = unsigned(F24.bits)
        super().__init__(
            {"x": In(bits), "negated": In(bits), "e": Out(E_BITS), "term": Out(TERM_FRACTION + 1)}
        )
        self._params = params

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        bits = self._params.exponential_stages(m, self.x, self.negated)
        s = term_stage(Pipeline(m, Const(1)), bits)
        m.d.comb += [self.e.eq(s.e), self.term.eq(s.term)]
        return m


def term_stage(pipe: Pipeline, bits: Value) -> SimpleNamespace:
    """One stage: e and term of the bits of an exponential."""
    e = operand(F24, bits)
    places = ~e.exponent[:7]  # 127 - exponent
    unshifted = Cat(Const(0, TERM_FRACTION - F24.fraction_bits), e.significand)
    none = e.exponent[7] | places[6]
    return pipe.stage(
        e=Mux(e.exponent.all(), 0, bits[:E_BITS]),
        term=Mux(none, 0, unshifted >> places[:6]),
    )


@dataclass(frozen=True, kw_only=True)
class TermSumParams:
    """Sums over rows of unsigned numbers of `bits` bits, `lanes` at a time; up to `count` numbers a row."""

    lanes: int
    bits: int
    count: int

    @property
    def latency(self) -> int:
        """Cycles from the last numbers of a row to its sum."""
        return tree_stages(self.lanes) + 1

    @property
    def sum_bits(self) -> int:
        return self.bits + ceil_log2(self.count)

    @property
    def resources(self) -> Resources:
        """Resources of synthesis, within a fifth."""
        numbers, bits, registers = self.lanes, self.bits, 0
        for _ in range(tree_stages(self.lanes)):
            numbers, bits = -(-numbers // 4), bits + 2
            registers += numbers * bits
        lut = (self.lanes - 1) * (self.bits + 1.5) + self.sum_bits
        return Resources(lut=lut, ff=registers + self.sum_bits + tree_stages(self.lanes) + 2)

    def build(self) -> "TermSum":
        return TermSum(self)


class TermSum(wiring.Component):
    """valid, numbers, last: a token, and whether its row ends; o: the sum, when o_valid."""

    def __init__(self, params: TermSumParams) -> None:
        super().__init__(
            {
                "valid": In(1),
                "numbers": In(params.bits * params.lanes),
                "last": In(1),
                "o_valid": Out(1),
                "o": Out(params.sum_bits),
            }
        )
        self._params = params

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        lanes, bits = self._params.lanes, self._params.bits
        pipe = Pipeline(m, Const(1))
        s = SimpleNamespace(last=self.last)
        partial = [self.numbers.word_select(lane, bits) for lane in range(lanes)]
        for _ in range(tree_stages(lanes)):
            partial = halve(halve(partial, add), add)
            s = pipe.stage(last=s.last, **{f"sum{index}": value for index, value in enumerate(partial)})
            partial = [getattr(s, f"sum{index}") for index in range(len(partial))]
        present: Value = self.valid
        if pipe.depth:
            moving = Signal(pipe.depth)
            m.d.sync += moving.eq(Cat(self.valid, moving))
            present = moving[-1]
        first, total = Signal(init=1), Signal(self._params.sum_bits, reset_less=True)
        m.d.comb += self.o.eq(total)
        m.d.sync += self.o_valid.eq(present & s.last)
        with m.If(present):
            m.d.sync += [first.eq(s.last), total.eq(Mux(first, 0, total) + partial[0])]
        return m
