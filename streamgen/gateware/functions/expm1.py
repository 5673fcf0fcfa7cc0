"""exp(x) - 1, by segments that are fitted to it; infinite above 88.72."""

import numpy as np
from numpy import ndarray

from streamgen.gateware.functions.function import ErrorBound, Function


def _expm1(x: ndarray) -> ndarray:
    with np.errstate(all="ignore"):
        return np.expm1(x)


FUNCTION = Function(
    name="expm1",
    title="expm1",
    reference=_expm1,
    error=ErrorBound(relative=2.0**-16, reason="what the fit may use"),
    torch=("aten.expm1.default", "aten.expm1_.default"),
)
