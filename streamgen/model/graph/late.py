"""Constants that are made when they are read, so that few of them are in memory at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from streamgen.base.kept import ROOM


class Source(Protocol):
    """Makes arrays together: all those of a walk at a time."""

    def of_walk(self, walk: int) -> Callable[[int], np.ndarray]:
        """Read what the arrays of a walk are made of. The result makes each of them, by its number."""
        ...


class LateArray:
    """A constant of several walks, an array for each. shape, dtype: of all walks together. source, number:
    they make it.

    Arrays are kept as long as there is room (`base.kept`). `source` makes them without keeping them.
    """

    _opened: ClassVar[tuple[Source, int, Callable[[int], np.ndarray]] | None] = None  # the last one

    def __init__(self, shape: tuple[int, ...], dtype: Any, source: Source, number: int = 0) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.source, self.number = source, number
        self._kept: dict[int, np.ndarray] = {}

    def part(self, first: int, end: int) -> "LateArray":
        """Elements from one number up to another of the last axis."""
        return LateArray((*self.shape[:-1], end - first), self.dtype, PartSource(self, first, end))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all walks."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, walk: int) -> np.ndarray:
        if walk in self._kept:
            return self._kept[walk]
        opened = LateArray._opened
        if opened is None or opened[:2] != (self.source, walk):
            LateArray._opened = opened = self.source, walk, self.source.of_walk(walk)
        array = opened[2](self.number)
        if ROOM.take(self, array.nbytes):
            self._kept[walk] = array
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(np.stack([self[walk] for walk in range(len(self))]), dtype)


@dataclass(frozen=True)
class PartSource:
    """Makes a part of the last axis of another constant. whole: that constant. first, end: of the part."""

    whole: LateArray
    first: int
    end: int

    def of_walk(self, walk: int) -> Callable[[int], np.ndarray]:
        return lambda number: self.whole[walk][..., self.first : self.end]
