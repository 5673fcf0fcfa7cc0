"""Rows of attention: the order in which queries meet the keys and values of their context.

    for each head of keys, each position t of queries, each query head of its group:  a row
    query head = head * group + member           row = (head * t's + t) * group + member

A row meets all positions 0 ... length - 1 of its head, `lanes` at a time: a tile. Rows that share a head take
the same tiles again. This is a re-use loop of the itensor, so a converter in front of the kernel holds one
head. The last tile of a row is padded; the content of the padding does not affect other positions.

Tensors have the form of quantisers and caches: queries [t, query heads * dims]; keys and values [length,
heads * dims], padded to whole tiles; their scales likewise with one column per head; scores [rows, length].
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from streamgen.contract import Bounds
from streamgen.itensor import ITensor
from streamgen.kernels.row_parts import MAX_LENGTH

_MAX_ROWS = (1 << 24) - 1
_MAX_DIMS = 1024


@dataclass(frozen=True, kw_only=True)
class AttentionRowsParams:
    """dims: of a head. lanes: positions of a tile. group: query heads that share a head of keys and values.

    max_length: positions of a context. max_rows: of one descriptor. Bounds: heads (of keys), t (positions of
    queries), length (positions of the context).
    """

    dims: int
    lanes: int
    group: int
    max_length: int
    max_rows: int
    squares: ClassVar[frozenset[str]]
    """Ports whose numbers of tokens are not linear in t: they grow with its square or, with lanes, in
    steps."""

    def __post_init__(self) -> None:
        for name, most in (
            ("dims", _MAX_DIMS),
            ("lanes", 64),
            ("group", _MAX_ROWS),
            ("max_length", MAX_LENGTH),
            ("max_rows", _MAX_ROWS),
        ):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{self._kernel}.{name} is {getattr(self, name)}; 1 to {most} are allowed")

    @property
    def _kernel(self) -> str:
        return type(self).__name__.removesuffix("Params")

    @property
    def max_tiles(self) -> int:
        """Tiles of the longest row."""
        return -(-self.max_length // self.lanes)

    @property
    def length_bits(self) -> int:
        return self.max_length.bit_length()

    def tiles(self, bounds: Bounds) -> int:
        """Tiles of a row."""
        return -(-bounds["length"] // self.lanes)

    def rows(self, bounds: Bounds) -> int:
        """Rows of a descriptor."""
        count: int = bounds["heads"] * bounds["t"] * self.group
        return count

    def work(self, bounds: Bounds) -> int:
        """Cycles that the multipliers need, with `lanes` positions of a row per cycle."""
        return self.rows(bounds) * self.tiles(bounds)

    def queries(self, bounds: Bounds, dtype: str, columns: int, width: int) -> ITensor:
        """The order of a tensor with `columns` elements for each query head, `width` per token."""
        loops = (bounds["heads"], bounds["t"], self.group, columns // width)
        steps = (self.group * columns, 1, columns, width)
        return ITensor((1, width), dtype, loops, steps, ((1,), (0, 2, 3)))

    def tiles_of_rows(self, bounds: Bounds, dtype: str, columns: int) -> ITensor:
        """The order of tiles of keys, values or their scales, with `columns` for each head, repeated for each
        row of a head."""
        loops = (bounds["heads"], bounds["t"], self.group, self.tiles(bounds))
        return ITensor((self.lanes, columns), dtype, loops, (columns, 1, 1, self.lanes), ((3,), (0,)))

    def tiles_of_heads(self, bounds: Bounds, dtype: str, columns: int) -> ITensor:
        """The order of these tiles, once for each head."""
        loops = (bounds["heads"], self.tiles(bounds))
        return ITensor((self.lanes, columns), dtype, loops, (columns, self.lanes), ((1,), (0,)))

    def positions(self, bounds: Bounds, dtype: str) -> ITensor:
        """The order of scores and probabilities, with an element for each row and position, as softmax takes
        them."""
        trips = (self.rows(bounds), self.tiles(bounds))
        return ITensor((1, self.lanes), dtype, trips, (1, self.lanes), ((0,), (1,)))

    def _check(self, bounds: Bounds) -> None:
        """Raise ValueError for bounds that the hardware cannot run."""
        rows = self.rows(bounds)
        for name, value, law, holds in (
            ("heads", bounds["heads"], "at least 1", bounds["heads"] >= 1),
            ("t", bounds["t"], f"1 to {self.max_rows} rows, not {rows}", 1 <= rows <= self.max_rows),
            ("length", bounds["length"], f"1 to {self.max_length}", 1 <= bounds["length"] <= self.max_length),
        ):
            if not holds:
                raise ValueError(f"{self._kernel}: {name} is {value}; it must be {law}")

    def _shape(self, bounds: Bounds) -> Mapping[str, tuple[int, ...]]:
        """Shapes for the golden model: of queries by head, and of tiles by head."""
        heads, t = bounds["heads"], bounds["t"]
        padded = self.tiles(bounds) * self.lanes
        return {"queries": (t, heads, self.group, -1), "tiles": (padded, heads, -1)}
