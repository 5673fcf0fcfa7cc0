"""ReduceTokens: one row for all tokens of a sequence: the sum, the mean, the greatest or the least of each
feature.

The number of tokens is that of the run. The kernel's golden model defines the exact result
(`kernels.token_reductions`).
"""

from dataclasses import dataclass, replace
from math import gcd
from typing import Literal

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.kernels.token_reductions import FUNCTIONS, TokenReductionsParams
from streamgen.model.graph.logical import Exact, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.site import Site, Stream

_LANES = 16  # the most elements per cycle; each has an adder of float32


@dataclass(frozen=True)
class ReduceTokens(Operator):
    """function: one of FUNCTIONS."""

    function: Literal["sum", "mean", "max", "min"]
    mixes_tokens = True
    padding = "own"

    def __post_init__(self) -> None:
        if self.function not in FUNCTIONS:
            raise GraphError(f"there is no reduction {self.function!r} of tokens; {', '.join(FUNCTIONS)}")

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        (x,) = inputs
        if x.rows != "tokens" or x.kind == "ids":
            raise GraphError(f"{self} is given {x}")
        return (replace(x, rows="one"),)

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        reduced: np.ndarray = getattr(np, self.function)(x, axis=0, keepdims=True)
        return reduced

    def exact(self) -> Exact:
        def compute(run: Run, x: np.ndarray) -> np.ndarray:
            rows, length = x.shape
            params = self.params(1, length, rows)
            return params.golden({"rows": rows, "length": length}, {"i": x})["o"]

        return compute

    def params(self, lanes: int, length: int, rows: int) -> TokenReductionsParams:
        """The params of the kernel for so many rows of this length."""
        return TokenReductionsParams(function=self.function, lanes=lanes, max_length=length, max_rows=rows)

    def bind(self, site: Site, *inputs: Stream) -> tuple[Stream, ...]:
        """Rows without padding, in tokens whose width divides them."""
        (x,) = inputs
        rows, length = site.count(x.shape), x.shape.features
        params = self.params(gcd(site.lanes, _LANES, length), length, rows)
        bounds = {"rows": rows, "length": length}
        y = site.kernel(site.name, params, bounds, i=site.fit(x, length))["o"]
        return (site.fit(Stream(y.port, y.itensor, replace(x.shape, rows="one")), site.extent),)

    def __str__(self) -> str:
        return f"{self.function}_of_tokens"
