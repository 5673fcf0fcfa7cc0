"""Sums and products of two values, element by element; gated products function(a) · b."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streamgen.arith import GatedParams
from streamgen.errors import GraphError
from streamgen.graph.interpret import Run
from streamgen.graph.logical import Exact, Operator, Shape
from streamgen.kernels.elementwise import BINARY_OPERATIONS as UNITS
from streamgen.kernels.elementwise import UNARY_FUNCTIONS as FUNCTIONS
from streamgen.operations.unary import UNARY_FUNCTIONS

__all__ = ["BINARY_OPERATIONS", "Binary"]


def _gated(function: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda a, b: UNARY_FUNCTIONS[function](a) * b


KERNELS = {"add": "add", "mul": "multiply"}
BINARY_OPERATIONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add,
    "mul": np.multiply,
    **{f"{function}_mul": _gated(function) for function in UNARY_FUNCTIONS},
}


@dataclass(frozen=True)
class Binary(Operator):
    """operation: one of BINARY_OPERATIONS; "silu_mul" is silu(a) · b."""

    operation: str
    arity = 2

    def __post_init__(self) -> None:
        if self.operation not in BINARY_OPERATIONS:
            raise GraphError(
                f"there is no binary operation {self.operation!r}; {', '.join(BINARY_OPERATIONS)}"
            )

    @property
    def gate(self) -> str | None:
        """The function that the first operand goes through."""
        return None if self.operation in KERNELS else self.operation.removesuffix("_mul")

    @property
    def kernel(self) -> str:
        """Name of the kernel's operation."""
        return KERNELS.get(self.operation, f"{self.gate}_multiply")

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        a, b = inputs
        if a.features != b.features or "ids" in (a.kind, b.kind):
            raise GraphError(
                f"{self.operation} takes two values of the same features, not {(a.features, b.features)}"
            )
        rows = {a.rows, b.rows} - {"every"}
        if len(rows) > 1:
            raise GraphError(f"{self.operation} takes two values of the same rows, not {a} and {b}")
        return (Shape(a.features, rows.pop() if rows else "every"),)

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        return BINARY_OPERATIONS[self.operation](*inputs)

    def exact(self) -> Exact:
        unit = UNITS.get(self.kernel) or GatedParams(function=FUNCTIONS[self.gate or ""])
        return lambda run, a, b: unit.golden(a, b).astype(np.float32)

    def __str__(self) -> str:
        return self.operation
