"""Embedding: a row of a table for each id."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamgen.errors import GraphError
from streamgen.graph.interpret import Run
from streamgen.graph.logical import Exact, Operator, Shape
from streamgen.memory import RowsLoadParams
from streamgen.numbers.formats import round_f24
from streamgen.operations.site import Site, Stream
from streamgen.text.prompt import require_known

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

    def bind(self, site: Site, *inputs: Stream) -> tuple[Stream, ...]:
        """Rows come from a table in memory, with a row of NaN for unknown ids behind all others."""
        params = RowsLoadParams(
            shape=(site.extent,),
            tile=(site.lanes,),
            vocabulary=len(self.table),
            max_ids=site.tokens,
            rate=site.rate,
        )
        table = site.table("table", params.table, self._table(site.extent))
        bounds = {"ids": site.tokens, "offset": 0}
        return (site.kernel(site.name, params, bounds, behind=[table], i=inputs[0])["o"],)

    def _table(self, extent: int) -> np.ndarray:
        """The table in memory, made once."""
        if extent not in self._tables:
            vocabulary, features = self.table.shape
            self._tables[extent] = np.zeros((vocabulary + 1, extent), np.float32)
            self._tables[extent][:-1, :features] = round_f24(self.table)
            self._tables[extent][-1] = np.nan
        return self._tables[extent]

    @cached_property
    def _tables(self) -> dict[int, np.ndarray]:
        return {}

    def __str__(self) -> str:
        return f"embedding[{self.table.shape[0]} x {self.table.shape[1]}]"
