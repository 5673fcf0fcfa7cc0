"""1 / x and 1 / sqrt(x) by tables, to a relative error below 2^-14 where the result is a normal number.

x = y·2^E, and for the root y·2^(2·E), with the significand y in [1, 2) or [1, 4): the table gives 1 / y or
1 / sqrt(y) in units of 2^-22 from the 20 upper bits of the fraction, the result is rounded once. Powers of
two (of four) give exact results. Monotone. 1 / ±0 is ±infinity, 1 / sqrt(-0) -infinity, 1 / infinity 0; the
root of a negative number is NaN.
"""

from dataclasses import dataclass

import numpy as np
from amaranth import Cat, Const, Module, Mux, Value
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.format import Float, round_magnitude
from streamgen.gateware.arith.multiply import round_stages
from streamgen.gateware.arith.pipeline import Pipeline, flags, operand, resize_signed
from streamgen.gateware.arith.tables import (
    INDEX_BITS,
    RECIPROCAL,
    RECIPROCAL_BITS,
    RECIPROCAL_ROOT,
    TABLE_BITS,
)
from streamgen.gateware.arith.unit import UnitParams


@dataclass(frozen=True, kw_only=True)
class ReciprocalParams(UnitParams):
    """1 / x in `form`, or 1 / sqrt(x) with `root`."""

    form: Float
    root: bool = False
    latency = 6

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth."""
        p = self.form.precision
        if self.form.fraction_bits <= INDEX_BITS:  # no lines between the entries
            return Resources(lut=29 * p - 8 if self.root else 22 * p - 20, ff=3 * p + 26)
        return Resources(lut=310 if self.root else 215, ff=34 * p // 10 + 115, dsp=1)

    def golden(self, i: ndarray) -> ndarray:
        """float64 array of the function of values of the format."""
        form, x = self.form, np.asarray(i, np.float64)
        significand, exponent = form.decompose(x)
        fraction = significand & ((1 << form.fraction_bits) - 1)
        shift = form.fraction_bits - TABLE_BITS
        index = fraction >> shift if shift > 0 else fraction << -shift
        raised = exponent + form.fraction_bits  # of the leading one
        if self.root:
            value = RECIPROCAL_ROOT.golden(index + (raised % 2 << TABLE_BITS))
            raised = raised // 2
        else:
            value = RECIPROCAL.golden(index)
        rounded, up = round_magnitude(value.astype(np.uint64), form.precision)
        result = form.compose(np.signbit(x), rounded, up - RECIPROCAL_BITS - raised)
        result = np.where(np.isinf(x), np.copysign(0.0, x), result)
        result = np.where(x == 0, np.copysign(np.inf, x), result)
        return np.where(np.isnan(x) | (self.root & (x < 0)), np.nan, result)

    def stages(self, m: Module, pipe: Pipeline, i: Value) -> Value:
        form, root = self.form, self.root
        x = operand(form, i)
        width = form.exponent_bits + 2
        # The bias is odd: an even biased exponent is an odd power of two.
        half = (x.exponent + form.bias)[1:]
        s = pipe.stage(
            index=Cat(x.fraction, ~x.exponent[0]) if root else x.fraction,
            exponent=resize_signed(2 * form.bias - (half if root else x.exponent), width),
            sign=x.sign,
            zero=x.infinite,
            infinite=x.zero,
            nan=x.nan | (x.sign & ~x.zero if root else Const(0, 1)),
        )
        index = Cat(Const(0, max(0, TABLE_BITS - form.fraction_bits)), s.index)
        index = index[len(index) - TABLE_BITS - root :]
        along = {name: getattr(s, name) for name in ("exponent", "sign", "zero", "infinite", "nan")}
        table = RECIPROCAL_ROOT if root else RECIPROCAL
        s = table.stages(m, pipe, "table", index, **along)
        top = s.value[-1]
        normal = Cat(Const(0, max(0, form.precision - RECIPROCAL_BITS)), s.value)
        return round_stages(
            pipe,
            form,
            normal=Mux(top, normal, normal << 1)[: len(normal)],
            exponent=(s.exponent - ~top)[:width].as_signed(),
            **flags(s),
        )
