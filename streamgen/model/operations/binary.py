"""Sums and products of two values, element by element; gated products function(a) · b."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.gateware.arith import GatedParams
from streamgen.gateware.functions import FUNCTIONS
from streamgen.itensor import broadcast
from streamgen.kernels.elementwise import BINARY_OPERATIONS as UNITS
from streamgen.kernels.elementwise import UNARY_FUNCTIONS, BinaryParams, UnaryParams
from streamgen.model.graph.logical import Exact, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.site import Bound, Site, Source, Stream, of_itensor, of_stream


def _gated(function: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda a, b: FUNCTIONS[function].reference(a) * b


KERNELS = {"add": "add", "mul": "multiply"}
BINARY_OPERATIONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add,
    "mul": np.multiply,
    **{f"{function}_mul": _gated(function) for function in FUNCTIONS},
}


@dataclass(frozen=True)
class Binary(Operator):
    """operation: one of BINARY_OPERATIONS; "silu_mul" is silu(a) · b."""

    operation: str
    arity = 2
    row_wise = True
    padding = "alike"

    def __post_init__(self) -> None:
        if self.operation not in BINARY_OPERATIONS:
            raise GraphError(
                f"there is no binary operation {self.operation!r}; {', '.join(BINARY_OPERATIONS)}"
            )

    @property
    def gate(self) -> str | None:
        """The function of the first operand; None if there is none."""
        return None if self.operation in KERNELS else self.operation.removesuffix("_mul")

    @property
    def kernel(self) -> str:
        """The name of the kernel's operation."""
        return KERNELS.get(self.operation, f"{self.gate}_multiply")

    @property
    def elementwise(self) -> str:
        return self.kernel if self.kernel in UNITS else self.gate or ""

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        a, b = inputs
        if a.features != b.features or "ids" in (a.kind, b.kind):
            raise GraphError(
                f"{self.operation} takes two values with the same number of features, "
                f"not {(a.features, b.features)}"
            )
        rows = {a.rows, b.rows} - {"every"}
        if len(rows) > 1:
            raise GraphError(f"{self.operation} takes two values of the same rows, not {a} and {b}")
        return (Shape(a.features, rows.pop() if rows else "every"),)

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        return BINARY_OPERATIONS[self.operation](*inputs)

    def exact(self) -> Exact:
        unit = UNITS.get(self.kernel) or GatedParams(function=UNARY_FUNCTIONS[self.gate or ""])
        return lambda run, a, b: unit.golden(a, b).astype(np.float32)

    def bind(self, site: Site, *inputs: Bound) -> tuple[Stream, ...]:
        """Tiles have the order of the operand that does not come row after row, if there is one."""
        streams = [operand for operand in inputs if isinstance(operand, Stream)]
        lead = next((stream for stream in streams if not stream.by_rows), streams[0])
        order = site.order(lead)
        bounds = {"itensor": order}
        a, b = inputs
        if self.gate is None and b is lead:
            a, b = b, a

        def source(operand: Bound, port: str) -> Source:
            if isinstance(operand, Stream):
                return operand
            assert isinstance(operand, np.ndarray)
            bounds[port] = broadcast(order)
            return site.fixed(bounds[port], operand)

        if not isinstance(a, Stream):
            raise GraphError(f"operation {site.name!r}: no kernel puts a constant through {self.gate}")
        operation = self.kernel
        if operation not in UNITS:  # no single kernel has this gate
            own = UnaryParams(function=self.gate or "", **of_stream(a))
            gated = site.kernel(f"{site.name}_gate", own, {"itensor": a.itensor}, i=a)["o"]
            a, operation = replace(gated, shape=a.shape, by_rows=a.by_rows), "multiply"
        params = BinaryParams(operation=operation, **of_itensor(order))
        o = site.kernel(site.name, params, bounds, i_a=source(a, "a"), i_b=source(b, "b"))["o"]
        return (replace(o, by_rows=lead.by_rows),)

    def __str__(self) -> str:
        return self.operation
