"""The logarithm to base 2, by the unit of log with another table; exact for powers of two."""

from dataclasses import dataclass, replace

import numpy as np
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.functions.function import ErrorBound, Function
from streamgen.gateware.functions.log import LogParams


@dataclass(frozen=True, kw_only=True)
class Log2Params(LogParams):
    """log2(x) in `form`."""

    factor = float(np.log2(np.e))
    whole_bits = 8

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth: whole numbers need no table."""
        return replace(super().resources, lut=20 * self.form.precision + 160, bram=0)


def _log2(x: ndarray) -> ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log2(x)


FUNCTION = Function(
    name="log2",
    title="log2",
    reference=_log2,
    own=Log2Params,
    error=ErrorBound(relative=0.9 * 2.0**-16, reason="as of log, in units of the same size"),
    torch=("aten.log2.default", "aten.log2_.default"),
)
