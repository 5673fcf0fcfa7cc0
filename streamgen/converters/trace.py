"""The walk of a `Walker` in numbers: every access of a window, and the properties of its loops.

In-place converters rely on properties that hold for all trip counts up to the greatest. These are derived
from the loops, not from a trace: `steady_level` (the depth to which words below the current iteration's
address are done) and `edges` (the accesses that touch a word first or last).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Literal

import numpy as np

from streamgen.converters.walker import WalkerParams, WordEdge


@dataclass(frozen=True, eq=False)
class Trace:
    """By access of a window. address: of its word. base: the address at which the current iteration of the
    outer `level` loops began; 0 if there is none or `final` is low. inside: whether the word belongs to the
    window."""

    address: np.ndarray
    base: np.ndarray
    inside: np.ndarray


def trace(walker: WalkerParams, trips: Sequence[int]) -> Trace:
    """The walk of one window. trips: of the loops of the window that are not fixed."""
    counts = [*trips, *(loop.trip for loop in walker.inner if loop.fixed)]
    boxes = _boxes(walker, counts, len(counts))
    held = _boxes(walker, counts, walker.level)
    inside = np.ones(prod(counts), bool)
    for axis, box in zip(walker.axes, boxes, strict=True):
        inside &= (box >= 0) & (box < axis.rows * axis.ways)
    base = _address(walker, held)
    if not walker.level:
        base = np.zeros_like(base)
    for k in range(walker.after):
        index = np.broadcast_to(np.arange(counts[k]).reshape(_along(k, counts)), counts).reshape(-1)
        base = np.where(index == counts[k] - 1, base, 0)
    return Trace(_address(walker, boxes), base, inside)


def rows_touched(walker: WalkerParams, trips: Sequence[int], axis: int) -> set[int]:
    """The rows of words along an axis that a window touches."""
    counts = [*trips, *(loop.trip for loop in walker.inner if loop.fixed)]
    own = walker.axes[axis]
    boxes = np.array([own.row * own.ways + own.way])
    for loop, count in zip(walker.inner, counts, strict=True):
        if loop.axis == axis:
            boxes = np.unique(
                np.add.outer(boxes, np.arange(count) * _step(walker, loop.rows, loop.ways, axis))
            )
    rows = np.unique(boxes // own.ways)
    return set(rows[(rows >= 0) & (rows < own.rows)].tolist())


def steady_level(walker: WalkerParams, after: int) -> int:
    """The number of outer loops of the window up to which the address only grows; 0 if there is no use for
    it.

    In their last iteration the outer `after` loops do not count. Every later access then has an address of at
    least that at which the current iteration of these loops began: when a loop advances, it moves further
    than the loops inside it (down to that level) have moved.
    """
    inner = walker.inner
    level = after
    while level < len(inner):
        if not all(_outruns(walker, k, level + 1) for k in range(after, level + 1)):
            break
        level += 1
    moving = walker.moves(1 << walker.address_bits)
    if any(axis.clipped for axis in walker.axes) or not any(after <= k < level for k in moving):
        return 0
    return level


def edges(walker: WalkerParams, kind: Literal["first", "last"]) -> WordEdge | None:
    """The accesses that touch a word first or last; None if the form of the loops is not supported.

    The supported nests are those in which no two iterations of the loops that go from word to word meet in a
    word. Along a dimension there are loops that stay in a word, loops that step over whole words, and at most
    one that goes through words and on to the next, in steps that divide the word.
    """
    staying = [k for k, loop in enumerate(walker.inner) if loop.axis is None]
    crossing = []
    for d, axis in enumerate(walker.axes):
        mine = [
            (_step(walker, loop.rows, loop.ways, d), k)
            for k, loop in enumerate(walker.inner)
            if loop.axis == d
        ]
        reach, through = 0, 0
        crosses = None
        for step, k in sorted(pair for pair in mine if pair[0] % axis.ways):
            extent = (walker.inner[k].trip - 1) * step
            if crosses is None and axis.way + reach + extent < axis.ways:
                staying.append(k)
                reach += extent
                continue
            if crosses is not None or axis.ways % step or axis.way % step + reach >= step:
                return None
            crosses = k
            through = (axis.way + extent + reach) // axis.ways
        if crosses is not None:
            crossing.append(crosses)
        for step, k in sorted(pair for pair in mine if pair[0] % axis.ways == 0):
            rows = step // axis.ways
            if rows <= through:
                return None
            through += (walker.inner[k].trip - 1) * rows
    return WordEdge(kind, tuple(sorted(staying)), tuple(sorted(crossing)))


def _outruns(walker: WalkerParams, loop: int, level: int) -> bool:
    """Whether a step of this loop moves the address at least as far as the loops inside it do, up
    to `level`."""
    own = walker.inner[loop]
    gain = 0
    reach = 0
    for d, axis in enumerate(walker.axes):
        inside = sum(
            (other.trip - 1) * _step(walker, other.rows, other.ways, d)
            for other in walker.inner[loop + 1 : level]
            if other.axis == d
        )
        phases = _phases(walker, d, loop)
        if own.axis == d:
            step = _step(walker, own.rows, own.ways, d)
            gain = axis.stride * min((c + step) // axis.ways - (c + inside) // axis.ways for c in phases)
        elif inside:
            reach += axis.stride * max((c + inside) // axis.ways - c // axis.ways for c in phases)
    return gain >= reach


def _phases(walker: WalkerParams, axis: int, loop: int) -> set[int]:
    """The ways along an axis at which an iteration of this loop may begin."""
    own = walker.axes[axis]
    phases = {own.way}
    for other in walker.inner[: loop + 1]:
        if other.axis == axis and (step := _step(walker, other.rows, other.ways, axis) % own.ways):
            steps = range(min(other.trip, own.ways))
            phases = {(c + k * step) % own.ways for c in phases for k in steps}
    return phases


def _step(walker: WalkerParams, rows: int, ways: int, axis: int) -> int:
    """A step in boxes."""
    return rows * walker.axes[axis].ways + ways


def _boxes(walker: WalkerParams, counts: Sequence[int], level: int) -> list[np.ndarray]:
    """By axis: the box of every access, with the loops inside `level` at their first iteration."""
    result = []
    for d, axis in enumerate(walker.axes):
        parts = [np.full(_along(-1, counts), axis.row * axis.ways + axis.way, np.int64)]
        for k, loop in enumerate(walker.inner[:level]):
            if loop.axis == d:
                index = np.arange(counts[k], dtype=np.int64) * _step(walker, loop.rows, loop.ways, d)
                parts.append(index.reshape(_along(k, counts)))
        result.append(np.broadcast_to(reduce(np.add, parts), counts).reshape(-1))
    return result


def _address(walker: WalkerParams, boxes: Sequence[np.ndarray]) -> np.ndarray:
    parts = [box // axis.ways * axis.stride for axis, box in zip(walker.axes, boxes, strict=True)]
    return np.asarray(reduce(np.add, parts))


def _along(loop: int, counts: Sequence[int]) -> list[int]:
    """The shape of what varies along one loop only."""
    return [count if k == loop else 1 for k, count in enumerate(counts)]
