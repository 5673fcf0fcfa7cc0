"""Signs of values of a format, changed or alone: -x, |x|, and -1, 0 or 1 by the sign of x.

The sign of a zero, and of NaN, is 0, as in torch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from amaranth import Cat, Const, Module, Mux, Value
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.format import Float
from streamgen.gateware.arith.pipeline import Pipeline, operand
from streamgen.gateware.arith.relations import canonical, require
from streamgen.gateware.arith.unit import UnitParams

SIGNS: dict[str, Callable[[ndarray], ndarray]] = {
    "negate": np.negative,
    "absolute": np.abs,
    "sign": lambda x: np.where(np.isnan(x), 0, np.sign(x)).astype(x.dtype),
}
"""The functions by name, of a float array."""


@dataclass(frozen=True, kw_only=True)
class SignParams(UnitParams):
    """A function of SIGNS in `form`."""

    form: Float
    function: str
    latency = 1

    def __post_init__(self) -> None:
        require("function", self.function, {**SIGNS})

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth."""
        if self.function == "sign":
            return Resources(lut=self.form.bits // 3 + 2, ff=2)
        return Resources(lut=self.form.bits + 6, ff=self.form.bits)

    def golden(self, i: ndarray) -> ndarray:
        """float64 array of the function of values of the format."""
        return SIGNS[self.function](np.asarray(i, np.float64))

    def stages(self, m: Module, pipe: Pipeline, i: Value) -> Value:
        form = self.form
        x = operand(form, i)
        if self.function == "sign":
            s = pipe.stage(any=~(x.zero | x.nan), sign=x.sign & ~(x.zero | x.nan))
            one = Const(form.bias << form.fraction_bits, form.bits - 1)
            return Cat(s.any.replicate(form.bits - 1) & one, s.sign)
        sign = Const(0, 1) if self.function == "absolute" else ~x.sign
        return pipe.stage(bits=Mux(x.nan, form.nan, canonical(form, Cat(i[:-1], sign)))).bits
