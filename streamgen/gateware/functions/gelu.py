"""GELU, x·(1 + f(x)) / 2: f(x) = erf(x/√2), or tanh(√(2/π)·(x + 0.044715·x³)) for its approximation by tanh.

f by lines (`streamgen.gateware.arith.saturating`), 1 + f in units of 2^-19, rounded once after the product.
Where 1 and f cancel, for negative x, the error is one of |x|. GELU(-infinity) is NaN (-infinity·0, as torch
computes it).
"""

import math
from dataclasses import dataclass

import numpy as np
from amaranth import Cat, Const, Module, Mux, Value
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith import Float
from streamgen.gateware.arith.format import round_magnitude
from streamgen.gateware.arith.multiply import round_stages
from streamgen.gateware.arith.pipeline import Pipeline, flags, normalise_step, operand, resize_signed
from streamgen.gateware.arith.saturating import INDEX_BITS, VALUE_BITS, Rise, rise_golden, rise_stages
from streamgen.gateware.arith.unit import UnitParams
from streamgen.gateware.functions.function import ErrorBound, Function

_SUM_BITS = VALUE_BITS + 1


def _erf(x: ndarray) -> ndarray:
    return np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2.0))


def _tanh(x: ndarray) -> ndarray:
    return np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


_RISES = Rise("gelu", _erf, 2), Rise("gelu_tanh", _tanh, 2)


@dataclass(frozen=True, kw_only=True)
class GeluParams(UnitParams):
    """GELU(x) in `form`, exact or by torch's `approximate="tanh"`."""

    form: Float
    tanh: bool = False
    latency = 10

    @property
    def rise(self) -> Rise:
        """f."""
        return _RISES[self.tanh]

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth."""
        p, e = self.form.precision, self.form.exponent_bits
        dsps = int(self.form.fraction_bits > INDEX_BITS + 1) + (1 if p <= 17 else 2)
        return Resources(lut=7 * p + 8 * e + 145, ff=9 * p // 2 + 9 * e + 135, dsp=dsps, bram=1)

    def golden(self, i: ndarray) -> ndarray:
        """float64 array of the function of values of the format."""
        form, x = self.form, np.asarray(i, np.float64)
        value, scale = rise_golden(form, self.rise, x)
        f = value >> np.clip(-VALUE_BITS - scale, 0, 63)
        total = (1 << VALUE_BITS) + np.where(np.signbit(x), -f, f)
        significand, exponent = form.decompose(x)
        rounded, raised = round_magnitude((total * significand).astype(np.uint64), form.precision)
        result = form.compose(np.signbit(x), rounded, exponent - _SUM_BITS + raised)
        result = np.where(np.isinf(x), np.where(x > 0, np.inf, np.nan), result)
        return np.where(np.isnan(x), np.nan, result)

    def stages(self, m: Module, pipe: Pipeline, i: Value) -> Value:
        form = self.form
        s = rise_stages(m, pipe, form, self.rise, i)

        # f is below 1 where it is shifted: its bits fit, the shift only drops.
        distance = Const(form.bias) - s.scale
        far = distance[5 : form.exponent_bits].any() if form.exponent_bits > 5 else Const(0, 1)
        f = pipe.wire(Mux(far, 0, s.value >> distance[:5])[: VALUE_BITS + 1])
        sign = s.x[-1]
        total = Mux(sign, (1 << VALUE_BITS) - f, (1 << VALUE_BITS) + f)[: _SUM_BITS + 1]
        s = pipe.stage(total=total, x=s.x)

        x = operand(form, s.x)
        s = pipe.stage(
            product=s.total * x.significand,
            exponent=x.exponent,
            sign=x.sign,
            zero=x.zero | ~s.total.any(),
            infinite=x.infinite & ~x.sign,
            nan=x.nan | (x.infinite & x.sign),
        )
        coarse, shift_16 = normalise_step(pipe, s.product, 16)
        middle, shift_4 = normalise_step(pipe, coarse, 4)
        s = pipe.stage(value=middle, shift=Cat(shift_4, shift_16), exponent=s.exponent, **flags(s))
        normal, shift_1 = normalise_step(pipe, s.value, 1)
        exponent = s.exponent + 1 - Cat(shift_1, s.shift)
        return round_stages(
            pipe,
            form,
            normal=normal,
            exponent=resize_signed(exponent, form.exponent_bits + 3),
            **flags(s),
        )


def _gelu(x: ndarray) -> ndarray:
    return 0.5 * x * (1.0 + _erf(x))


ERROR = ErrorBound(
    operand=2.0**-17,
    reason="f misses at most 1.3·2^-16 of its value, of which half counts, and 2^-20 are cut",
)
FUNCTION = Function(
    name="gelu",
    title="GELU",
    reference=_gelu,
    own=GeluParams,
    error=ERROR,
    gates=True,
    torch=("aten.gelu.default",),
    arguments={"approximate": "none"},
    configuration=("gelu",),
)
