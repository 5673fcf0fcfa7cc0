"""The logistic function and SiLU by tables, to a relative error below 2^-14 at any value that is not 0.

    sigmoid(x) = 1 / (1 + e) for x >= 0, e / (1 + e) for x < 0,   e = exp(-|x|);   silu(x) = x · sigmoid(x)

1. t = -|x|·log2(e) = -n + g with n whole and 0 <= g < 1 in units of 2^-20 (streamgen.gateware.arith.exp).
2. e = 2^-n · 2^g; 2^g by table, in units of 2^-16. The reciprocal 1 / (1 + e) by table, in units of 2^-22.
3. s = (2^g or 1) · reciprocal, cut to units of 2^-24: sigmoid = s·2^-n or s, 1/2 <= s < 2.
4. Rounded (sigmoid), or multiplied by the significand of x and then rounded (silu), once, and tested
   for underflow with the exponent not limited before: silu(-90) is a normal number where sigmoid is not.

Never falling: the unit of the reciprocal is fine enough that (step 3) the product rises with e although
the reciprocal falls. sigmoid(±0) is exactly 1/2, silu(+infinity) infinite, silu(-infinity) NaN
(-infinity · 0, as torch computes it).
"""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from amaranth import Const, Module, Mux, Value
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.exp import LOG2_E, split, split_stages
from streamgen.gateware.arith.format import Float, round_magnitude
from streamgen.gateware.arith.multiply import round_stages
from streamgen.gateware.arith.pipeline import Pipeline, flags, normalise_step, operand, resize_signed
from streamgen.gateware.arith.tables import EXP2, EXP2_BITS, RECIPROCAL, RECIPROCAL_BITS, TABLE_BITS
from streamgen.gateware.arith.unit import UnitParams
from streamgen.gateware.functions.function import ErrorBound, Function

_S_BITS = 24


@dataclass(frozen=True, kw_only=True)
class SigmoidParams(UnitParams):
    """sigmoid(x) in `form`, or silu(x) = x · sigmoid(x) with `times_x`."""

    form: Float
    times_x: bool = False

    @property
    def latency(self) -> int:
        return 15 if self.times_x else 14

    @property
    def resources(self) -> Resources:
        """Upper estimate of what synthesis uses, fitted to formats of 8 to 32 bits."""
        p, e = self.form.precision, self.form.exponent_bits
        wide = p > 17  # its products with the 26 and 25 bits of step 1 and 4 take two DSPs
        if self.times_x:
            return Resources(lut=7 * p + 20 * e + 420, ff=4 * p + 4 * e + 400, dsp=5 + 2 * wide)
        return Resources(lut=4 * p + 20 * e + 400, ff=3 * p + 5 * e + 350, dsp=4 + wide)

    def golden(self, i: ndarray) -> ndarray:
        """float64 array of the function of values of the format."""
        form = self.form
        x = np.asarray(i, np.float64)
        negative = np.signbit(x) & (x != 0)
        significand, exponent = form.decompose(x)
        n, g = split(form, -np.abs(x), LOG2_E)
        power = EXP2.golden(g)
        e = np.minimum((power << (TABLE_BITS - EXP2_BITS)) >> np.minimum(-n, 63), (1 << TABLE_BITS) - 1)
        factor = np.where(negative, power, 1 << EXP2_BITS)
        s = (factor * RECIPROCAL.golden(e)) >> (EXP2_BITS + RECIPROCAL_BITS - _S_BITS)
        scale = np.where(negative, n, 0) - _S_BITS
        if not self.times_x:
            rounded, raised = round_magnitude(s.astype(np.uint64), form.precision)
            return np.where(
                np.isnan(x), np.nan, form.compose(np.zeros(x.shape, bool), rounded, scale + raised)
            )
        rounded, raised = round_magnitude((s * significand).astype(np.uint64), form.precision)
        result = form.compose(np.signbit(x), rounded, scale + raised + exponent)
        result = np.where(np.isinf(x), np.where(negative, np.nan, np.inf), result)
        return np.where(np.isnan(x), np.nan, result)

    def stages(self, m: Module, pipe: Pipeline, i: Value) -> Value:
        form, times_x = self.form, self.times_x
        s = _logistic(m, pipe, form, i)
        x = operand(form, s.x)
        width = form.exponent_bits + 3
        if times_x:
            s = pipe.stage(
                product=s.s * x.significand,
                exponent=s.scale + x.exponent,
                sign=x.sign,
                zero=x.zero,
                infinite=x.infinite & ~x.sign,
                nan=x.nan | (x.infinite & x.sign),
            )
            normal, shift = normalise_step(pipe, s.product, 1)
            exponent = resize_signed(s.exponent + 1 - shift, width)
            special = flags(s)
        else:
            normal = Mux(s.s[-1], s.s, s.s << 1)[: len(s.s)]
            exponent = resize_signed(s.scale + (form.bias - 1) + s.s[-1], width)
            never = Const(0, 1)
            special = {"sign": never, "zero": never, "infinite": never, "nan": x.nan}
        return round_stages(pipe, form, normal=normal, exponent=exponent, **special)


def _logistic(m: Module, pipe: Pipeline, form: Float, bits: Value) -> SimpleNamespace:
    """Twelve stages: s, the exponent `scale` of its unit (-n or 0), and x."""
    s = split_stages(pipe, form, bits, LOG2_E, negative=Const(1, 1))
    s = EXP2.stages(m, pipe, "exp2", s.g, minus_n=s.n, x=s.x)
    places = (~s.minus_n)[:-1]  # n - 1, for n > 0
    power = s.value << (TABLE_BITS - EXP2_BITS - 1)
    far = places[5:].any() if len(places) > 5 else Const(0, 1)
    e = Mux(far, 0, power >> places[:5]) | (~s.minus_n[-1]).replicate(TABLE_BITS)
    x = operand(form, s.x)
    s = pipe.stage(
        e=e[:TABLE_BITS],
        factor=Mux(x.sign, s.value, 1 << EXP2_BITS),
        scale=Mux(x.sign, s.minus_n, 0),
        x=s.x,
    )

    s = RECIPROCAL.stages(m, pipe, "reciprocal", s.e, factor=s.factor, scale=s.scale, x=s.x)
    product = (s.factor * s.value)[EXP2_BITS + RECIPROCAL_BITS - _S_BITS :]
    return pipe.stage(s=product[: _S_BITS + 1], scale=s.scale, x=s.x)


def sigmoid(x: ndarray) -> ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    return np.exp(-np.logaddexp(0.0, -x))


ERROR = ErrorBound(
    relative=1.4 * 2.0**-16,
    reason="in units of 2^-16: upwards 2^g by lines and entries 0.31, t 0.07, 1/(1 + e) in its first line, "
    "whose left end is exact, 1.0; downwards the same entries, half a unit cut 0.5, other lines 0.5",
)
FUNCTION = Function(
    name="sigmoid",
    title="Sigmoid",
    reference=sigmoid,
    own=SigmoidParams,
    error=ERROR,
    torch=("aten.sigmoid.default", "aten.sigmoid_.default"),
    configuration=("sigmoid",),
)
