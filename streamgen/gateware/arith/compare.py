"""Order of two values of a format, and the greater of the two.

Both compare keys: the bits of a value with the sign turned round, all bits turned round for negative
values, rise as the values do. Compare counts both zeros as one value, Maximum puts +0 above -0, as IEEE 754
says of `maximum`; there a NaN gives NaN.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from amaranth import Cat, Module, Mux, Value, unsigned
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.format import Float
from streamgen.gateware.arith.pipeline import Pipeline, operand


class Order(enum.IntEnum, shape=2):  # type: ignore[call-arg]
    """What the first operand is, seen from the second."""

    LESS = 0
    EQUAL = 1
    GREATER = 2
    UNORDERED = 3


@dataclass(frozen=True, kw_only=True)
class CompareParams:
    """Comparison in `form`; a NaN on either side is unordered."""

    form: Float

    @property
    def latency(self) -> int:
        """Stages, hence enabled cycles from operands to result."""
        return 2

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth, fitted to formats of 8 to 32 bits."""
        return Resources(lut=18 * self.form.bits // 5, ff=2 * self.form.bits + 3)

    def golden(self, a: ndarray, b: ndarray) -> ndarray:
        """int64 array of `Order`s of values of the format."""
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        order = np.where(a < b, Order.LESS, np.where(a > b, Order.GREATER, Order.EQUAL))
        return np.where(np.isnan(a) | np.isnan(b), Order.UNORDERED, order).astype(np.int64)

    def build(self) -> "Compare":
        return Compare(self)


@dataclass(frozen=True, kw_only=True)
class MaximumParams:
    """The greater of two values in `form`; of a value and NaN, NaN."""

    form: Float

    @property
    def latency(self) -> int:
        """Stages, hence enabled cycles from operands to result."""
        return 2

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth, fitted to formats of 8 to 32 bits."""
        return Resources(lut=22 * self.form.bits // 5, ff=3 * self.form.bits + 1)

    def golden(self, a: ndarray, b: ndarray) -> ndarray:
        """float64 array of the maxima of values of the format."""
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        greater = np.where((a > b) | ((a == b) & np.signbit(b)), a, b)
        return np.where(np.isnan(a) | np.isnan(b), np.nan, greater)

    def build(self) -> "Maximum":
        return Maximum(self)


class Compare(wiring.Component):
    """a, b: the bits of the operands; o: their `Order`, `latency` enabled cycles later."""

    def __init__(self, params: CompareParams) -> None:
        bits = unsigned(params.form.bits)
        super().__init__({"enable": In(1), "a": In(bits), "b": In(bits), "o": Out(Order)})
        self._params = params

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        form = self._params.form
        pipe = Pipeline(m, self.enable)
        a, b = operand(form, self.a), operand(form, self.b)
        s = pipe.stage(
            a=_key(form, self.a, signed_zero=False),
            b=_key(form, self.b, signed_zero=False),
            nan=a.nan | b.nan,
        )
        order = Mux(s.a < s.b, Order.LESS, Mux(s.a == s.b, Order.EQUAL, Order.GREATER))
        m.d.comb += self.o.eq(pipe.stage(order=Mux(s.nan, Order.UNORDERED, order)).order)
        return m


class Maximum(wiring.Component):
    """a, b: the bits of the operands; o: of the maximum, `latency` enabled cycles later."""

    def __init__(self, params: MaximumParams) -> None:
        bits = unsigned(params.form.bits)
        super().__init__({"enable": In(1), "a": In(bits), "b": In(bits), "o": Out(bits)})
        self._params = params

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        form = self._params.form
        pipe = Pipeline(m, self.enable)
        a, b = operand(form, self.a), operand(form, self.b)
        s = pipe.stage(
            a=_key(form, self.a, signed_zero=True),
            b=_key(form, self.b, signed_zero=True),
            nan=a.nan | b.nan,
        )
        key = pipe.wire(Mux(s.a < s.b, s.b, s.a))
        bits = Cat(key[:-1] ^ (~key[-1]).replicate(form.bits - 1), ~key[-1])
        m.d.comb += self.o.eq(pipe.stage(bits=Mux(s.nan, form.nan, bits)).bits)
        return m


def _key(form: Float, bits: Value, *, signed_zero: bool) -> Value:
    """An unsigned integer that rises with the value; subnormals count as zeros."""
    parts = operand(form, bits)
    magnitude = bits[:-1] & (~parts.zero).replicate(form.bits - 1)
    negative = parts.sign if signed_zero else parts.sign & ~parts.zero
    return Cat(magnitude ^ negative.replicate(form.bits - 1), ~negative)
