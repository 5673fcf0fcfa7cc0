"""ReLU, max(x, 0): zeros and all negative values give +0, NaN stays NaN. One stage."""

from dataclasses import dataclass

import numpy as np
from amaranth import Cat, Const, Module, Mux, Value
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith import Float
from streamgen.gateware.arith.pipeline import Pipeline, operand
from streamgen.gateware.arith.unit import UnitParams
from streamgen.gateware.functions.function import ErrorBound, Function


@dataclass(frozen=True, kw_only=True)
class ReluParams(UnitParams):
    """max(x, 0) in `form`."""

    form: Float
    latency = 1

    @property
    def resources(self) -> Resources:
        """Estimate of what synthesis finds."""
        return Resources(lut=self.form.bits + 1, ff=self.form.bits - 1)

    def golden(self, i: ndarray) -> ndarray:
        """float64 array of the function of values of the format."""
        x = np.asarray(i, np.float64)
        return np.where(np.isnan(x), np.nan, np.where(x > 0, x, 0.0))

    def stages(self, m: Module, pipe: Pipeline, i: Value) -> Value:
        form = self.form
        x = operand(form, i)
        kept = Mux(x.sign | x.zero, 0, Cat(x.fraction, x.exponent))
        s = pipe.stage(bits=Mux(x.nan, form.nan, Cat(kept, Const(0, 1))))
        return s.bits


def _relu(x: ndarray) -> ndarray:
    return np.maximum(x, 0.0)


FUNCTION = Function(
    name="relu",
    title="ReLU",
    reference=_relu,
    own=ReluParams,
    error=ErrorBound(reason="a value of the format, or zero"),
    torch=("aten.relu.default", "aten.relu_.default"),
    configuration=("relu",),
)
