"""Rows of a table in memory, selected by a stream of numbers: ids or positions.

A table of f24 is stored unchanged. A table of w8 is stored as 8-bit codes with a scale for each row, and a
row is code * scale, rounded once to f24 (`kernels.attention.dequantise`).
"""

from abc import ABC
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.kernels.attention.dequantise import DequantiseParams
from streamgen.kernels.memory import RowsLoadParams
from streamgen.model.graph.logical import Operator
from streamgen.model.operations.site import Site, Stream
from streamgen.numbers.formats import round_f24
from streamgen.numbers.quantisation import Numbers, QuantisedWeight, is_uniform, quantise
from streamgen.numbers.weights import BYTES

# Of a load whose rows fill the FIFO that others have: so they come as fast as memory gives them, and have
# half of it beside a column's weights, of which as much is under way.
_PREFETCH, _BURST = 128, 64


@dataclass(frozen=True, eq=False)
class TableRows(Operator, ABC):
    """table: float32 [rows, features], or 8-bit codes with a scale for each row."""

    table: np.ndarray | QuantisedWeight
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
        table = self.table
        return table.codes.shape if isinstance(table, QuantisedWeight) else table.shape

    def quantised(self, numbers: Numbers, path: str) -> Self:
        if isinstance(self.table, QuantisedWeight) or numbers.table_format(path, self.table.size) == "f24":
            return self
        return replace(self, table=quantise(self.table, form=BYTES.name))

    def floats(self, rows: np.ndarray) -> np.ndarray:
        """Rows as numbers; for a quantised table the values of its integers, float64."""
        table = self.table
        if isinstance(table, QuantisedWeight):
            return table.codes[rows] * table.row_scale[rows].astype(np.float64)[:, None]
        return table[rows]

    def found(self, site: Site, numbers: Stream) -> tuple[Stream, ...]:
        """Rows come from a table in memory, with a row of NaN for unknown numbers after all others."""
        if not isinstance(self.table, QuantisedWeight):
            return (self._loaded(site, site.name, "f24", site.extent, numbers),)
        codes = self._loaded(site, f"{site.name}_codes", "i8", site.extent, numbers)
        scale = self._loaded(site, f"{site.name}_scale", "f24", 1, numbers)
        return (self._scaled(site, codes, scale),)

    def _loaded(self, site: Site, name: str, dtype: str, extent: int, numbers: Stream) -> Stream:
        """A row of `features` elements for each number."""
        params = RowsLoadParams(
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

    def _stored(self, dtype: str, extent: int) -> np.ndarray:
        """The array in memory, made once: rows of that many elements, and one for unknown numbers."""
        key = dtype, extent
        if key not in self._tables:
            self._tables[key] = self._with_unknown(dtype, extent)
        return self._tables[key]

    def _with_unknown(self, dtype: str, extent: int) -> np.ndarray:
        rows = self.extents[0]
        stored = np.zeros((rows + 1, extent), np.int8 if dtype == "i8" else np.float32)
        if dtype == "f24":
            stored[-1] = np.nan
        if not isinstance(self.table, QuantisedWeight):
            stored[:-1, : self.extents[1]] = round_f24(self.table)
        elif dtype == "i8" and is_uniform(self.table.codes) and extent == self.extents[1]:
            return np.broadcast_to(self.table.codes.flat[0], stored.shape)  # times NaN behind the others
        elif dtype == "i8":
            stored[:-1, : self.extents[1]] = self.table.codes
        else:
            stored[:-1, 0] = self.table.row_scale
        return stored

    @cached_property
    def _tables(self) -> dict[tuple[str, int], np.ndarray]:
        return {}

    @property
    def sizes(self) -> str:
        """The table for messages."""
        rows, features = self.extents
        return f"{rows} x {features}" + (f", {BYTES.name}" if isinstance(self.table, QuantisedWeight) else "")
