"""Tanhshrink, x - tanh(x), by segments that are fitted to it. Torch has no call for it: it subtracts.

Where x and tanh(x) cancel, near 0, the error is one of |x|, as the error of the difference is.
"""

import numpy as np
from numpy import ndarray

from streamgen.gateware.functions.function import ErrorBound, Function


def _tanhshrink(x: ndarray) -> ndarray:
    return x - np.tanh(x)


FUNCTION = Function(
    name="tanhshrink",
    title="Tanhshrink",
    reference=_tanhshrink,
    error=ErrorBound(relative=2.0**-16, operand=2.0**-18, reason="what the fit may use"),
    torch=(),
)
