"""Rows of a table in memory, selected by a stream of numbers: ids or positions.

A table of f24 is stored unchanged. A table of w8 is stored as 8-bit codes with a scale for each row, and a
row is code * scale, rounded once to f24 (`kernels.attention.dequantise`).
"""

from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from streamgen.artifact.packed import PackedFloats, PackedRows, PackedTable
from streamgen.base.errors import GraphError
from streamgen.kernels.attention.dequantise import DequantiseParams
from streamgen.kernels.memory import RowsLoadParams, WaitingRowsLoadParams
from streamgen.model.graph.late import LateArray
from streamgen.model.graph.logical import Operator
from streamgen.model.operations.site import Site, Stream
from streamgen.numbers.formats import round_f24
from streamgen.numbers.quantisation import IntegerWeight, Numbers, quantise
from streamgen.numbers.stored import StoredArray
from streamgen.numbers.streamed import streamed
from streamgen.numbers.weights import BYTES

# Of a load whose rows fill the FIFO that others have: so they come as fast as memory gives them, and have
# half of it beside a column's weights, of which as much is under way.
_PREFETCH, _BURST = 128, 64
_ROWS = 1024  # of a table at a time


@dataclass(frozen=True, eq=False)
class TableRows(Operator, ABC):
    """table: float32 [rows, features], or 8-bit codes with a scale for each row."""

    table: np.ndarray | StoredArray | IntegerWeight
    padding = "own"

    def __post_init__(self) -> None:
        if len(self.extents) != 2 or 0 in self.extents:
            raise GraphError(
                f"the table of {type(self).__name__} has shape {list(self.extents)}; [rows, features] is "
                "needed"
            )

    @property
    def extents(self) -> tuple[int, ...]:
        """Rows and features."""
        return self.table.shape

    def quantised(self, numbers: Numbers, path: str) -> Self:
        table = self.table
        if isinstance(table, IntegerWeight) or numbers.table_format(path, table.size) == "f24":
            return self
        if isinstance(table, StoredArray):
            return replace(self, table=streamed(table, form=BYTES.name))
        return replace(self, table=quantise(table, form=BYTES.name))

    def floats(self, rows: np.ndarray) -> np.ndarray:
        """Rows as numbers; for a quantised table the values of its integers, float64."""
        table = self.table
        if isinstance(table, IntegerWeight):
            some = table.read(rows)
            return some.codes * some.row_scale.astype(np.float64)[:, None]
        return table[rows]

    def packed(self, parts: Mapping[str, PackedRows]) -> Self:
        if isinstance(self.table, IntegerWeight):
            table = PackedTable(shape=self.extents, codes=parts["i8"], scales=parts["f24"])
            return replace(self, table=table)
        return replace(self, table=PackedFloats(shape=self.extents, rows=parts["f24"]))

    def found(self, site: Site, numbers: Stream) -> tuple[Stream, ...]:
        """Rows come from a table in memory, with a row of NaN for unknown numbers after all others."""
        if not isinstance(self.table, IntegerWeight):
            return (self._loaded(site, site.name, "f24", site.extent, numbers),)
        codes = self._loaded(site, f"{site.name}_codes", "i8", site.extent, numbers)
        scale = self._loaded(site, f"{site.name}_scale", "f24", 1, numbers)
        return (self._scaled(site, codes, scale),)

    def _loaded(self, site: Site, name: str, dtype: str, extent: int, numbers: Stream) -> Stream:
        """A row of `features` elements for each number."""
        kind = WaitingRowsLoadParams if site.waits else RowsLoadParams
        params = kind(
            shape=(extent,),
            tile=(min(site.lanes, extent),),
            vocabulary=self.extents[0],
            max_ids=site.tokens,
            dtype=dtype,
            **site.memory._asdict(),
        )
        if params.row_beats >= params.prefetch:
            params = replace(params, prefetch=_PREFETCH, burst=_BURST)
        table = site.table("table", params.table, self._stored(dtype, params.stored[0]))
        bounds = {"ids": site.tokens, "offset": 0}
        return site.kernel(name, params, bounds, behind=[table], i=numbers)["o"]

    def _scaled(self, site: Site, codes: Stream, scale: Stream) -> Stream:
        params = DequantiseParams(
            lanes=site.lanes,
            scale_dtype="f24",
            max_d=site.extent,
            max_tokens=site.tokens * site.extent // site.lanes,
        )
        bounds = {"t": site.tokens, "features": site.extent, "d": site.extent}
        return site.kernel(site.name, params, bounds, i_x=codes, i_scale=scale)["o"]

    def _stored(self, dtype: str, extent: int) -> LateArray:
        """The table in memory, the same object each time: rows of that many elements, and one for unknown
        numbers."""
        key = dtype, extent
        if key not in self._tables:
            self._tables[key] = LateArray(
                (1, self.extents[0] + 1, extent),
                np.int8 if dtype == "i8" else np.float32,
                TableSource(self, dtype, extent),
            )
        return self._tables[key]

    @cached_property
    def _tables(self) -> dict[tuple[str, int], LateArray]:
        return {}

    @property
    def sizes(self) -> str:
        """The table for messages."""
        rows, features = self.extents
        return f"{rows} x {features}" + (f", {BYTES.name}" if isinstance(self.table, IntegerWeight) else "")


@dataclass(frozen=True)
class TableSource:
    """Makes what is stored of a table. dtype: "f24", or "i8" for codes. extent: elements of a stored row."""

    rows: TableRows
    dtype: str
    extent: int

    def of_walk(self, walk: int) -> Callable[[int], np.ndarray]:
        return lambda number: self._stored()

    def _stored(self) -> np.ndarray:
        rows, features = self.rows.extents
        stored = np.zeros((rows + 1, self.extent), np.int8 if self.dtype == "i8" else np.float32)
        if self.dtype == "f24":
            stored[-1] = np.nan
        table = self.rows.table
        for first in range(0, rows, _ROWS):
            some = slice(first, min(first + _ROWS, rows))
            if not isinstance(table, IntegerWeight):
                stored[some, :features] = round_f24(table[some])
            elif self.dtype == "i8":
                stored[some, :features] = table.read(some).codes
            else:
                stored[some, 0] = table.read(some).row_scale
        return stored
