"""Embedding: a row of a table for each id."""

from dataclasses import dataclass

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.model.graph.logical import Exact, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.site import Site, Stream
from streamgen.model.operations.table_rows import TableRows
from streamgen.numbers.formats import round_f24
from streamgen.text.prompt import require_known


@dataclass(frozen=True, eq=False)
class Embedding(TableRows):
    """A table with a row for each id of a vocabulary."""

    @property
    def vocabulary(self) -> int:
        return self.extents[0]

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        (ids,) = inputs
        if ids.kind != "ids":
            raise GraphError(f"an embedding takes ids; it is given {ids}")
        return (Shape(self.extents[1], ids.rows),)

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        return self._rows(inputs[0]).astype(run.dtype)

    def exact(self) -> Exact:
        return lambda run, ids: round_f24(self._rows(ids))

    def _rows(self, ids: np.ndarray) -> np.ndarray:
        require_known(ids, self.extents[0])
        return self.floats(ids)

    def bind(self, site: Site, *inputs: Stream) -> tuple[Stream, ...]:
        return self.found(site, inputs[0])

    def __str__(self) -> str:
        return f"embedding[{self.sizes}]"
