"""The logarithm to base 10, by the unit of log with another table."""

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from streamgen.gateware.functions.function import ErrorBound, Function
from streamgen.gateware.functions.log import LogParams


@dataclass(frozen=True, kw_only=True)
class Log10Params(LogParams):
    """log10(x) in `form`."""

    factor = float(np.log10(np.e))
    whole_bits = 7


def _log10(x: ndarray) -> ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log10(x)


FUNCTION = Function(
    name="log10",
    title="log10",
    reference=_log10,
    own=Log10Params,
    error=ErrorBound(relative=0.9 * 2.0**-16, reason="as of log, in units of the same size"),
    torch=("aten.log10.default", "aten.log10_.default"),
)
