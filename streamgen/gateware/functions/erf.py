"""The error function by lines (`streamgen.gateware.arith.saturating`)."""

import math
from functools import partial

import numpy as np
from numpy import ndarray

from streamgen.gateware.arith import SaturatingParams
from streamgen.gateware.functions.function import ErrorBound, Function


def _erf(x: ndarray) -> ndarray:
    with np.errstate(all="ignore"):
        return np.vectorize(math.erf, otypes=[x.dtype])(x)


FUNCTION = Function(
    name="erf",
    title="erf",
    reference=_erf,
    own=partial(SaturatingParams, function="erf"),
    error=ErrorBound(
        relative=1.3 * 2.0**-16,
        reason="in units of 2^-16: lines h²/16·f''/f with h = 2^-6 at x = 1, 0.99; entries and cut, 0.3",
    ),
    torch=("aten.erf.default", "aten.erf_.default"),
)
