"""What is said of a function of one variable, in one value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from numpy import ndarray

from streamgen.gateware.arith import FittedCurve, Float, PiecewiseParams, UnitParams


@dataclass(frozen=True, kw_only=True)
class ErrorBound:
    """How far a result may lie from f(x), beside its rounding to the format: relative·|f(x)| + operand·|x|.

    reason: what the errors are made of. Zero for both: the result is f(x), rounded once.
    """

    relative: float = 0.0
    operand: float = 0.0
    reason: str

    def of(self, form: Float, x: ndarray, y: ndarray) -> ndarray:
        """float64 array: the greatest difference from y = f(x), the rounding included, where the result is a
        normal number of the format."""
        rounding = 2.0**-form.precision * (1 + 2.0**-10)  # of a result that is not y itself
        return (self.relative + rounding) * abs(y) + self.operand * abs(x)


@dataclass(frozen=True, kw_only=True, eq=False)
class Function:
    """A function f of one variable, of each element by itself.

    name: in operations, kernels and files. title: as texts spell it.
    reference: f of a float array, of the same shape and dtype; without overflow at any finite number.
    symmetry: "odd" or "even", where a fit shall use it.
    own: the params of a unit of its own, for a `form`; without, segments are fitted to the reference.
    error: what the unit promises, and what the fit may use.
    gates: whether f(a)·b has a kernel of its own (SwiGLU, GeGLU); the others are two kernels.
    torch: names of the overloads that compute it; arguments: what their arguments beside the first must be.
    configuration: what configurations of transformers call it (`hidden_act`).
    """

    name: str
    title: str
    reference: Callable[[ndarray], ndarray]
    error: ErrorBound
    own: Callable[..., UnitParams] | None = None
    symmetry: Literal["", "odd", "even"] = ""
    gates: bool = False
    torch: tuple[str, ...]
    arguments: Mapping[str, object] = field(default_factory=dict)
    configuration: tuple[str, ...] = ()

    def unit(self, form: Float) -> UnitParams:
        """The params of its hardware in a format."""
        if self.own is not None:
            return self.own(form=form)
        error = self.error
        curve = FittedCurve(self.name, self.reference, error.relative, error.operand, self.symmetry)
        return PiecewiseParams(form=form, curve=curve)
