"""The inverse hyperbolic tangent, (log1p(x) - log1p(-x)) / 2, terms of one sign. Beyond ±1 it is NaN."""

import numpy as np
from numpy import ndarray

from streamgen.gateware.arith import Composed, Float, MultiplyParams, SignParams, SubtractParams, UnitParams
from streamgen.gateware.functions.composed import composed
from streamgen.gateware.functions.function import ErrorBound, Function
from streamgen.gateware.functions.log1p import log1p_network


def atanh_network(form: Float) -> UnitParams:
    """The inverse hyperbolic tangent in `form`."""

    def parts(c: Composed) -> int:
        form = c.form
        logarithm = log1p_network(form)
        plus = c.apply(logarithm, 0)
        minus = c.apply(logarithm, c.apply(SignParams(form=form, function="negate"), 0))
        total = c.apply(SubtractParams(form=form), plus, minus)
        return c.apply(MultiplyParams(form=form), total, c.constant(0.5))

    return composed(form, parts)


def _atanh(x: ndarray) -> ndarray:
    with np.errstate(all="ignore"):
        return np.arctanh(x)


FUNCTION = Function(
    name="atanh",
    title="atanh",
    reference=_atanh,
    own=atanh_network,
    error=ErrorBound(
        relative=3 * 2.0**-16,
        reason="in units of 2^-16: the logarithms and their roundings 2, the rounding of the sum 1",
    ),
    torch=("aten.atanh.default", "aten.atanh_.default"),
)
