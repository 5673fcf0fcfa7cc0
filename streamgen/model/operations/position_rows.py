"""Learned positions: a row of a table for the position of each token."""

from dataclasses import dataclass

import numpy as np

from streamgen.model.graph.logical import Exact, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.site import Site, Stream
from streamgen.model.operations.table_rows import TableRows
from streamgen.numbers.formats import round_f24


@dataclass(frozen=True, eq=False)
class PositionRows(TableRows):
    """A table with a row for each position of the context."""

    arity = 0

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        return (Shape(self.extents[1]),)

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        return self._rows(run).astype(run.dtype)

    def exact(self) -> Exact:
        return lambda run: round_f24(self._rows(run))

    def _rows(self, run: Run) -> np.ndarray:
        if run.positions[-1] >= self.extents[0]:
            raise ValueError(f"position {run.positions[-1]} is needed; the table has {self.extents[0]} rows")
        return self.floats(run.positions)

    def bind(self, site: Site, *inputs: Stream) -> tuple[Stream, ...]:
        return self.found(site, site.numbers("positions"))

    def __str__(self) -> str:
        return f"position_rows[{self.sizes}]"
