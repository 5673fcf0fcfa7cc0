"""The type itself: which tile of a tensor is which token of a stream.

Token k, with loop indices i (loops run like nested `for`s, outermost first), covers in dimension r

    [o, o + element_shape[r])    o = base[r] + sum(i[l] * steps[l] for l in iter_map[r])

A loop that no dimension uses sends the same tiles again.
"""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from streamgen.itensor import text
from streamgen.itensor.canonical import Loop
from streamgen.numbers import formats


@dataclass(frozen=True, init=False)
class ITensor:
    """The order in which the tiles of a tensor pass a point.

    element_shape: the tile, one extent per data dimension.
    dtype: a name of `streamgen.numbers.formats`.
    tripcounts, steps: one entry per loop, outermost first; the step of an unmapped loop means nothing.
    iter_map: per data dimension the loops whose offsets add up to it (kept sorted).
    base: a constant offset per dimension, 0 by default.

    Raises TypeError for what is not a number, ValueError for what breaks a law.
    """

    element_shape: tuple[int, ...]
    dtype: str
    tripcounts: tuple[int, ...]
    steps: tuple[int, ...]
    iter_map: tuple[tuple[int, ...], ...]
    base: tuple[int, ...]

    def __init__(
        self,
        element_shape: Sequence[int],
        dtype: str,
        tripcounts: Sequence[int],
        steps: Sequence[int],
        iter_map: Sequence[Sequence[int]],
        base: Sequence[int] | None = None,
    ) -> None:
        shape = _integers("element_shape", element_shape, 1)
        if not shape:
            raise ValueError("element_shape must have at least one dimension")
        trips = _integers("tripcounts", tripcounts, 1)
        strides = _integers("steps", steps, 1)
        if len(trips) != len(strides):
            raise ValueError(
                f"tripcounts and steps must have one entry per loop; they have {len(trips)} and "
                f"{len(strides)}"
            )
        if isinstance(iter_map, str) or not isinstance(iter_map, Iterable):
            raise TypeError(f"iter_map must be a sequence of sequences of loops, not {iter_map!r}")
        loops = tuple(tuple(sorted(_integers("iter_map", entry, 0))) for entry in iter_map)
        if len(loops) != len(shape):
            raise ValueError(
                f"iter_map must have one entry per dimension; it has {len(loops)}, not {len(shape)}"
            )
        used: set[int] = set()
        for loop in (loop for entry in loops for loop in entry):
            if loop >= len(trips):
                raise ValueError(f"iter_map names loop {loop}; there are {len(trips)} loops")
            if loop in used:
                raise ValueError(f"iter_map uses loop {loop} twice; a loop serves one dimension at most")
            used.add(loop)
        start = (0,) * len(shape) if base is None else _integers("base", base, 0)
        if len(start) != len(shape):
            raise ValueError(f"base must have one entry per dimension; it has {len(start)}, not {len(shape)}")
        formats.token_bits(dtype, shape)
        names = ("element_shape", "dtype", "tripcounts", "steps", "iter_map", "base")
        for name, value in zip(names, (shape, dtype, trips, strides, loops, start), strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def parse(cls, string: str) -> "ITensor":
        """The itensor that `str` prints so; ValueError says where the text goes wrong."""
        return cls(**text.parse(string))

    def __str__(self) -> str:
        return text.render(
            self.element_shape, self.dtype, self.tripcounts, self.steps, self.iter_map, self.base
        )

    @property
    def rank(self) -> int:
        """Number of data dimensions."""
        return len(self.element_shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the tensor: where the last tile ends in each dimension."""
        return tuple(
            self.base[r]
            + sum((self.tripcounts[loop] - 1) * self.steps[loop] for loop in loops)
            + self.element_shape[r]
            for r, loops in enumerate(self.iter_map)
        )

    @property
    def token_count(self) -> int:
        """Number of tokens of the stream."""
        return prod(self.tripcounts)

    @property
    def token_bits(self) -> int:
        """Width of the stream's payload."""
        return formats.token_bits(self.dtype, self.element_shape)

    @property
    def dimensions(self) -> tuple[int | None, ...]:
        """The data dimension that each loop serves, None for re-use."""
        served = {loop: r for r, loops in enumerate(self.iter_map) for loop in loops}
        return tuple(served.get(loop) for loop in range(len(self.tripcounts)))

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loops as (trip, step vector over the dimensions), outermost first."""
        return tuple(
            (trip, tuple(step if r == served else 0 for r in range(self.rank)))
            for trip, step, served in zip(self.tripcounts, self.steps, self.dimensions, strict=True)
        )

    def offsets(self) -> np.ndarray:
        """int64 (token_count, rank): where each token's tile starts."""
        start = np.array(self.base, np.int64)[None, :]
        axes = [
            np.arange(trip, dtype=np.int64)[:, None] * np.array(step, np.int64) for trip, step in self.loops
        ]
        return reduce(lambda a, b: (a[:, None] + b[None]).reshape(-1, self.rank), axes, start)

    def to_tokens(self, a: np.ndarray) -> np.ndarray:
        """Tokens (token_count, *element_shape) of the tensor `a`, which has exactly this `shape`."""
        a = np.asarray(a)
        if a.shape != self.shape:
            raise ValueError(f"the tensor must have shape {self.shape}, not {a.shape}")
        return self._tiles(a, writeable=False).copy().reshape(self.token_count, *self.element_shape)

    def from_tokens(self, t: np.ndarray, fill: Any = None) -> np.ndarray:
        """The tensor of these tokens; `fill` is the value of elements that no token covers.

        Raises ValueError when tokens disagree about an element, bit for bit, or when there are
        uncovered elements and no `fill`.
        """
        t = np.asarray(t)
        expected = (self.token_count, *self.element_shape)
        if t.shape != expected:
            raise ValueError(f"the tokens must have shape {expected}, not {t.shape}")
        tiles = np.ascontiguousarray(t).reshape(*self.tripcounts, *self.element_shape)
        a = np.zeros(self.shape, t.dtype) if fill is None else np.full(self.shape, fill, t.dtype)
        view = self._tiles(a, writeable=True)
        view[...] = tiles
        if view.tobytes() != tiles.tobytes():
            raise ValueError(f"two tokens disagree about element {self._conflict(tiles)}")
        if fill is None:
            covered = np.zeros(self.shape, bool)
            self._tiles(covered, writeable=True)[...] = True
            if not covered.all():
                gap = tuple(int(i) for i in np.argwhere(~covered)[0])
                raise ValueError(f"no token covers element {gap}; give fill to allow gaps")
        return a

    def _tiles(self, a: np.ndarray, writeable: bool) -> np.ndarray:
        """View of a tensor as (*tripcounts, *element_shape)."""
        strides = [
            0 if served is None else step * a.strides[served]
            for step, served in zip(self.steps, self.dimensions, strict=True)
        ]
        return np.lib.stride_tricks.as_strided(
            a[tuple(slice(start, None) for start in self.base)],
            (*self.tripcounts, *self.element_shape),
            (*strides, *a.strides),
            writeable=writeable,
        )

    def _conflict(self, tiles: np.ndarray) -> tuple[int, ...]:
        """The first element that is sent again with another value."""
        sent: dict[tuple[int, ...], bytes] = {}
        for start, tile in zip(self.offsets(), tiles.reshape(-1, *self.element_shape), strict=True):
            for index in np.ndindex(self.element_shape):
                element = tuple(int(o) + i for o, i in zip(start, index, strict=True))
                if sent.setdefault(element, tile[index].tobytes()) != tile[index].tobytes():
                    return element
        raise AssertionError("no conflict")


def _integers(name: str, values: Sequence[int], least: int) -> tuple[int, ...]:
    """The values as Python integers, each at least `least`."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a sequence of integers, not {values!r}")
    result = []
    for value in values:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError(f"{name} must hold integers, not {value!r}")
        try:
            number = operator.index(value)
        except TypeError:
            raise TypeError(f"{name} must hold integers, not {value!r}") from None
        if number < least:
            raise ValueError(f"{name} must be at least {least}; it holds {number}")
        result.append(number)
    return tuple(result)
