"""2^x, by the unit of exp (`streamgen.gateware.arith.exp`); exact for whole numbers."""

from functools import partial

import numpy as np
from numpy import ndarray

from streamgen.gateware.arith import ExpParams
from streamgen.gateware.functions.function import ErrorBound, Function


def _exp2(x: ndarray) -> ndarray:
    with np.errstate(all="ignore"):
        return np.exp2(x)


FUNCTION = Function(
    name="exp2",
    title="exp2",
    reference=_exp2,
    own=partial(ExpParams, base_two=True),
    error=ErrorBound(
        relative=0.95 * 2.0**-16,
        reason="in units of 2^-16: lines 0.25, entries 0.06, half a unit of 2^g cut 0.5; t cut: 0.1",
    ),
    torch=("aten.exp2.default", "aten.exp2_.default"),
)
