"""The hyperbolic cosine, by segments that are fitted to it; infinite above 89.41."""

import numpy as np
from numpy import ndarray

from streamgen.gateware.functions.function import ErrorBound, Function


def _cosh(x: ndarray) -> ndarray:
    with np.errstate(all="ignore"):
        return np.cosh(x)


FUNCTION = Function(
    name="cosh",
    title="cosh",
    reference=_cosh,
    error=ErrorBound(relative=2.0**-16, reason="what the fit may use"),
    symmetry="even",
    torch=("aten.cosh.default", "aten.cosh_.default"),
)
