"""ReLU, max(x, 0): zeros and all negative values give +0, NaN stays NaN. One stage."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from amaranth import Cat, Const, Module, Mux, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith import Float
from streamgen.gateware.arith.pipeline import Pipeline, operand
from streamgen.gateware.functions.function import ErrorBound, Function


@dataclass(frozen=True, kw_only=True)
class ReluParams:
    """max(x, 0) in `form`."""

    form: Float

    @property
    def latency(self) -> int:
        """Stages, hence enabled cycles from operand to result."""
        return 1

    @property
    def resources(self) -> Resources:
        """Estimate of what synthesis finds."""
        return Resources(lut=self.form.bits + 1, ff=self.form.bits - 1)

    def golden(self, i: ndarray) -> ndarray:
        """float64 array of the function of values of the format."""
        x = np.asarray(i, np.float64)
        return np.where(np.isnan(x), np.nan, np.where(x > 0, x, 0.0))

    def build(self) -> "Relu":
        return Relu(self)


class Relu(wiring.Component):
    """i: the bits of x; o: of the function, `latency` enabled cycles later."""

    def __init__(self, params: ReluParams) -> None:
        bits = unsigned(params.form.bits)
        super().__init__({"enable": In(1), "i": In(bits), "o": Out(bits)})
        self._params = params

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        form = self._params.form
        x = operand(form, self.i)
        kept = Mux(x.sign | x.zero, 0, Cat(x.fraction, x.exponent))
        s = Pipeline(m, self.enable).stage(bits=Mux(x.nan, form.nan, Cat(kept, Const(0, 1))))
        m.d.comb += self.o.eq(s.bits)
        return m


def _relu(x: ndarray) -> ndarray:
    return np.maximum(x, 0.0)


def _unit(form: Float) -> ReluParams:
    return ReluParams(form=form)


FUNCTION = Function(
    name="relu",
    title="ReLU",
    reference=_relu,
    own=_unit,
    error=ErrorBound(reason="a value of the format, or zero"),
    torch=("aten.relu.default", "aten.relu_.default"),
    configuration=("relu",),
)
