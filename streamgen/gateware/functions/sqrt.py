"""The square root, correctly rounded; of numbers below 0 it is NaN."""

import numpy as np
from numpy import ndarray

from streamgen.gateware.arith import SquareRootParams
from streamgen.gateware.functions.function import ErrorBound, Function


def _sqrt(x: ndarray) -> ndarray:
    with np.errstate(all="ignore"):
        return np.sqrt(x)


FUNCTION = Function(
    name="sqrt",
    title="sqrt",
    reference=_sqrt,
    own=SquareRootParams,
    error=ErrorBound(reason="rounded once"),
    torch=("aten.sqrt.default", "aten.sqrt_.default"),
)
