"""Mish, x · tanh(log(1 + exp(x))), by segments that are fitted to it. Of -infinity it is NaN, as in torch."""

import numpy as np
from numpy import ndarray

from streamgen.gateware.functions.function import ErrorBound, Function


def _mish(x: ndarray) -> ndarray:
    return x * np.tanh(np.logaddexp(x, 0.0, dtype=x.dtype))


FUNCTION = Function(
    name="mish",
    title="Mish",
    reference=_mish,
    error=ErrorBound(
        relative=2.0**-16,
        reason="what the fit may use, for segments like those of exp(x) far below 0",
    ),
    torch=("aten.mish.default", "aten.mish_.default"),
    configuration=("mish",),
)
