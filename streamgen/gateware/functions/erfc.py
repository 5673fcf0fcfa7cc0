"""1 - erf(x), by segments that are fitted to it; 0 above 9.19."""

import math

import numpy as np
from numpy import ndarray

from streamgen.gateware.functions.function import ErrorBound, Function


def _erfc(x: ndarray) -> ndarray:
    with np.errstate(all="ignore"):
        return np.vectorize(math.erfc, otypes=[x.dtype])(x)


FUNCTION = Function(
    name="erfc",
    title="erfc",
    reference=_erfc,
    error=ErrorBound(relative=2 * 2.0**-16, reason="what the fit may use, for 512 segments from 8 to 12"),
    torch=("aten.erfc.default", "aten.erfc_.default"),
)
