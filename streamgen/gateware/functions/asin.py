"""The arc sine, atan(x / sqrt((1 - x)·(1 + x))): 1 - x is exact where it is small. Beyond ±1 it is NaN."""

import numpy as np
from numpy import ndarray

from streamgen.gateware.arith import (
    AddParams,
    Composed,
    DivideParams,
    Float,
    MultiplyParams,
    SquareRootParams,
    SubtractParams,
    UnitParams,
)
from streamgen.gateware.functions.atan import FUNCTION as ATAN
from streamgen.gateware.functions.composed import composed
from streamgen.gateware.functions.function import ErrorBound, Function


def asin_network(form: Float) -> UnitParams:
    """The arc sine in `form`."""

    def parts(c: Composed) -> int:
        form = c.form
        one = c.constant(1.0)
        less, more = c.apply(SubtractParams(form=form), one, 0), c.apply(AddParams(form=form), one, 0)
        root = c.apply(SquareRootParams(form=form), c.apply(MultiplyParams(form=form), less, more))
        return c.apply(ATAN.unit(form), c.apply(DivideParams(form=form), 0, root))

    return composed(form, parts)


def _asin(x: ndarray) -> ndarray:
    with np.errstate(all="ignore"):
        return np.arcsin(x)


FUNCTION = Function(
    name="asin",
    title="asin",
    reference=_asin,
    own=asin_network,
    error=ErrorBound(
        relative=4 * 2.0**-16,
        reason="in units of 2^-16: halves of the roundings of 1 - x, 1 + x and their product, then those of "
        "the root and of the quotient, which the arc tangent lessens, and its own",
    ),
    torch=("aten.asin.default", "aten.asin_.default"),
)
