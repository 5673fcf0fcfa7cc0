"""The arc cosine, 2·atan(sqrt((1 - x) / (1 + x))): both are exact where they are small.

Beyond ±1 it is NaN.
"""

import numpy as np
from numpy import ndarray

from streamgen.gateware.arith import (
    AddParams,
    Composed,
    DivideParams,
    FittedCurve,
    Float,
    PiecewiseParams,
    SquareRootParams,
    SubtractParams,
    UnitParams,
)
from streamgen.gateware.functions.composed import composed
from streamgen.gateware.functions.function import ErrorBound, Function


def _twice_atan(x: ndarray) -> ndarray:
    return 2 * np.arctan(x)


_TWICE_ATAN = FittedCurve("2 atan", _twice_atan, 2.0**-16, symmetry="odd")


def acos_network(form: Float) -> UnitParams:
    """The arc cosine in `form`."""

    def parts(c: Composed) -> int:
        form = c.form
        one = c.constant(1.0)
        less, more = c.apply(SubtractParams(form=form), one, 0), c.apply(AddParams(form=form), one, 0)
        root = c.apply(SquareRootParams(form=form), c.apply(DivideParams(form=form), less, more))
        return c.apply(PiecewiseParams(form=form, curve=_TWICE_ATAN), root)

    return composed(form, parts)


def _acos(x: ndarray) -> ndarray:
    with np.errstate(all="ignore"):
        return np.arccos(x)


FUNCTION = Function(
    name="acos",
    title="acos",
    reference=_acos,
    own=acos_network,
    error=ErrorBound(
        relative=4 * 2.0**-16,
        reason="in units of 2^-16: halves of the roundings of 1 - x, 1 + x and their quotient, then that of "
        "the root, which the arc tangent lessens, and its own",
    ),
    torch=("aten.acos.default", "aten.acos_.default"),
)
