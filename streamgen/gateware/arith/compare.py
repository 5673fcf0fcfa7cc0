"""Order of two values of a format, the greater or the lesser of the two, and values above a bound.

    MaximumParams    max(a, b)
    MinimumParams    min(a, b)
    AboveParams      a if a > b, else 0; or a if |a| > b, else 0

All compare keys: the bits of a value with the sign turned round, all bits turned round for negative
values, rise as the values do. Compare and Above count both zeros as one value; Maximum and Minimum put +0
above -0, as IEEE 754 says of `maximum`. A NaN gives NaN.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
from amaranth import Cat, Const, Module, Mux, Value
from amaranth.hdl import ShapeLike
from amaranth.lib import enum
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.format import Float
from streamgen.gateware.arith.pipeline import Pipeline, operand
from streamgen.gateware.arith.unit import UnitParams


class Order(enum.IntEnum, shape=2):  # type: ignore[call-arg]
    """What the first operand is, seen from the second."""

    LESS = 0
    EQUAL = 1
    GREATER = 2
    UNORDERED = 3


@dataclass(frozen=True, kw_only=True)
class CompareParams(UnitParams):
    """Comparison in `form`; a NaN on either side is unordered."""

    form: Float
    operands = ("a", "b")
    latency = 2

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth, fitted to formats of 8 to 32 bits."""
        return Resources(lut=18 * self.form.bits // 5, ff=2 * self.form.bits + 3)

    def golden(self, a: ndarray, b: ndarray) -> ndarray:
        """int64 array of `Order`s of values of the format."""
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        order = np.where(a < b, Order.LESS, np.where(a > b, Order.GREATER, Order.EQUAL))
        return np.where(np.isnan(a) | np.isnan(b), Order.UNORDERED, order).astype(np.int64)

    def shapes(self) -> dict[str, ShapeLike]:
        return {**super().shapes(), "o": Order}

    def stages(self, m: Module, pipe: Pipeline, a: Value, b: Value) -> Value:
        s = keys(pipe, self.form, a, b, signed_zero=False)
        order = Mux(s.a < s.b, Order.LESS, Mux(s.a == s.b, Order.EQUAL, Order.GREATER))
        return pipe.stage(order=Mux(s.nan, Order.UNORDERED, order)).order


@dataclass(frozen=True, kw_only=True)
class MaximumParams(UnitParams):
    """The greater of two values in `form`; of a value and NaN, NaN. lesser: whether it is the lesser one."""

    form: Float
    operands = ("a", "b")
    latency = 2
    lesser: ClassVar[bool] = False

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth, fitted to formats of 8 to 32 bits."""
        return Resources(lut=22 * self.form.bits // 5, ff=3 * self.form.bits + 1)

    def golden(self, a: ndarray, b: ndarray) -> ndarray:
        """float64 array of the maxima, or minima, of values of the format."""
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        less = (a < b) | ((a == b) & np.signbit(a))
        chosen = np.where(less, *((a, b) if self.lesser else (b, a)))
        return np.where(np.isnan(a) | np.isnan(b), np.nan, chosen)

    def stages(self, m: Module, pipe: Pipeline, a: Value, b: Value) -> Value:
        form = self.form
        s = keys(pipe, form, a, b, signed_zero=True)
        key = pipe.wire(Mux(s.a < s.b, *((s.a, s.b) if self.lesser else (s.b, s.a))))
        return pipe.stage(bits=Mux(s.nan, form.nan, _bits(key))).bits


@dataclass(frozen=True, kw_only=True)
class MinimumParams(MaximumParams):
    """The lesser of two values in `form`; of a value and NaN, NaN."""

    lesser = True


@dataclass(frozen=True, kw_only=True)
class AboveParams(UnitParams):
    """a where it is above b, else +0, in `form`; of a value and NaN, NaN. magnitude: |a| is compared."""

    form: Float
    magnitude: bool = False
    operands = ("a", "b")
    latency = 2

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth."""
        return Resources(lut=22 * self.form.bits // 5, ff=3 * self.form.bits + 1)

    def golden(self, a: ndarray, b: ndarray) -> ndarray:
        """float64 array of the values or zeros, of values of the format."""
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        passed = np.where((np.abs(a) if self.magnitude else a) > b, a, 0.0)
        return np.where(np.isnan(a) | np.isnan(b), np.nan, passed)

    def stages(self, m: Module, pipe: Pipeline, a: Value, b: Value) -> Value:
        form = self.form
        s = pipe.stage(
            bound=_key(form, b, signed_zero=False),
            kept=a & Cat((~operand(form, a).zero).replicate(form.bits - 1), Const(1, 1)),
            nan=operand(form, a).nan | operand(form, b).nan,
        )
        compared = Cat(s.kept[:-1], Const(0, 1)) if self.magnitude else s.kept
        above = _key(form, compared, signed_zero=False) > s.bound
        return pipe.stage(bits=Mux(s.nan, form.nan, Mux(above, s.kept, 0))).bits


def keys(pipe: Pipeline, form: Float, a: Value, b: Value, *, signed_zero: bool) -> SimpleNamespace:
    """One stage: the keys of a and b, and whether one of them is NaN."""
    return pipe.stage(
        a=_key(form, a, signed_zero=signed_zero),
        b=_key(form, b, signed_zero=signed_zero),
        nan=operand(form, a).nan | operand(form, b).nan,
    )


def _key(form: Float, bits: Value, *, signed_zero: bool) -> Value:
    """An unsigned integer that rises with the value; subnormals count as zeros."""
    parts = operand(form, bits)
    magnitude = bits[:-1] & (~parts.zero).replicate(form.bits - 1)
    negative = parts.sign if signed_zero else parts.sign & ~parts.zero
    return Cat(magnitude ^ negative.replicate(form.bits - 1), ~negative)


def _bits(key: Value) -> Value:
    """The value with this key."""
    return Cat(key[:-1] ^ (~key[-1]).replicate(len(key) - 1), ~key[-1])
