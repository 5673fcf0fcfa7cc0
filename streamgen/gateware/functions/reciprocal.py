"""1 / x, by the unit that softmax takes, too (`streamgen.gateware.arith.reciprocal`)."""

import numpy as np
from numpy import ndarray

from streamgen.gateware.arith import ReciprocalParams
from streamgen.gateware.functions.function import ErrorBound, Function


def _reciprocal(x: ndarray) -> ndarray:
    with np.errstate(all="ignore"):
        return (1 / x).astype(x.dtype)


FUNCTION = Function(
    name="reciprocal",
    title="reciprocal",
    reference=_reciprocal,
    own=ReciprocalParams,
    error=ErrorBound(
        relative=2.0**-16,
        reason="h²/8·2 at the left end, half of it after the entries are lowered, all of it in line 1",
    ),
    torch=("aten.reciprocal.default", "aten.reciprocal_.default"),
)
