"""The tangent, at any number: the sine, divided by the cosine."""

import numpy as np
from numpy import ndarray

from streamgen.gateware.arith import Composed, DivideParams, Float, UnitParams
from streamgen.gateware.functions.composed import composed
from streamgen.gateware.functions.function import ErrorBound, Function
from streamgen.gateware.functions.sin import sine_network


def tangent_network(form: Float) -> UnitParams:
    """The tangent in `form`."""

    def parts(c: Composed) -> int:
        sine = c.apply(sine_network(c.form), 0)
        cosine = c.apply(sine_network(c.form, cosine=True), 0)
        return c.apply(DivideParams(form=c.form), sine, cosine)

    return composed(form, parts)


def _tan(x: ndarray) -> ndarray:
    with np.errstate(invalid="ignore"):
        return np.tan(x)


FUNCTION = Function(
    name="tan",
    title="tan",
    reference=_tan,
    own=tangent_network,
    error=ErrorBound(relative=6 * 2.0**-16, operand=2.0**-22, reason="those of both, and roundings"),
    torch=("aten.tan.default", "aten.tan_.default"),
)
