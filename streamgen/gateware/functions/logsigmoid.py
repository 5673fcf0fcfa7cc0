"""LogSigmoid, -log(1 + exp(-x)), by segments that are fitted to it."""

import numpy as np
from numpy import ndarray

from streamgen.gateware.functions.function import ErrorBound, Function


def _logsigmoid(x: ndarray) -> ndarray:
    return -np.logaddexp(-x, 0.0, dtype=x.dtype)


FUNCTION = Function(
    name="logsigmoid",
    title="LogSigmoid",
    reference=_logsigmoid,
    error=ErrorBound(
        relative=2.0**-16,
        reason="what the fit may use; segments of exp(-x) above 0 are 1/8 wide, and h³/192 is 0.67·2^-16",
    ),
    torch=("aten.log_sigmoid.default",),
)
