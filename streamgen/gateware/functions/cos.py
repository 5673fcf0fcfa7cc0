"""The cosine, at any number: the sine a quarter of a turn further (`streamgen.gateware.functions.sin`)."""

from functools import partial

import numpy as np
from numpy import ndarray

from streamgen.gateware.functions.function import ErrorBound, Function
from streamgen.gateware.functions.sin import ERROR, sine_network


def _cos(x: ndarray) -> ndarray:
    with np.errstate(invalid="ignore"):
        return np.cos(x)


FUNCTION = Function(
    name="cos",
    title="cos",
    reference=_cos,
    own=partial(sine_network, cosine=True),
    error=ErrorBound(relative=ERROR.relative, operand=ERROR.operand, reason=ERROR.reason),
    torch=("aten.cos.default", "aten.cos_.default"),
)
