"""Linear: y = x @ weight.T + bias.

In the accelerator activations are mxi8 and weights are integers. Sums are exact, and a bias is added in f24
(`exact_linear`).
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.model.graph.logical import Exact, Form, Matmul, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.exact_linear import exact_linear, quantise_activations
from streamgen.model.operations.site import Bound, Site, Stream
from streamgen.numbers.quantisation import GroupGrid, IntegerWeight, Numbers, quantise
from streamgen.numbers.stored import StoredArray, StoredGrid
from streamgen.numbers.streamed import streamed
from streamgen.numbers.weights import FORMATS, GRID


@dataclass(frozen=True, eq=False)
class Linear(Operator):
    """weight: float32 [N, K], in memory or in a file, or integers on the grid of the hardware. bias: float32
    [N]. grid: the weight's own 4-bit grid, if its checkpoint has one. asked: the format that the checkpoint
    asks for if there is no grid: "w8" for other quantised weights, None for floats."""

    weight: np.ndarray | StoredArray | IntegerWeight
    bias: np.ndarray | None = None
    grid: GroupGrid | StoredGrid[GroupGrid] | None = None
    asked: str | None = None
    row_wise = True
    padding = "own"

    def __post_init__(self) -> None:
        if len(self.extents) != 2 or 0 in self.extents:
            raise GraphError(f"the weight of a Linear has shape {list(self.extents)}; [N, K] is needed")
        if self.bias is not None and self.bias.shape != self.extents[:1]:
            raise GraphError(
                f"a Linear has weight {list(self.extents)} and bias {list(self.bias.shape)}; "
                f"[{self.extents[0]}] is needed"
            )
        if self.grid is not None and self.grid.shape != self.extents:
            raise GraphError(
                f"a Linear has weight {list(self.extents)} and a grid of {list(self.grid.shape)}"
            )

    @property
    def matmul(self) -> Matmul:
        return self

    @property
    def extents(self) -> tuple[int, ...]:
        """N and K."""
        return self.weight.shape

    @property
    def wanted(self) -> str | None:
        """The format that keeps the checkpoint's weights; None for floats."""
        return self.asked if self.grid is None else GRID.name

    def is_fitted(self, numbers: Numbers, path: str) -> bool:
        """Whether the floats must be fitted to few bits, because they have no grid."""
        form = FORMATS[numbers.weight_format(path, self.wanted)]
        kept = self.grid is not None and form.keep is not None
        return not isinstance(self.weight, IntegerWeight) and not kept and form.is_narrow

    @property
    def integers(self) -> IntegerWeight:
        """The quantised weight; GraphError if it is not quantised."""
        if not isinstance(self.weight, IntegerWeight):
            raise GraphError(f"{self} is not quantised")
        return self.weight

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        (x,), (N, K) = inputs, self.extents
        if x.features != K or x.kind != "real":
            raise GraphError(f"a Linear of weight [{N}, {K}] takes {K} features; it is given {x.features}")
        return (replace(x, features=N),)

    def form(self) -> Form:
        """Does not include the format that a checkpoint asks for, which may differ between layers that are
        alike."""
        return super().form() if not (self.grid or self.asked) else Linear(self.weight, self.bias).form()

    def quantised(self, numbers: Numbers, path: str) -> "Linear":
        if isinstance(self.weight, IntegerWeight):
            return self
        make: Any = streamed if isinstance(self.weight, StoredArray) else quantise
        weight = make(
            self.weight,
            self.grid,
            form=numbers.weight_format(path, self.wanted),
            group=numbers.group,
            scale_bits=numbers.scale_bits,
            minimum=numbers.minimum,
        )
        return self.with_weight(weight)

    def with_weight(self, weight: IntegerWeight) -> "Linear":
        return Linear(weight, self.bias)

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        y = x @ self.floats.astype(x.dtype, copy=False).T
        return y if self.bias is None else y + self.bias.astype(x.dtype)

    @property
    def floats(self) -> np.ndarray:
        """The weight as numbers; for a quantised weight the values of its integers."""
        weight = self.weight
        return weight.read().dequantise() if isinstance(weight, IntegerWeight) else np.asarray(weight)

    def exact(self) -> Exact:
        linear = exact_linear(self.integers, self.bias)
        return lambda run, x: linear(run.once("mxi8", x, quantise_activations))

    def bind(self, site: Site, *inputs: Bound) -> tuple[Stream, ...]:
        """Columns compute the matmul: its own, or those of the engine, which matmuls share."""
        return (site.fit(site.matmul(inputs[0]), site.extent),)

    def __str__(self) -> str:
        N, K = self.extents
        extras = [] if self.bias is None else ["bias"]
        extras += [] if self.grid is None else [f"grid of {self.grid.group}"]
        extras += [] if self.asked is None else [f"of {self.asked}"]
        extras += [self.weight.format] if isinstance(self.weight, IntegerWeight) else []
        return f"linear[{', '.join([f'{K} -> {N}', *extras])}]"
