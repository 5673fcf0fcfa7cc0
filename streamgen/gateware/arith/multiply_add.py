"""a·b + c of values of a format, rounded once (fused).

Product and addend are put into numbers of twice the precision, their leading ones on top or, the product's,
one below. The one with the smaller exponent is shifted down to the other, what it loses collected in the
lowest of three more bits. Bits are lost only where the exponents lie further apart than a
difference can cancel; the difference is negative only where they lie at most one apart.
"""

from dataclasses import dataclass

import numpy as np
from amaranth import Cat, Const, Module, Mux, Value
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.format import Float
from streamgen.gateware.arith.multiply import multiplier_dsps, round_stages
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
class MultiplyAddParams(UnitParams):
    """a·b + c in `form`."""

    form: Float
    operands = ("a", "b", "c")

    @property
    def latency(self) -> int:
        return 10 + self.wide

    @property
    def wide(self) -> bool:
        """Whether the leading one of a sum is found in two stages."""
        return 2 * self.form.precision + 3 > 16

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth."""
        p, e = self.form.precision, self.form.exponent_bits
        ff = 49 * p // 2 + 6 * e + 60 + self.wide * (2 * p + e + 14)
        return Resources(lut=34 * p + 8 * e + 50, ff=ff, dsp=multiplier_dsps(p))

    def golden(self, a: ndarray, b: ndarray, c: ndarray) -> ndarray:
        """float64 array of a·b + c of values of the format.

        The product is exact in float64. The sum is rounded to odd there, which makes the second rounding
        correct (Boldo and Melquiond, Emulation of FMA and correctly rounded sums, 2008).
        """
        with np.errstate(invalid="ignore"):
            product, c = np.asarray(a, np.float64) * np.asarray(b, np.float64), np.asarray(c, np.float64)
            total = product + c
            part = total - product
            lost = (product - (total - part)) + (c - part)  # exact: Knuth's TwoSum
            lost = np.where(np.isfinite(total), lost, 0.0)
            even = total.view(np.int64) & 1 == 0
            odd = np.where((lost != 0) & even, np.nextafter(total, np.copysign(np.inf, lost)), total)
        return self.form.round(odd)

    def stages(self, m: Module, pipe: Pipeline, a: Value, b: Value, c: Value) -> Value:
        form = self.form
        precision = form.precision
        exponent_bits = signed_width(-2 * form.bias, 2 << form.exponent_bits)

        a, b, c = (operand(form, bits) for bits in (a, b, c))
        none, clear = a.zero | b.zero, (a.infinite & b.zero) | (a.zero & b.infinite)
        infinite, sign = a.infinite | b.infinite, a.sign ^ b.sign
        s = pipe.stage(
            a=a.significand,
            b=b.significand,
            c=c.significand & (~c.zero).replicate(precision),
            product_exponent=resize_signed(a.exponent + b.exponent + (1 - form.bias), exponent_bits),
            exponent=c.exponent,
            product_zero=none,
            c_zero=c.zero,
            product_sign=sign,
            sign=c.sign,
            special_sign=Mux(infinite, sign, c.sign),
            infinite=infinite | c.infinite,
            nan=a.nan | b.nan | c.nan | clear | (infinite & c.infinite & (sign ^ c.sign)),
        )
        kept = {name: getattr(s, name) for name in ("infinite", "nan", "special_sign")}

        apart = s.product_exponent - s.exponent
        swap = pipe.wire(s.product_zero | (apart[-1] & ~s.c_zero))
        s = pipe.stage(
            product=s.a * s.b,
            c=s.c,
            swap=swap,
            apart=apart,
            product_zero=s.product_zero,
            exponent=Mux(swap, s.exponent, s.product_exponent),
            subtract=s.product_sign ^ s.sign,
            sign=Mux(swap, s.sign, s.product_sign),
            both_zero=s.product_zero & s.c_zero,
            zero_sign=s.product_sign & s.sign,
            **kept,
        )
        kept = {name: getattr(s, name) for name in kept}

        width = 2 * precision + 3
        product = s.product & (~s.product_zero).replicate(2 * precision)
        addend = Cat(Const(0, precision), s.c)
        distance = pipe.wire(Mux(s.swap, -s.apart, s.apart)[: len(s.apart)])
        places = (width - 1).bit_length()
        s = pipe.stage(
            big=Mux(s.swap, addend, product),
            small=Mux(s.swap, product, addend),
            distance=distance[:places],
            far=distance[places:].any() if places < len(distance) else Const(0, 1),
            exponent=s.exponent,
            subtract=s.subtract,
            sign=Mux(s.both_zero, s.zero_sign, s.sign),
            both_zero=s.both_zero,
            **kept,
        )
        carried = (*kept, "exponent", "sign", "both_zero")
        kept = {name: getattr(s, name) for name in carried}
        aligned = align(pipe, Cat(Const(0, 3), s.small), s.distance, s.far)
        s = pipe.stage(big=s.big, small=aligned, subtract=s.subtract, **kept)

        kept = {name: getattr(s, name) for name in carried}
        flipped = Cat(s.small, Const(0, 1)) ^ s.subtract.replicate(width + 1)
        # The carry comes in through one more bit below; bit `width` of a difference is its sign.
        total = Cat(s.subtract, Const(0, 3), s.big, Const(0, 1)) + Cat(s.subtract, flipped)
        s = pipe.stage(total=total[1 : width + 2], negative=total[width + 1] & s.subtract, **kept)

        kept = {name: getattr(s, name) for name in carried}
        absolute = (s.total ^ s.negative.replicate(width + 1)) + s.negative
        kept["sign"] = s.sign ^ s.negative
        s = pipe.stage(total=absolute[: width + 1], **kept)

        kept = {name: getattr(s, name) for name in carried}
        coarse, shift_16 = s.total, Const(0, 0)
        if self.wide:
            value, shift = normalise_step(pipe, s.total, 16)
            s = pipe.stage(value=value, shift=shift, **kept)
            kept = {name: getattr(s, name) for name in carried}
            coarse, shift_16 = s.value, s.shift
        middle, shift_4 = normalise_step(pipe, coarse, 4)
        s = pipe.stage(value=middle, shift=Cat(shift_4, shift_16), **kept)

        normal, shift_1 = normalise_step(pipe, s.value, 1)
        cancelled = ~normal[-1]
        kept = {name: getattr(s, name) for name in carried}
        exponent = s.exponent + 1 - Cat(shift_1, s.shift)
        s = pipe.stage(
            normal=normal,
            exponent=resize_signed(exponent, exponent_bits + 1),
            sign=Mux(s.infinite, s.special_sign, s.sign & (~cancelled | s.both_zero)),
            zero=cancelled,
            infinite=s.infinite,
            nan=s.nan,
        )
        return round_stages(pipe, form, **vars(s))
