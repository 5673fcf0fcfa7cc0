"""Embedding: a row of a table for each id."""

from dataclasses import dataclass

import numpy as np

from streamgen.errors import GraphError
from streamgen.formats import round_f24
from streamgen.graph.interpret import Run
from streamgen.graph.logical import Exact, Operator, Shape
from streamgen.prompt import require_known

__all__ = ["Embedding"]


@dataclass(frozen=True, eq=False)
class Embedding(Operator):
    """table: float32 [vocabulary, features]."""

    table: np.ndarray

    def __post_init__(self) -> None:
        if self.table.ndim != 2 or not self.table.size:
            raise GraphError(
                f"the embedding has shape {list(self.table.shape)}; [vocabulary, hidden] is needed"
            )

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        (ids,) = inputs
        if ids.kind != "ids":
            raise GraphError(f"an embedding takes ids, it is given {ids}")
        return (Shape(self.table.shape[1], ids.rows),)

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        return self._rows(inputs[0]).astype(run.dtype)

    def exact(self) -> Exact:
        return lambda run, ids: round_f24(self._rows(ids))

    def _rows(self, ids: np.ndarray) -> np.ndarray:
        require_known(ids, len(self.table))
        return self.table[ids]

    def __str__(self) -> str:
        return f"embedding[{self.table.shape[0]} x {self.table.shape[1]}]"
