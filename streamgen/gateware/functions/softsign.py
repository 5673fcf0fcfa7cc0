"""Softsign, x / (1 + |x|), by segments that are fitted to it. Torch has no call for it: it divides."""

import numpy as np
from numpy import ndarray

from streamgen.gateware.functions.function import ErrorBound, Function


def _softsign(x: ndarray) -> ndarray:
    return x / (1 + np.abs(x))


FUNCTION = Function(
    name="softsign",
    title="Softsign",
    reference=_softsign,
    error=ErrorBound(relative=2.0**-16, reason="what the fit may use"),
    torch=(),
)
