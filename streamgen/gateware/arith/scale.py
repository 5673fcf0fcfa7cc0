"""An integer accumulator to floating point: acc · scale · 2^(exponent - 15).

The last step of a matmul in exact integers. Three roundings at most and no surprise between them:

1. acc, rounded to the precision of the format, its exponent without limits;
2. times the row scale, a value of the format, rounded to that precision, again without limits;
3. times 2^(exponent - 15), exact: one overflow (infinity) or underflow (zero) test of the final value.

Zeros, infinities and NaN of the scale behave as in a product of two floats (0 · infinity is NaN,
signs multiply, acc = 0 counts as +0). 15 is the number of fraction bits of the accumulator. The exponent
`formats.E_NOT_FINITE` marks a row that held NaN or an infinity when it was quantised: the result is NaN.
"""

from dataclasses import dataclass

import numpy as np
from amaranth import Cat, Const, Module, Value, signed
from amaranth.hdl import ShapeLike
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.format import Float, round_magnitude, round_significand
from streamgen.gateware.arith.integer import magnitude, normalise_integer
from streamgen.gateware.arith.multiply import multiplier_dsps, multiply_stages
from streamgen.gateware.arith.pipeline import Pipeline, operand, resize_signed, round_up, signed_width
from streamgen.gateware.arith.unit import UnitParams
from streamgen.numbers.formats import E_NOT_FINITE

ACCUMULATOR_FRACTION = 15
_EXACT = 1 << 53  # float64 holds all integers up to it
_FAR = 600  # more than an accumulator and a scale can make good


@dataclass(frozen=True, kw_only=True)
class ScaleAccumulatorParams(UnitParams):
    """Signed accumulators of `width` bits, signed exponents of `exponent_bits`, scales and results in `form`.

    Raises ValueError unless 2 <= width <= 64 and 2 <= exponent_bits <= 32.
    """

    width: int
    form: Float
    exponent_bits: int = 16
    operands = ("acc", "scale", "exponent")
    latency = 8

    def __post_init__(self) -> None:
        if not 2 <= self.width <= 64:
            raise ValueError(f"width is {self.width}; 2 to 64 bits are allowed")
        if not 2 <= self.exponent_bits <= 32:
            raise ValueError(f"exponent_bits is {self.exponent_bits}; 2 to 32 bits are allowed")

    @property
    def resources(self) -> Resources:
        """Estimate of what synthesis finds, fitted to formats of 8 to 32 bits."""
        p = self.form.precision
        width = max(self.width, p + 2)
        return Resources(
            lut=5 * width + 4 * (p + self.exponent_bits) + 20,
            ff=3 * width + 6 * p + 2 * self.exponent_bits + 53,
            dsp=multiplier_dsps(p),
        )

    def golden(self, acc: ndarray, scale: ndarray, exponent: ndarray) -> ndarray:
        """float64 array from accumulators, scales of the format and integer exponents (broadcast).

        Accumulators are int64, or integers up to 2^53 in float64.
        """
        exponent, scale = np.asarray(exponent, np.int64), np.asarray(scale, np.float64)
        acc = np.asarray(acc)
        if acc.dtype == np.float64 or (acc.min(initial=0) > -_EXACT and acc.max(initial=0) < _EXACT):
            return self._golden(acc.astype(np.float64), scale, exponent)
        acc = acc.astype(np.int64)
        significand, raised = round_magnitude(magnitude(acc), self.form.precision)
        factor, factor_raised = self.form.decompose(scale)
        product, product_raised = round_magnitude(
            (significand * factor).astype(np.uint64), self.form.precision
        )
        total = raised + factor_raised + product_raised + exponent - ACCUMULATOR_FRACTION
        negative = (acc < 0) ^ np.signbit(scale)
        result = self.form.compose(negative, product, total)
        infinite = np.where(acc == 0, np.nan, np.where(negative, -np.inf, np.inf))
        result = np.where(np.isinf(scale), infinite, result)
        return np.where(np.isnan(scale) | (exponent == E_NOT_FINITE), np.nan, result)

    def _golden(self, acc: ndarray, scale: ndarray, exponent: ndarray) -> ndarray:
        """`golden` of accumulators that float64 holds: no step leaves its range where the result counts."""
        precision = self.form.precision
        with np.errstate(invalid="ignore"):
            product = round_significand(round_significand(acc, precision) * scale, precision)
        bounded = np.clip(exponent - ACCUMULATOR_FRACTION, -_FAR, _FAR).astype(np.int32)
        factor = np.where(exponent == E_NOT_FINITE, np.nan, np.ldexp(1.0, bounded))
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            return self.form.round(product * factor)

    def shapes(self) -> dict[str, ShapeLike]:
        return {
            **super().shapes(),
            "acc": signed(self.width),
            "exponent": signed(self.exponent_bits),
        }

    def stages(self, m: Module, pipe: Pipeline, acc: Value, scale: Value, exponent: Value) -> Value:
        form = self.form
        scale = operand(form, scale)
        reach = 1 << (self.exponent_bits - 1)
        width = signed_width(-reach - 15, reach + (2 << form.exponent_bits) + self.width)
        n = normalise_integer(
            pipe,
            acc,
            form.precision,
            factor=scale.significand,
            factor_sign=scale.sign,
            base=resize_signed(exponent + scale.exponent - ACCUMULATOR_FRACTION, width),
            factor_zero=scale.zero,
            infinite=scale.infinite,
            nan=scale.nan | (exponent == E_NOT_FINITE),
        )
        carried = {name: getattr(n, name) for name in ("factor", "infinite", "nan")}
        s = pipe.stage(
            fraction=n.fraction,
            up=round_up(n.low, n.rest),
            exponent=(n.base + n.exponent)[:width].as_signed(),
            sign=n.sign ^ n.factor_sign,
            zero=n.zero | n.factor_zero,
            invalid=n.zero & n.infinite,
            **carried,
        )
        rounded: Value = (s.fraction + s.up)[: form.precision]  # the carry moves the leading one up
        s = pipe.stage(
            a=Cat(rounded[: form.fraction_bits], Const(1, 1)),
            b=s.factor,
            exponent=(s.exponent + rounded[-1])[:width].as_signed(),
            sign=s.sign,
            zero=s.zero,
            infinite=s.infinite,
            nan=s.nan | s.invalid,
        )
        return multiply_stages(pipe, form, **vars(s))
