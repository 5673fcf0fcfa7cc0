"""Functions of each element by itself."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.kernels.elementwise import UNARY_FUNCTIONS as UNITS
from streamgen.kernels.elementwise import UnaryParams
from streamgen.model.graph.logical import Exact, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.site import Site, Stream, of_itensor

__all__ = ["UNARY_FUNCTIONS", "Unary"]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -x))


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1.0 + np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2.0)))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


UNARY_FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "tanh": np.tanh,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}


@dataclass(frozen=True)
class Unary(Operator):
    """function: one of UNARY_FUNCTIONS."""

    function: str

    def __post_init__(self) -> None:
        if self.function not in UNARY_FUNCTIONS:
            raise GraphError(f"there is no unary function {self.function!r}; {', '.join(UNARY_FUNCTIONS)}")

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        return inputs

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        return UNARY_FUNCTIONS[self.function](inputs[0])

    def exact(self) -> Exact:
        unit = UNITS[self.function]
        return lambda run, x: unit.golden(x).astype(np.float32)

    def bind(self, site: Site, *inputs: Stream) -> tuple[Stream, ...]:
        (x,) = inputs
        order = site.order(x)
        params = UnaryParams(function=self.function, **of_itensor(order))
        y = site.kernel(site.name, params, {"itensor": order}, i=x)["o"]
        return (replace(y, by_rows=x.by_rows),)

    def __str__(self) -> str:
        return self.function
