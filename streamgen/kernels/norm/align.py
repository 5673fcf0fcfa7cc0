"""A real as an integer relative to the greatest exponent of its row: the value or its square.

    value     trunc(x · 2^(39 - E))               square    floor(x^2 · 2^(38 - 2·E))

E = G - 127 with G the greatest biased exponent of the row: 40 bits are kept. An x of biased exponent e is G -
e places below the top, its square twice as many; anything 40 places down or more is zero.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from amaranth import Cat, Const, Module, Mux, Shape, Value, signed, unsigned
from amaranth.lib.wiring import Component, In, Out
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith import F24
from streamgen.gateware.arith.multiply import multiplier_dsps
from streamgen.gateware.arith.pipeline import Pipeline

KEPT_BITS = 40
SPECIAL = 255  # the biased exponent of NaN and the infinities


@dataclass(frozen=True, kw_only=True)
class AlignParams:
    """square: whether to align the square."""

    square: bool

    @property
    def latency(self) -> int:
        """Cycles from x to the integer."""
        return 3

    @property
    def shape(self) -> Shape:
        """Bits of the integer."""
        return unsigned(KEPT_BITS) if self.square else signed(KEPT_BITS + 1)

    @property
    def resources(self) -> Resources:
        if self.square:
            return Resources(lut=118, ff=100, dsp=multiplier_dsps(F24.precision))
        return Resources(lut=145, ff=106)

    def golden(self, x: ndarray) -> tuple[ndarray, ndarray]:
        """Rows [T, K] of values of f24 -> (G [T], integers [T, K]), int64.

        Rows with NaN or an infinity have G = 255 and zeros, rows of zeros have G = 0.
        """
        finite = np.isfinite(x).all(axis=1)
        significand, exponent = F24.decompose(np.where(finite[:, None], x, 0.0))
        biased = np.where(significand != 0, exponent + F24.fraction_bits + F24.bias, 0)
        greatest = biased.max(axis=1)
        distance = np.where(significand != 0, greatest[:, None] - biased, 0)
        if self.square:
            terms = significand**2 << (KEPT_BITS - 2 * F24.precision) >> np.minimum(2 * distance, KEPT_BITS)
        else:
            terms = significand << (KEPT_BITS - F24.precision) >> np.minimum(distance, KEPT_BITS)
            terms = np.where(np.signbit(x), -terms, terms)
        return np.where(finite, greatest, SPECIAL), terms

    def build(self) -> "Align":
        return Align(self)


class Align(Component):
    """x: bits of f24; greatest: G; o: the integer, `latency` cycles later. The pipe never stops."""

    def __init__(self, params: AlignParams) -> None:
        self._params = params
        super().__init__({"x": In(F24.bits), "greatest": In(8), "o": Out(params.shape)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        square = self._params.square
        pipe = Pipeline(m, Const(1))
        exponent = self.x[F24.fraction_bits : -1]
        distance = (self.greatest - exponent)[:8]
        limit = KEPT_BITS // 2 if square else KEPT_BITS
        s = pipe.stage(
            significand=Cat(self.x[: F24.fraction_bits], Const(1, 1)),
            distance=distance[: (limit - 1).bit_length()],
            zero=(distance >= limit) | (exponent == 0),
            sign=self.x[-1],
        )
        if square:
            s = pipe.stage(product=s.significand * s.significand, distance=s.distance, zero=s.zero)
            shifted = _shift(s.product, Cat(Const(0, 1), s.distance))
            m.d.comb += self.o.eq(pipe.stage(term=Mux(s.zero, 0, shifted)).term)
        else:
            s = pipe.stage(magnitude=Mux(s.zero, 0, _shift(s.significand, s.distance)), sign=s.sign)
            flipped = Cat(s.magnitude ^ s.sign.replicate(KEPT_BITS), s.sign)
            m.d.comb += self.o.eq(pipe.stage(term=(flipped + s.sign)[: KEPT_BITS + 1].as_signed()).term)
        return m


def _shift(value: Value, distance: Value) -> Value:
    """The value on top of KEPT_BITS, shifted down."""
    return (Cat(Const(0, KEPT_BITS - len(value)), value) >> distance)[:KEPT_BITS]
