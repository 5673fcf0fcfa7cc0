"""1 / sqrt(x), by the unit that norms take, too (`streamgen.gateware.arith.reciprocal`)."""

from functools import partial

import numpy as np
from numpy import ndarray

from streamgen.gateware.arith import ReciprocalParams
from streamgen.gateware.functions.function import ErrorBound, Function


def _rsqrt(x: ndarray) -> ndarray:
    with np.errstate(all="ignore"):
        return (1 / np.sqrt(x)).astype(x.dtype)


FUNCTION = Function(
    name="rsqrt",
    title="rsqrt",
    reference=_rsqrt,
    own=partial(ReciprocalParams, root=True),
    error=ErrorBound(relative=0.5 * 2.0**-16, reason="lines, h²/8·3/4, twice in the first line: 0.4·2^-16"),
    torch=("aten.rsqrt.default", "aten.rsqrt_.default"),
)
