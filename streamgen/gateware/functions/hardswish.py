"""Hardswish, x·min(max(x + 3, 0), 6) / 6: a quadratic between -3 and 3, which segments hold but for rounding.

Beside -3, where it is zero, the error is one of |x|. Of -infinity it is NaN (-infinity·0, as in torch).
"""

import numpy as np
from numpy import ndarray

from streamgen.gateware.functions.function import ErrorBound, Function


def _hardswish(x: ndarray) -> ndarray:
    return x * (np.clip(x + 3, 0, 6) / 6)


FUNCTION = Function(
    name="hardswish",
    title="Hardswish",
    reference=_hardswish,
    error=ErrorBound(
        relative=2.0**-17,
        operand=2.0**-18,
        reason="coefficients and values are in units of 2^-20 of the greatest of a segment, and cut twice",
    ),
    torch=("aten.hardswish.default", "aten.hardswish_.default"),
    configuration=("hardswish",),
)
