"""A constant: the same vector for every token."""

from dataclasses import dataclass

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.model.graph.logical import Exact, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.site import Bound, Site
from streamgen.numbers.formats import round_f24


@dataclass(frozen=True, eq=False)
class Constant(Operator):
    """value: float32 [features]."""

    value: np.ndarray
    arity = 0
    is_constant = True
    padding = "own"

    def __post_init__(self) -> None:
        if self.value.ndim != 1 or not self.value.size:
            raise GraphError(f"a constant has shape {list(self.value.shape)}; [features] is needed")

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        return (Shape(len(self.value), "every"),)

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        """[1, features]."""
        return self.value.astype(run.dtype)[None]

    def exact(self) -> Exact:
        rounded = round_f24(self.value)[None]
        return lambda run: rounded

    def bind(self, site: Site, *inputs: Bound) -> tuple[Bound, ...]:
        return (np.stack([round_f24(op.value)[None] for op in site.ops]),)  # type: ignore[attr-defined]

    def __str__(self) -> str:
        return f"constant[{len(self.value)}]"
