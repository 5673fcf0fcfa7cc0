"""The inverse hyperbolic cosine, log1p(u + sqrt(u)·sqrt(u + 2)) with u = x - 1. Below 1 it is NaN.

Above 1024 it is asinh(x), which is 1 / (2·x²) away, since the sum would be infinite for the greatest numbers.
"""

import numpy as np
from numpy import ndarray

from streamgen.gateware.arith import (
    AddParams,
    Composed,
    Float,
    MultiplyParams,
    RelationParams,
    SquareRootParams,
    SubtractParams,
    UnitParams,
    WhereParams,
)
from streamgen.gateware.functions.asinh import FUNCTION as ASINH
from streamgen.gateware.functions.composed import composed
from streamgen.gateware.functions.function import ErrorBound, Function
from streamgen.gateware.functions.log1p import log1p_network


def acosh_network(form: Float) -> UnitParams:
    """The inverse hyperbolic cosine in `form`."""

    def parts(c: Composed) -> int:
        form = c.form
        u = c.apply(SubtractParams(form=form), 0, c.constant(1.0))
        root = SquareRootParams(form=form)
        above = c.apply(root, c.apply(AddParams(form=form), u, c.constant(2.0)))
        half = c.apply(MultiplyParams(form=form), c.apply(root, u), above)
        near = c.apply(log1p_network(form), c.apply(AddParams(form=form), u, half))
        is_far = c.apply(RelationParams(form=form, relation="gt"), 0, c.constant(1024.0))
        return c.apply(WhereParams(form=form), is_far, c.apply(ASINH.unit(form), 0), near)

    return composed(form, parts)


def _acosh(x: ndarray) -> ndarray:
    with np.errstate(all="ignore"):
        return np.arccosh(x)


FUNCTION = Function(
    name="acosh",
    title="acosh",
    reference=_acosh,
    own=acosh_network,
    error=ErrorBound(
        relative=5 * 2.0**-16,
        reason="in units of 2^-16: roundings of u, u + 2, both roots, their product and the sum, which the "
        "logarithm lessens, and its own",
    ),
    torch=("aten.acosh.default", "aten.acosh_.default"),
)
