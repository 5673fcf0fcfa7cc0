"""The hyperbolic sine, by segments that are fitted to it; infinite above 89.41."""

import numpy as np
from numpy import ndarray

from streamgen.gateware.functions.function import ErrorBound, Function


def _sinh(x: ndarray) -> ndarray:
    with np.errstate(all="ignore"):
        return np.sinh(x)


FUNCTION = Function(
    name="sinh",
    title="sinh",
    reference=_sinh,
    error=ErrorBound(relative=2.0**-16, reason="what the fit may use"),
    symmetry="odd",
    torch=("aten.sinh.default", "aten.sinh_.default"),
)
