"""Concat: joins the features of several values."""

from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.kernels.moves.join_rows import JoinRowsParams
from streamgen.model.graph.logical import Exact, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.site import Site, Stream


@dataclass(frozen=True)
class Concat(Operator):
    """parts: the number of features of each value."""

    parts: tuple[int, ...]
    row_wise = True
    padding = "own"

    def __post_init__(self) -> None:
        if len(self.parts) < 2:
            raise GraphError(f"{len(self.parts)} values are joined; at least 2 are needed")

    @property
    def arity(self) -> int:  # type: ignore[override]
        return len(self.parts)

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        if tuple(x.features for x in inputs) != self.parts or len({(x.rows, x.kind) for x in inputs}) > 1:
            raise GraphError(f"{self} is given {', '.join(map(str, inputs))}")
        return (replace(inputs[0], features=sum(self.parts)),)

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        return np.concatenate(inputs, axis=1)

    def exact(self) -> Exact:
        return self.reference

    def bind(self, site: Site, *inputs: Stream) -> tuple[Stream, ...]:
        """Rows without padding, joined in tokens whose width divides each part."""
        rows = site.count(inputs[0].shape)
        lanes = gcd(site.lanes, *self.parts)
        params = JoinRowsParams(
            ways=len(self.parts), dtype="f24", lanes=lanes, max_tokens=rows * sum(self.parts) // lanes
        )
        parts: dict[str, Any] = {
            f"i_{way}": site.fit(x, part)
            for way, (x, part) in enumerate(zip(inputs, self.parts, strict=True))
        }
        joined = site.kernel(site.name, params, {"rows": rows, "parts": self.parts}, **parts)["o"]
        return (site.fit(replace(joined, shape=inputs[0].shape), site.extent),)

    def __str__(self) -> str:
        return f"concat[{' + '.join(map(str, self.parts))}]"
