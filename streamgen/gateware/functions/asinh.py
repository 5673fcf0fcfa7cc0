"""The inverse hyperbolic sine, by segments that are fitted to it."""

import numpy as np
from numpy import ndarray

from streamgen.gateware.functions.function import ErrorBound, Function


def _asinh(x: ndarray) -> ndarray:
    with np.errstate(all="ignore"):
        return np.arcsinh(x)


FUNCTION = Function(
    name="asinh",
    title="asinh",
    reference=_asinh,
    error=ErrorBound(relative=2.0**-16, reason="what the fit may use"),
    symmetry="odd",
    torch=("aten.asinh.default", "aten.asinh_.default"),
)
