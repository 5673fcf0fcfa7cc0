"""Quotient of two values of a format, correctly rounded, by non-restoring division.

    r_0 = a,  q_i = (r_i >= 0),  r_(i+1) = 2·(r_i - b) or 2·(r_i + b)  as r_i was not or was negative

a, b are the significands (1 <= a, b < 2): r_i stays within ±2b, so that each step is one addition of
precision + 2 bits, and the sign of its result a bit of the quotient. Two steps a stage. precision + 2 bits
of the quotient hold `precision` bits and a guard bit wherever its leading one is; the remainder, not zero,
says that more would follow. Source: Ercegovac and Lang, Digital Arithmetic, chapter 5.
"""

from dataclasses import dataclass

import numpy as np
from amaranth import Cat, Const, Module, Mux, Value
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.format import Float
from streamgen.gateware.arith.multiply import round_stages
from streamgen.gateware.arith.pipeline import Pipeline, flags, operand, resize_signed, signed_width
from streamgen.gateware.arith.unit import UnitParams

_STEPS = 2  # in a stage


@dataclass(frozen=True, kw_only=True)
class DivideParams(UnitParams):
    """Division in `form`: x / 0 is infinite, 0 / 0 and infinity / infinity are NaN."""

    form: Float
    operands = ("a", "b")

    @property
    def latency(self) -> int:
        return 4 + -(-(self.form.precision + 2) // _STEPS)

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth, fitted to formats of 8 to 32 bits."""
        p = self.form.precision
        return Resources(lut=(11 * p + 92) * p // 10 + 46, ff=(10 * p + 74) * p // 10 + 16)

    def golden(self, a: ndarray, b: ndarray) -> ndarray:
        """float64 array of the quotients of values of the format."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.form.round(np.asarray(a, np.float64) / np.asarray(b, np.float64))

    def stages(self, m: Module, pipe: Pipeline, a: Value, b: Value) -> Value:
        form = self.form
        precision = form.precision

        a, b = operand(form, a), operand(form, b)
        width = signed_width(-2 * form.bias, 2 << form.exponent_bits)
        s = pipe.stage(
            remainder=resize_signed(a.significand, precision + 2),
            divisor=b.significand,
            quotient=Const(0, 0),
            sign=a.sign ^ b.sign,
            exponent=resize_signed(a.exponent - b.exponent + form.bias, width),
            zero=(a.zero | b.infinite) & ~b.zero,
            infinite=a.infinite | b.zero,
            nan=a.nan | b.nan | (a.zero & b.zero) | (a.infinite & b.infinite),
        )

        # The first step subtracts; what is kept as remainder is r - b or r + b, not yet doubled.
        count = precision + 2
        minus: Value = Const(1, 1)
        for first in range(0, count, _STEPS):
            remainder, quotient = s.remainder, s.quotient
            for step in range(first, min(first + _STEPS, count)):
                minus = Const(1, 1) if step == 0 else ~remainder[-1]
                doubled = remainder if step == 0 else remainder << 1
                remainder = pipe.wire(_add(doubled, s.divisor, minus, precision + 2))
                quotient = Cat(~remainder[-1], quotient)
            s.remainder, s.quotient = remainder, quotient
            s = pipe.stage(**vars(s))

        # A last remainder below zero lacks one divisor.
        rest = pipe.wire(s.remainder + Mux(s.remainder[-1], s.divisor, 0))[: precision + 1].any()
        s = pipe.stage(
            value=Cat(rest, s.quotient),
            **{name: getattr(s, name) for name in ("sign", "exponent", "zero", "infinite", "nan")},
        )
        top = s.value[-1]
        return round_stages(
            pipe,
            form,
            normal=Mux(top, s.value, s.value << 1)[: len(s.value)],
            exponent=(s.exponent - ~top)[:width].as_signed(),
            **flags(s),
        )


def _add(a: Value, b: Value, minus: Value, width: int) -> Value:
    """a + b or a - b in `width` bits, signed, as one carry chain: the bit below brings the carry in."""
    flipped = Cat(b, Const(0, width - len(b))) ^ minus.replicate(width)
    total = Cat(minus, a[:width]) + Cat(minus, flipped)
    return total[1 : width + 1].as_signed()
