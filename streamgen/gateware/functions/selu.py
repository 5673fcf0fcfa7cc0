"""SELU, 1.0507·x above 0 and 1.7581·(exp(x) - 1) below, by segments that are fitted to it."""

import numpy as np
from numpy import ndarray

from streamgen.gateware.functions.function import ErrorBound, Function

_SCALE, _ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717


def _selu(x: ndarray) -> ndarray:
    return _SCALE * np.where(x > 0, x, _ALPHA * np.expm1(np.minimum(x, 0)))


FUNCTION = Function(
    name="selu",
    title="SELU",
    reference=_selu,
    error=ErrorBound(relative=2.0**-16, reason="what the fit may use"),
    torch=("aten.selu.default", "aten.selu_.default"),
)
