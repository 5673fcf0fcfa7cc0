"""Weights that stay in their file: they are rounded each time that they are read, so none of them is kept."""

from dataclasses import dataclass

from streamgen.numbers.quantisation import (
    GroupGrid,
    IntegerWeight,
    QuantisedWeight,
    quantise_grid,
    rounded,
)
from streamgen.numbers.stored import Rows, StoredArray, StoredGrid
from streamgen.numbers.weights import FORMATS


@dataclass(frozen=True, kw_only=True, eq=False)
class StreamedWeight(IntegerWeight):
    """A weight that is rounded to its format each time that it is read. weight: its floats. grid: its 4-bit
    grid if the format keeps it, else None. bits: of scales and minimums. format, group, minimums: see
    `IntegerWeight`."""

    weight: StoredArray
    grid: StoredGrid[GroupGrid] | None
    bits: int
    format: str
    group: int | None
    minimums: bool

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.weight.shape

    @property
    def grouped(self) -> bool:  # type: ignore[override]
        return self.group is not None

    @property
    def scale_bits(self) -> int:
        return 8 if self.bits == 8 else super().scale_bits

    def read(self, rows: Rows | None = None) -> QuantisedWeight:
        if self.grid is not None:
            grid = self.grid if rows is None else self.grid[rows]
            return quantise_grid(grid, scale_bits=self.bits, symmetric=not self.minimums)
        weight = self.weight if rows is None else self.weight[rows]
        return rounded(weight, self.format, self.group or 0, self.bits, self.minimums)


def streamed(
    weight: StoredArray,
    grid: StoredGrid[GroupGrid] | None = None,
    *,
    form: str,
    group: int = 32,
    scale_bits: int = 8,
    minimum: bool = True,
) -> StreamedWeight:
    """A weight in a file in the format `form`. Arguments and errors are those of `quantise`: the first row is
    read to find them, and all rows of a grid that must have no minimums."""
    own = FORMATS[form]
    kept = grid if own.keep is not None else None
    weight_in_format = StreamedWeight(
        weight=weight,
        grid=kept,
        bits=scale_bits,
        format=form,
        group=(own.group(group) or None) if kept is None else kept.group,
        minimums=minimum and own.minimums,
    )
    weight_in_format.read(slice(1) if kept is None or minimum else None)
    return weight_in_format
