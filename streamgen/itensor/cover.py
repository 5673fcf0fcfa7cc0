"""Which elements of one dimension a nest of loops covers, decided without walking the nest.

The elements that a window of a stream covers are a product of one set per dimension, because a loop
serves one dimension at most. So a target reads only what a source sends exactly when that holds
dimension by dimension, and a dimension is a sum of a few arithmetic progressions and an interval:

    {base + sum(i[l] * step[l]) + e : 0 <= i[l] < trip[l], 0 <= e < extent}

A progression whose step is at most the extent of the interval prolongs the interval. Only what then
still has gaps is enumerated, along this one dimension.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Cover:
    """A set of coordinates: (trip, step) progressions with gaps, smallest step first, and an interval."""

    base: int
    extent: int
    gapped: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, base: int, extent: int, progressions: Iterable[tuple[int, int]]) -> "Cover":
        """The set with everything merged that merges."""
        rest = sorted((step, trip) for trip, step in progressions if trip > 1)
        while rest and rest[0][0] <= extent:
            step, trip = rest.pop(0)
            extent += (trip - 1) * step
        gapped: list[tuple[int, int]] = []
        for step, trip in rest:
            if gapped and step == gapped[-1][0] * gapped[-1][1]:
                gapped[-1] = (gapped[-1][0] * trip, gapped[-1][1])
            else:
                gapped.append((trip, step))
        return cls(base, extent, tuple(gapped))

    @property
    def end(self) -> int:
        """One past the greatest coordinate."""
        return self.base + sum((trip - 1) * step for trip, step in self.gapped) + self.extent

    def intervals(self) -> tuple[np.ndarray, np.ndarray]:
        """Starts and ends of the maximal intervals, ascending."""
        starts = np.array([self.base], np.int64)
        for trip, step in self.gapped:
            starts = np.unique(starts[:, None] + np.arange(trip, dtype=np.int64) * step)
        opens = np.concatenate(([True], np.diff(starts) > self.extent))
        closes = np.concatenate((opens[1:], [True]))
        return starts[opens], starts[closes] + self.extent


def first_missing(source: Cover, target: Cover) -> int | None:
    """A coordinate of the target outside of the source, None when the source covers the target."""
    if target.base < source.base:
        return target.base
    if target.end > source.end:
        return target.end - 1
    if not source.gapped:
        return None
    if target.gapped and source.gapped[-1][1] == target.gapped[-1][1]:
        inner = [replace(cover, gapped=cover.gapped[:-1]) for cover in (source, target)]
        if max(cover.end for cover in inner) - source.base <= source.gapped[-1][1]:
            return first_missing(*inner)  # the outermost progressions step over equal, disjoint blocks
    if source.gapped == target.gapped and target.base + target.extent <= source.base + source.extent:
        return None
    opens, closes = source.intervals()
    starts, ends = target.intervals()
    home = np.searchsorted(opens, starts, side="right") - 1
    missing = np.flatnonzero(ends > closes[home])
    if not len(missing):
        return None
    return int(max(starts[missing[0]], closes[home[missing[0]]]))
