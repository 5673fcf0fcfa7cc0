"""Hardsigmoid, min(max(x + 3, 0), 6) / 6: a line between -3 and 3. Beside -3, the error is one of |x|."""

import numpy as np
from numpy import ndarray

from streamgen.gateware.functions.function import ErrorBound, Function


def _hardsigmoid(x: ndarray) -> ndarray:
    return np.clip(x + 3, 0, 6) / 6


FUNCTION = Function(
    name="hardsigmoid",
    title="Hardsigmoid",
    reference=_hardsigmoid,
    error=ErrorBound(
        relative=2.0**-17,
        operand=2.0**-19,
        reason="coefficients and values are in units of 2^-20 of the greatest of a segment, and cut twice",
    ),
    torch=("aten.hardsigmoid.default", "aten.hardsigmoid_.default"),
)
