"""ELU, x above 0 and exp(x) - 1 below, by segments that are fitted to it: x itself is exact."""

import numpy as np
from numpy import ndarray

from streamgen.gateware.functions.function import ErrorBound, Function


def _elu(x: ndarray) -> ndarray:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


FUNCTION = Function(
    name="elu",
    title="ELU",
    reference=_elu,
    error=ErrorBound(relative=2.0**-16, reason="what the fit may use, for 66 segments"),
    torch=("aten.elu.default", "aten.elu_.default"),
    arguments={"alpha": 1, "scale": 1, "input_scale": 1},
)
