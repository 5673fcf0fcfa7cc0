"""Reduce: one number for each piece of a row: its sum, the sum of its squares, its greatest element.

The kernel's golden model defines the exact result (`kernels.row_reductions`).
"""

from dataclasses import dataclass, replace
from math import gcd
from typing import Literal

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.kernels.row_reductions import FUNCTIONS, LONGEST, RowReductionsParams
from streamgen.model.graph.logical import Exact, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.site import Site, Stream

REDUCTIONS = {
    "sum": lambda x: x.sum(axis=-1),
    "squares": lambda x: (x * x).sum(axis=-1),
    "max": lambda x: x.max(axis=-1),
}


@dataclass(frozen=True)
class Reduce(Operator):
    """function: one of REDUCTIONS. length: of a piece, in features; a row holds whole pieces."""

    function: Literal["sum", "squares", "max"]
    length: int
    row_wise = True
    padding = "own"

    def __post_init__(self) -> None:
        if self.function not in FUNCTIONS:
            raise GraphError(f"there is no reduction {self.function!r}; {', '.join(FUNCTIONS)}")
        if not 1 <= self.length <= LONGEST:
            raise GraphError(f"pieces of {self.length} features are reduced; 1 to {LONGEST} are allowed")

    def held(self, features: int) -> int:
        return self.length

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        (x,) = inputs
        if x.features % self.length or x.kind == "ids":
            raise GraphError(f"{self} is given {x}")
        return (replace(x, features=x.features // self.length),)

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        reduced: np.ndarray = REDUCTIONS[self.function](x.reshape(len(x), -1, self.length))
        return reduced

    def params(self, lanes: int, rows: int) -> RowReductionsParams:
        """The params of the kernel for so many pieces."""
        return RowReductionsParams(function=self.function, lanes=lanes, max_length=self.length, max_rows=rows)

    def exact(self) -> Exact:
        def compute(run: Run, x: np.ndarray) -> np.ndarray:
            rows, pieces = x.size // self.length, x.shape[1] // self.length
            bounds = {"rows": rows, "length": self.length, "pieces": pieces}
            return self.params(1, rows).golden(bounds, {"i": x})["o"]

        return compute

    def bind(self, site: Site, *inputs: Stream) -> tuple[Stream, ...]:
        """Rows without padding, in tokens whose width divides each piece."""
        (x,) = inputs
        pieces = x.shape.features // self.length
        rows = site.count(x.shape) * pieces
        params = self.params(gcd(site.lanes, 16, self.length), rows)
        bounds = {"rows": rows, "length": self.length, "pieces": pieces}
        y = site.kernel(site.name, params, bounds, i=site.fit(x, x.shape.features))["o"]
        return (site.fit(Stream(y.port, y.itensor, replace(x.shape, features=pieces)), site.extent),)

    def __str__(self) -> str:
        return f"{self.function}[{self.length}]"
