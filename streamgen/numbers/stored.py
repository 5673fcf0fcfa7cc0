"""Floats that stay in their file: rows are read when they are asked for, and are not kept."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

Rows = slice | np.ndarray
"""Some rows: a slice of them, or their numbers."""

_SPARSE = 4  # rows of a stretch for each wanted row, from which on rows are read one by one


class StoredArray(ABC):
    """Floats in a file, float32 [rows, ...]. An index is a slice of rows or an array of their numbers;
    `numpy.asarray` reads all rows. shape: number of rows, then the extents of a row."""

    shape: tuple[int, ...]

    @abstractmethod
    def read(self, first: int, end: int) -> np.ndarray:
        """The rows from one number up to another."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Rows) -> np.ndarray:
        if isinstance(rows, slice):
            first, end, step = rows.indices(len(self))
            if step == 1:
                return self.read(first, max(first, end))
        return gathered(self.read, np.arange(len(self))[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.read(0, len(self)), dtype)

    def taken(self, order: np.ndarray) -> "StoredArray":
        """The array with its rows in another order."""
        return TensorRows(
            (len(order), *self.shape[1:]), lambda first, end: gathered(self.read, order[first:end])
        )


@dataclass(frozen=True, eq=False)
class TensorRows(StoredArray):
    """A tensor of a checkpoint. reader: returns the rows from one number up to another."""

    shape: tuple[int, ...]
    reader: Callable[[int, int], np.ndarray]

    def read(self, first: int, end: int) -> np.ndarray:
        return self.reader(first, end)


class _Grid(Protocol):
    def __getitem__(self, rows: Rows) -> Self: ...


_G = TypeVar("_G", bound=_Grid)


@dataclass(frozen=True, eq=False)
class StoredGrid(Generic[_G]):
    """The 4-bit grid of a weight [N, K] in a file. group: weights along K that share a scale. read: returns
    the grid of the rows from the first number up to the second."""

    shape: tuple[int, ...]
    group: int
    read: Callable[[int, int], _G]

    def __getitem__(self, rows: Rows) -> _G:
        numbers = np.arange(self.shape[0])[rows]
        first = int(numbers.min())
        return self.read(first, int(numbers.max()) + 1)[numbers - first]

    def taken(self, order: np.ndarray) -> "StoredGrid[_G]":
        """The grid with its rows in another order."""
        return StoredGrid((len(order), self.shape[1]), self.group, lambda first, end: self[order[first:end]])


def gathered(read: Callable[[int, int], np.ndarray], rows: np.ndarray) -> np.ndarray:
    """The rows with these numbers, an array of any shape: read in one stretch, or one by one if they lie far
    apart. read: `StoredArray.read`."""
    different, places = np.unique(rows, return_inverse=True)
    if not len(different):
        return read(0, 0)[rows]
    first, end = int(different[0]), int(different[-1]) + 1
    if end - first <= _SPARSE * len(different):
        return read(first, end)[rows - first]
    return np.concatenate([read(row, row + 1) for row in different.tolist()])[places.reshape(rows.shape)]
