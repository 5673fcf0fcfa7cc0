"""An expression of values, element by element: adjacent pointwise operations in one kernel.

A value of one row is joined to each row of the others.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.gateware.arith import F24
from streamgen.gateware.pointwise import Formula
from streamgen.itensor import broadcast
from streamgen.kernels.expression import ExpressionParams
from streamgen.model.graph.logical import Exact, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.binary import Binary
from streamgen.model.operations.site import Bound, Site, Stream, of_itensor


@dataclass(frozen=True)
class Expression(Operator):
    """formula: of as many values as the operation reads."""

    formula: Formula
    row_wise = True
    padding = "alike"

    @property
    def arity(self) -> int:  # type: ignore[override]
        return self.formula.values

    @property
    def elementwise(self) -> Formula:
        return self.formula

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        features = {value.features for value in inputs}
        if len(features) > 1 or "ids" in {value.kind for value in inputs}:
            raise GraphError(
                f"an expression takes values with the same number of features, not "
                f"{', '.join(map(str, inputs))}"
            )
        rows = {value.rows for value in inputs} - {"every"}
        if rows == {"one", "tokens"}:
            rows = {"tokens"}
        if len(rows) > 1:
            raise GraphError(
                f"an expression takes values of the same rows, not {', '.join(map(str, inputs))}"
            )
        return (Shape(features.pop(), rows.pop() if rows else "every"),)

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        return self.formula.reference(*inputs)

    def exact(self) -> Exact:
        unit = self.formula.unit(F24)
        return lambda run, *inputs: unit.golden(*inputs).astype(np.float32)

    def bind(self, site: Site, *inputs: Bound) -> tuple[Stream, ...]:
        """Tiles have the order of the operand that does not come row after row, if there is one. The row of
        an operand that has one is sent again for each row of the others."""
        streams = [operand for operand in inputs if isinstance(operand, Stream)]
        if not streams:
            raise GraphError(f"operation {site.name!r}: no kernel computes an expression of constants alone")
        if by_token := [stream for stream in streams if stream.shape.rows != "one"]:
            streams = by_token
        lead = next((stream for stream in streams if not stream.by_rows), streams[0])
        order = site.order(lead)
        bounds = {"itensor": order}
        sources: dict[str, Any] = {}  # streams and constants
        for name, operand in zip(self.formula.names, inputs, strict=True):
            if isinstance(operand, Stream):
                sources[f"i_{name}"] = operand
                if operand.shape.rows != lead.shape.rows:
                    bounds[name] = broadcast(order)
                continue
            assert isinstance(operand, np.ndarray)
            bounds[name] = broadcast(order)
            sources[f"i_{name}"] = site.fixed(bounds[name], operand)
        params = ExpressionParams(formula=self.formula, **of_itensor(order))
        o = site.kernel(site.name, params, bounds, **sources)["o"]
        return (replace(o, by_rows=lead.by_rows),)

    def __str__(self) -> str:
        return f"expression[{self.formula}]"


def as_expression(op: Binary) -> Expression:
    """A sum or a product as an expression, which joins a value of one row to each row of another value."""
    return Expression(Formula(values=2, steps=((op.kernel, (0, 1)),)))
