"""Sum of two values of a format, correctly rounded.

Stages: which operand is the greater; how far the smaller lies below it; its alignment; sum or
difference; most of the normalisation; the rest of it and the rounding decision; packed result. Three
bits below the significand (guard, round, and the OR of all further ones) decide the rounding of any sum:
where more than one bit is cancelled, the operands were at most one place apart and nothing was shifted out.
"""

from dataclasses import dataclass

import numpy as np
from amaranth import Cat, Const, Module, Mux, Value
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.format import Float
from streamgen.gateware.arith.multiply import round_stages
from streamgen.gateware.arith.pipeline import (
    Pipeline,
    align,
    normalise_step,
    operand,
    resize_signed,
    signed_width,
)
from streamgen.gateware.arith.unit import UnitParams


@dataclass(frozen=True, kw_only=True)
class AddParams(UnitParams):
    """Addition in `form`."""

    form: Float
    operands = ("a", "b")
    latency = 7

    @property
    def resources(self) -> Resources:
        """Estimate of what synthesis finds, fitted to formats of 8 to 32 bits."""
        p, e = self.form.precision, self.form.exponent_bits
        return Resources(lut=16 * p + 6 * e + 8, ff=10 * p + 4 * e + 30)

    def golden(self, a: ndarray, b: ndarray) -> ndarray:
        """float64 array of the sums of values of the format."""
        with np.errstate(invalid="ignore"):
            return self.form.round(np.asarray(a, np.float64) + np.asarray(b, np.float64))

    def stages(self, m: Module, pipe: Pipeline, a: Value, b: Value) -> Value:
        form = self.form
        precision = form.precision

        swap = a[:-1] < b[:-1]
        s = pipe.stage(big=Mux(swap, b, a), small=Mux(swap, a, b))

        big, small = operand(form, s.big), operand(form, s.small)
        distance = (big.exponent - small.exponent)[: form.exponent_bits]  # not negative
        places = (precision + 3).bit_length()
        subtract = big.sign ^ small.sign
        s = pipe.stage(
            exponent=big.exponent,
            big=big.significand,
            small=small.significand & ~small.zero.replicate(precision),
            distance=distance[:places],
            far=distance[places:].any() if places < form.exponent_bits else Const(0, 1),
            subtract=subtract,
            sign=big.sign & ~(big.zero & ~small.sign),
            zero=big.zero,
            infinite=big.infinite,
            nan=big.nan | small.nan | (big.infinite & small.infinite & subtract),
        )

        aligned = align(pipe, Cat(Const(0, 3), s.small), s.distance, s.far)
        kept = ("exponent", "sign", "zero", "infinite", "nan")
        s = pipe.stage(
            big=s.big, small=aligned, subtract=s.subtract, **{name: getattr(s, name) for name in kept}
        )

        width = precision + 4
        flipped = s.small ^ s.subtract.replicate(len(s.small))
        total = Cat(Const(0, 3), s.big) + Cat(flipped, s.subtract) + s.subtract
        s = pipe.stage(total=total[:width], **{name: getattr(s, name) for name in kept})

        coarse, shift = normalise_step(pipe, s.total, 16) if width > 16 else (s.total, Const(0, 0))
        coarse, shift_4 = normalise_step(pipe, coarse, 4)
        s = pipe.stage(coarse=coarse, shift=Cat(shift_4, shift), **{name: getattr(s, name) for name in kept})

        normal, shift_1 = normalise_step(pipe, s.coarse, 1)
        shift = Cat(shift_1, s.shift)
        cancelled = ~normal[-1]
        exponent_bits = signed_width(-width, 2 << form.exponent_bits)
        return round_stages(
            pipe,
            form,
            normal=normal,
            sign=s.sign & (~cancelled | s.zero),
            exponent=resize_signed(s.exponent + 1 - shift, exponent_bits),
            zero=cancelled,
            infinite=s.infinite,
            nan=s.nan,
        )


@dataclass(frozen=True, kw_only=True)
class SubtractParams(AddParams):
    """Subtraction in `form`."""

    def golden(self, a: ndarray, b: ndarray) -> ndarray:
        """float64 array of the differences of values of the format."""
        return super().golden(a, -np.asarray(b, np.float64))

    def stages(self, m: Module, pipe: Pipeline, a: Value, b: Value) -> Value:
        return super().stages(m, pipe, a, Cat(b[:-1], ~b[-1]))
