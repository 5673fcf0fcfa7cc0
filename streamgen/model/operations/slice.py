"""Slice: consecutive features of a row."""

from dataclasses import dataclass, replace

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.model.graph.logical import Exact, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.site import Site, Stream


@dataclass(frozen=True)
class Slice(Operator):
    """Features first ... first + count - 1."""

    first: int
    count: int
    row_wise = True
    padding = "own"

    def __post_init__(self) -> None:
        if self.first < 0 or self.count < 1:
            raise GraphError(f"{self.count} features from {self.first} on are not a slice")

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        (x,) = inputs
        if self.first + self.count > x.features:
            raise GraphError(
                f"{self.count} features from {self.first} on are needed; the input has {x.features}"
            )
        return (replace(x, features=self.count),)

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        return inputs[0][:, self.first : self.first + self.count]

    def exact(self) -> Exact:
        return self.reference

    def bind(self, site: Site, *inputs: Stream) -> tuple[Stream, ...]:
        """Cut off the beginnings and ends of rows; add padding after the last features of a row."""
        (x,) = inputs
        return (site.fit(site.fit(x, min(site.extent, x.extent - self.first), self.first), site.extent),)

    def __str__(self) -> str:
        return f"slice[{self.first} + {self.count}]"
