"""log(1 + x), by the unit of log below -1/2, where 1 + x is exact, and by fitted segments above."""

import numpy as np
from numpy import ndarray

from streamgen.gateware.arith import (
    AddParams,
    Composed,
    FittedCurve,
    Float,
    PiecewiseParams,
    RelationParams,
    UnitParams,
    WhereParams,
)
from streamgen.gateware.functions.composed import composed
from streamgen.gateware.functions.function import ErrorBound, Function
from streamgen.gateware.functions.log import LogParams


def _above(x: ndarray) -> ndarray:
    return np.log1p(np.maximum(x, -0.5))


_ABOVE = FittedCurve("log1p above -1/2", _above, 2.0**-16)


def log1p_network(form: Float) -> UnitParams:
    """log(1 + x) in `form`."""

    def parts(c: Composed) -> int:
        form = c.form
        low = c.apply(LogParams(form=form), c.apply(AddParams(form=form), 0, c.constant(1.0)))
        high = c.apply(PiecewiseParams(form=form, curve=_ABOVE), 0)
        is_low = c.apply(RelationParams(form=form, relation="lt"), 0, c.constant(-0.5))
        return c.apply(WhereParams(form=form), is_low, low, high)

    return composed(form, parts)


def _log1p(x: ndarray) -> ndarray:
    with np.errstate(all="ignore"):
        return np.log1p(x)


FUNCTION = Function(
    name="log1p",
    title="log1p",
    reference=_log1p,
    own=log1p_network,
    error=ErrorBound(relative=2.0**-16, reason="what the fit may use; log uses less"),
    torch=("aten.log1p.default", "aten.log1p_.default"),
)
