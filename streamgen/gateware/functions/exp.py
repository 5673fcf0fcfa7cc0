"""exp(x), by the unit that softmax takes, too (`streamgen.gateware.arith.exp`); infinite above 88.72."""

import numpy as np
from numpy import ndarray

from streamgen.gateware.arith import ExpParams
from streamgen.gateware.functions.function import ErrorBound, Function


def _exp(x: ndarray) -> ndarray:
    with np.errstate(over="ignore"):
        return np.exp(x)


FUNCTION = Function(
    name="exp",
    title="exp",
    reference=_exp,
    own=ExpParams,
    error=ErrorBound(
        relative=0.95 * 2.0**-16,
        reason="in units of 2^-16: lines 0.25, entries 0.06, half a unit of 2^g cut 0.5; t cut, log2(e): 0.1",
    ),
    torch=("aten.exp.default", "aten.exp_.default"),
)
