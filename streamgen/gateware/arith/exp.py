"""exp(x) and exp2(x), to a relative error below 2^-14 where the result is a normal number, never falling.

1. t = x·log2(e), or x: |t| as an integer in units of 2^-20, cut; t = n + g with n whole, 0 <= g < 1.
2. 2^g by table, in units of 2^-16; the result is 2^n·2^g, rounded.

exp(0) is exactly 1, exp2 of an integer exactly a power of two. Beyond the range the integer is the greatest
that its width holds, and the one test of the exponent gives infinity or zero.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from amaranth import Cat, Const, Module, Mux, Value
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.format import Float, round_magnitude
from streamgen.gateware.arith.multiply import round_stages
from streamgen.gateware.arith.pipeline import Pipeline, operand, resize_signed
from streamgen.gateware.arith.tables import EXP2, EXP2_BITS, TABLE_BITS
from streamgen.gateware.arith.unit import UnitParams

_FACTOR_BITS = 25
LOG2_E = round(float(np.log2(np.e)) * 2**_FACTOR_BITS)
_ONE = 1 << _FACTOR_BITS


def split(form: Float, x: ndarray, factor: int) -> tuple[ndarray, ndarray]:
    """int64 arrays n, g of values of the format times factor·2^-25 (1 to 2), g in units of 2^-20.

    |n| < 2^exponent_bits; what is larger, and infinity, counts as the greatest such number; NaN as 0.
    """
    whole = form.exponent_bits
    significand, exponent = form.decompose(x)
    product = (significand * factor) >> (form.precision + 6 - whole)
    distance = whole - 2 - (exponent + form.fraction_bits)
    t = np.where(significand == 0, 0, product >> np.clip(distance, 0, 63))
    t = np.where((distance < 0) & (significand != 0) | np.isinf(x), (1 << (whole + TABLE_BITS)) - 1, t)
    t = np.where(np.signbit(x), -t, t)
    return t >> TABLE_BITS, t & ((1 << TABLE_BITS) - 1)


def split_stages(pipe: Pipeline, form: Float, bits: Value, factor: int, negative: Value) -> SimpleNamespace:
    """Four stages: `split` of |x|, or of -|x| where `negative`: n (signed), g, and x, the bits."""
    whole = form.exponent_bits
    x = operand(form, bits)
    distance = (Const(whole - 2 + form.bias) - x.exponent)[: whole + 1]
    s = pipe.stage(
        significand=x.significand,
        distance=distance[:5],
        far=(distance[5:whole].any() if whole > 5 else Const(0, 1)) | x.zero,
        large=distance[-1],
        negative=negative,
        x=bits,
    )
    kept = {"negative": s.negative, "x": s.x}
    product = s.significand * Const(factor, _FACTOR_BITS + 1)
    product = product[form.precision + 6 - whole : form.precision + _FACTOR_BITS + 1]
    s = pipe.stage(t=product, distance=s.distance, far=s.far & ~s.large, large=s.large, **kept)

    kept = {"negative": s.negative, "x": s.x}
    t = Mux(s.far, 0, s.t >> (s.distance & 0b11100))
    s = pipe.stage(t=t, distance=s.distance[:2], large=s.large, **kept)

    t = pipe.wire((s.t >> s.distance) | s.large.replicate(len(s.t)))
    flipped = Cat(t, Const(0, 1)) ^ s.negative.replicate(len(t) + 1)
    s = pipe.stage(t=(flipped + s.negative)[: len(flipped)], x=s.x)
    return SimpleNamespace(n=s.t[TABLE_BITS:].as_signed(), g=s.t[:TABLE_BITS], x=s.x)


@dataclass(frozen=True, kw_only=True)
class ExpParams(UnitParams):
    """exp(x) in `form`, or 2^x with `base_two`."""

    form: Float
    base_two: bool = False
    latency = 9

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth."""
        p, e = self.form.precision, self.form.exponent_bits
        if self.base_two:
            return Resources(lut=11 * e + 182, ff=5 * p + 5 * e + 135, dsp=1)
        return Resources(lut=2 * p + 10 * e + 190, ff=2 * p + 5 * e + 165, dsp=2 if p <= 17 else 3)

    def golden(self, i: ndarray) -> ndarray:
        """float64 array of the function of values of the format."""
        form, x = self.form, np.asarray(i, np.float64)
        n, g = split(form, x, _ONE if self.base_two else LOG2_E)
        rounded, raised = round_magnitude(EXP2.golden(g).astype(np.uint64), form.precision)
        result = form.compose(np.zeros(x.shape, bool), rounded, n - EXP2_BITS + raised)
        return np.where(np.isnan(x), np.nan, result)

    def stages(self, m: Module, pipe: Pipeline, i: Value) -> Value:
        form = self.form
        factor = _ONE if self.base_two else LOG2_E
        s = split_stages(pipe, form, i, factor, negative=i[-1])
        s = EXP2.stages(m, pipe, "exp2", s.g, n=s.n, nan=operand(form, s.x).nan)
        never = Const(0, 1)
        padding = Const(0, max(0, form.precision - EXP2_BITS))
        return round_stages(
            pipe,
            form,
            normal=Cat(padding, s.value),
            sign=never,
            exponent=resize_signed(s.n + form.bias, form.exponent_bits + 3),
            zero=never,
            infinite=never,
            nan=s.nan,
        )
