"""tanh by lines (`streamgen.gateware.arith.saturating`)."""

from functools import partial

import numpy as np

from streamgen.gateware.arith import SaturatingParams
from streamgen.gateware.functions.function import ErrorBound, Function

FUNCTION = Function(
    name="tanh",
    title="Tanh",
    reference=np.tanh,
    own=partial(SaturatingParams, function="tanh"),
    error=ErrorBound(
        relative=1.2 * 2.0**-16,
        reason="in units of 2^-16: lines h²/16·f''/f with h = 2^-6 at x = 1, 0.84; entries and cut, 0.3",
    ),
    torch=("aten.tanh.default", "aten.tanh_.default"),
    configuration=("tanh",),
)
