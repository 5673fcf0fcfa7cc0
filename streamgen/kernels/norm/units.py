"""The arithmetic of a norm after its sums: 1 / root mean square of a row, and the result of an element.

    RowRoot    r = 1 / sqrt(total · inverse + epsilon · 4^(127 - G))         once a row, a row a cycle
    NormLane   o = (x · r · 2^(127 - G)) · w [+ b]                           once an element

x / 2^(G - 127), with G the greatest biased exponent of its row, is below 2, so nothing on the way to r can
overflow, for any row. Each of the four operations of r is rounded to f24; o has one rounding of the product
of x, r and the power, and one of the rest. The scaled epsilon saturates: it becomes infinite (then r is 0) or
the least normal number, and never 0 unless epsilon is 0.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from amaranth import Cat, Const, Module, Mux, Value, signed, unsigned
from amaranth.lib.wiring import Component, In, Out
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith import (
    F24,
    AddParams,
    IntToFloatParams,
    MultiplyAddParams,
    MultiplyParams,
    ReciprocalParams,
)
from streamgen.gateware.arith.multiply import multiply_stages
from streamgen.gateware.arith.pipeline import Pipeline, operand, resize_signed
from streamgen.kernels.norm.align import SPECIAL
from streamgen.kernels.norm.row_sum import delay, follow

LEAST = 2.0 ** (1 - F24.bias)
OFFSET_BITS = 10  # of the sum of exponents of x, r and the power, signed


def scaled_epsilon(epsilon: ndarray, greatest: ndarray, origin: int) -> ndarray:
    """float64: epsilon · 4^(origin - greatest), saturated as described above."""
    scaled = F24.round(np.ldexp(np.asarray(epsilon, np.float64), 2 * (origin - greatest)))
    return np.where((scaled < LEAST) & (epsilon != 0), LEAST, scaled)


def scale_epsilon(pipe: Pipeline, epsilon: Value, greatest: Value, origin: int) -> Value:
    """Two stages: the bits of `scaled_epsilon`. epsilon is not negative and not NaN."""
    exponent = epsilon[F24.fraction_bits : -1]
    moved = (exponent + 2 * origin - (greatest << 1))[:12].as_signed()
    s = pipe.stage(
        fraction=epsilon[: F24.fraction_bits], moved=moved, zero=exponent == 0, infinite=exponent == SPECIAL
    )
    small = s.moved <= 0
    large = s.infinite | (s.moved >= SPECIAL)
    biased = Mux(s.zero, 0, Mux(large, SPECIAL, Mux(small, 1, s.moved[:8])))
    plain = ~(s.zero | small | large)
    return pipe.stage(bits=Cat(Mux(plain, s.fraction, 0), biased, Const(0, 1))).bits


@dataclass(frozen=True, kw_only=True)
class RowRootParams:
    """total_bits: width of the sum, signed, in whatever unit `inverse` is made for."""

    total_bits: int

    @property
    def units(self) -> tuple[IntToFloatParams, MultiplyParams, AddParams, ReciprocalParams]:
        return (
            IntToFloatParams(width=self.total_bits, form=F24),
            MultiplyParams(form=F24),
            AddParams(form=F24),
            ReciprocalParams(form=F24, root=True),
        )

    @property
    def latency(self) -> int:
        """Cycles from the sum to r."""
        return sum(unit.latency for unit in self.units)

    @property
    def resources(self) -> Resources:
        total = Resources(lut=130, ff=150)
        for unit in self.units:
            total += unit.resources
        return total

    def golden(self, total: ndarray, greatest: ndarray, inverse: ndarray, epsilon: ndarray) -> ndarray:
        """float64 array of r; NaN where G is 255."""
        convert, multiply, add, root = self.units
        mean = multiply.golden(convert.golden(total), inverse)
        r = root.golden(add.golden(mean, scaled_epsilon(epsilon, greatest, F24.bias)))
        return np.where(greatest == SPECIAL, np.nan, r)

    def build(self) -> "RowRoot":
        return RowRoot(self)


class RowRoot(Component):
    """valid, total, greatest, inverse, epsilon (bits of f24) of a row; o_valid, o_root, o_greatest."""

    def __init__(self, params: RowRootParams) -> None:
        self._params = params
        super().__init__(
            {
                "valid": In(1),
                "total": In(signed(params.total_bits)),
                "greatest": In(8),
                "inverse": In(F24.bits),
                "epsilon": In(F24.bits),
                "o_valid": Out(1),
                "o_root": Out(F24.bits),
                "o_greatest": Out(8),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        pipe = Pipeline(m, Const(1))
        units = self._params.units
        m.submodules.convert, m.submodules.multiply, m.submodules.add, m.submodules.root = built = [
            unit.build() for unit in units
        ]
        convert, multiply, add, root = built
        m.d.comb += [unit.enable.eq(1) for unit in built]
        m.d.comb += [
            convert.i.eq(self.total),
            multiply.a.eq(convert.o),
            multiply.b.eq(delay(pipe, self.inverse, units[0].latency)),
            add.a.eq(multiply.o),
            root.i.eq(add.o),
        ]
        epsilon = scale_epsilon(pipe, self.epsilon, self.greatest, F24.bias)
        m.d.comb += add.b.eq(delay(pipe, epsilon, units[0].latency + units[1].latency - 2))
        greatest = delay(pipe, self.greatest, self._params.latency)
        m.d.comb += [
            self.o_valid.eq(follow(m, self.valid, self._params.latency)),
            self.o_greatest.eq(greatest),
            self.o_root.eq(Mux(greatest == SPECIAL, F24.nan, root.o)),
        ]
        return m


@dataclass(frozen=True, kw_only=True)
class NormLaneParams:
    """bias: whether b is added."""

    bias: bool

    @property
    def last_unit(self) -> MultiplyAddParams | MultiplyParams:
        return MultiplyAddParams(form=F24) if self.bias else MultiplyParams(form=F24)

    @property
    def scaling(self) -> int:
        """Cycles of the product of x and r."""
        return MultiplyParams(form=F24).latency

    @property
    def latency(self) -> int:
        """Enabled cycles from operands to result."""
        return self.scaling + self.last_unit.latency

    @property
    def resources(self) -> Resources:
        waiting = 2 if self.bias else 1
        own = Resources(lut=10 + F24.bits * waiting, ff=2 + F24.bits * waiting)
        return MultiplyParams(form=F24).resources + self.last_unit.resources + own

    def golden(self, x: ndarray, r: ndarray, greatest: ndarray, w: ndarray, b: ndarray | None) -> ndarray:
        """float64 array; r and G broadcast against x, of values of f24."""
        with np.errstate(invalid="ignore"):
            scaled = F24.round(x * r * np.ldexp(1.0, F24.bias - greatest))  # a power of two
        if b is None:
            return MultiplyParams(form=F24).golden(scaled, w)
        return MultiplyAddParams(form=F24).golden(scaled, w, b)

    def build(self) -> "NormLane":
        return NormLane(self)


class NormLane(Component):
    """x, w, b: bits of f24; of an x with exponent 0 the lowest bit marks padding, whose o is 0.

    Of the row: r (bits of f24) and `offset`, the exponent of r - G.
    """

    def __init__(self, params: NormLaneParams) -> None:
        self._params = params
        bits = unsigned(F24.bits)
        super().__init__(
            {
                "enable": In(1),
                "x": In(bits),
                "r": In(bits),
                "offset": In(signed(OFFSET_BITS)),
                "w": In(bits),
                **({"b": In(bits)} if params.bias else {}),
                "o": Out(bits),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        pipe = Pipeline(m, self.enable)
        x, r = operand(F24, self.x), operand(F24, self.r)
        s = pipe.stage(
            a=x.significand,
            b=r.significand,
            sign=x.sign,
            exponent=resize_signed(self.offset + x.exponent, OFFSET_BITS),
            zero=x.zero | r.zero,
            infinite=r.infinite,
            nan=r.nan | (r.infinite & x.zero),
        )
        scaled = multiply_stages(pipe, F24, **vars(s))
        m.submodules.last = last = self._params.last_unit.build()
        m.d.comb += [
            last.enable.eq(self.enable),
            last.a.eq(scaled),
            last.b.eq(delay(pipe, self.w, self._params.scaling)),
        ]
        if self._params.bias:
            m.d.comb += last.c.eq(delay(pipe, self.b, self._params.scaling))
        padding = delay(pipe, x.zero & x.fraction[0], self._params.latency)
        m.d.comb += self.o.eq(Mux(padding, 0, last.o))
        return m


def row_offset(root: Value, greatest: Value) -> Value:
    """`offset` of a row, from the bits of r and G."""
    return (root[F24.fraction_bits : -1] - greatest)[:OFFSET_BITS].as_signed()
