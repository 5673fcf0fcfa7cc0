"""The arc tangent, by segments that are fitted to it."""

import numpy as np
from numpy import ndarray

from streamgen.gateware.functions.function import ErrorBound, Function


def _atan(x: ndarray) -> ndarray:
    with np.errstate(all="ignore"):
        return np.arctan(x)


FUNCTION = Function(
    name="atan",
    title="atan",
    reference=_atan,
    error=ErrorBound(relative=2.0**-16, reason="what the fit may use"),
    symmetry="odd",
    torch=("aten.atan.default", "aten.atan_.default"),
)
