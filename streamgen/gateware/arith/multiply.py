"""Product of two values of a format, correctly rounded.

Stages: operands (a DSP's input registers), product, normalisation and rounding decision, packed result.
The product of two significands has its leading one in one of the top two bits.
"""

from dataclasses import dataclass

import numpy as np
from amaranth import Module, Mux, Value
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.format import Float
from streamgen.gateware.arith.pipeline import Pipeline, operand, pack, resize_signed, round_up, signed_width
from streamgen.gateware.arith.unit import UnitParams


def multiplier_dsps(precision: int) -> int:
    """DSPs of a product of two significands: 17 bits fit one, products of less than 9 bits take LUTs."""
    return 0 if 2 * precision < 9 else 1 if precision <= 17 else 2


def round_stages(
    pipe: Pipeline, form: Float, *, normal: Value, sign: Value, exponent: Value, **special: Value
) -> Value:
    """Two stages: round `normal`, a significand of more than `precision` bits with its leading one on
    top, and pack. `exponent` (signed, biased, any range that leaves room for one more) is that one's;
    `special` are the flags zero, infinite and nan of `pack`. Gives the bits.
    """
    cut = len(normal) - form.precision
    s = pipe.stage(
        sign=sign,
        exponent=exponent,
        fraction=normal[cut:-1],
        up=round_up(normal[cut], normal[:cut]),
        **special,
    )
    return pipe.stage(bits=pack(pipe, form, **vars(s))).bits


def multiply_stages(
    pipe: Pipeline, form: Float, *, a: Value, b: Value, sign: Value, exponent: Value, **special: Value
) -> Value:
    """Three stages: the rounded product of the significands a and b (leading ones on top).

    `exponent` is the sum of theirs (signed, biased once, room for two more). Gives the bits.
    """
    s = pipe.stage(product=a * b, sign=sign, exponent=exponent, **special)
    top = s.product[-1]
    return round_stages(
        pipe,
        form,
        normal=Mux(top, s.product, s.product << 1)[: len(s.product)],
        sign=s.sign,
        exponent=(s.exponent + top)[: len(exponent)].as_signed(),
        **{name: getattr(s, name) for name in special},
    )


@dataclass(frozen=True, kw_only=True)
class MultiplyParams(UnitParams):
    """Multiplication in `form`."""

    form: Float
    operands = ("a", "b")
    latency = 4

    @property
    def resources(self) -> Resources:
        """Estimate of what synthesis finds, fitted to formats of 8 to 32 bits."""
        p, e = self.form.precision, self.form.exponent_bits
        parts = p + 5 if multiplier_dsps(p) > 1 else 0  # the sum of the products of two multipliers
        return Resources(lut=2 * p + 3 * e + 20 + parts, ff=6 * p + 4 * e + 5, dsp=multiplier_dsps(p))

    def golden(self, a: ndarray, b: ndarray) -> ndarray:
        """float64 array of the products of values of the format."""
        with np.errstate(invalid="ignore"):
            return self.form.round(np.asarray(a, np.float64) * np.asarray(b, np.float64))

    def stages(self, m: Module, pipe: Pipeline, a: Value, b: Value) -> Value:
        form = self.form
        a, b = operand(form, a), operand(form, b)
        width = signed_width(-form.bias, 2 << form.exponent_bits)
        s = pipe.stage(
            a=a.significand,
            b=b.significand,
            sign=a.sign ^ b.sign,
            exponent=a.exponent + b.exponent,
            zero=a.zero | b.zero,
            infinite=a.infinite | b.infinite,
            nan=a.nan | b.nan | (a.infinite & b.zero) | (a.zero & b.infinite),
        )
        s.exponent = resize_signed(s.exponent - form.bias, width)
        return multiply_stages(pipe, form, **vars(s))
