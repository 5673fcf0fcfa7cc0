"""The cycles in which an in-place converter takes and sends, computed from its own rules.

An access is *stepped* in a cycle (a source token is taken with its last piece) and *goes* in a later one, in
which it has its place (writing) or its word is there (reading):

    writing    goes at least 1 after its step; steps when the one before goes
               `delay` or more after the read whose going frees its place
               1 or more after the last read of the window before the one before
    reading    goes at least 1 after its step; steps when the one before goes
               1 or more after the write whose going completes its word

All conditions have the form "this access after that one". If one order of events ends, every order therefore
ends, for any stalls: the two sides never wait for each other forever.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from streamgen.contract.cost import Curve
from streamgen.fifo.curves import KernelSide, NodeStream

_NEVER = -(1 << 60)
# After this many windows a converter has its final speed, even if its cycles do not repeat exactly.
_SETTLED = 16

Piece = tuple[int, tuple[tuple[int, int], ...]]


@dataclass(frozen=True, eq=False)
class Rules:
    """The conditions for the accesses of a window.

    wants: for each write, the index of the place that it claims in the window; -1 if none. frees: for each
    place of the window, the read that frees it when it goes. places: of the window. slots: places of the
    memory. completes: for each read, the write that completes its word when it goes. delay: see the module.
    at: the indices of the listed reads of the window, None for all; the reads in between free nothing, and
    wait for nothing that an earlier read does not wait for.
    """

    wants: np.ndarray
    frees: np.ndarray
    places: int
    slots: int
    completes: np.ndarray
    delay: int
    at: np.ndarray | None = None

    @property
    def reads(self) -> int:
        """The number of reads of a window."""
        return len(self.completes) if self.at is None else int(self.at[-1]) + 1

    @property
    def memory(self) -> int:
        """The number of earlier windows that a window may have to wait for."""
        return 2 + -(-(self.delay - 1) // self.reads)


@dataclass(frozen=True, eq=False)
class Window:
    """The cycles in which the accesses of a window step and go."""

    write_steps: np.ndarray
    writes: np.ndarray
    reads: np.ndarray


def run(
    rules: Rules,
    before: Sequence[Window],
    offered: np.ndarray | int = _NEVER,
    room: np.ndarray | int = _NEVER,
) -> Window:
    """The next window, with the reads that the rules list. before: the earlier windows, the last one last.
    The rules must not be `stuck`.

    offered: for each write, the cycle in which its source token is there. room: for each read, the cycle from
    which it may step.
    """
    first_write = int(before[-1].writes[-1]) if before else 1
    first_read = int(before[-1].reads[-1]) if before else 2
    wait = np.full(len(rules.wants), _NEVER, np.int64)
    if len(before) >= 2:
        wait[0] = before[-2].reads[-1] + 1
    placed = np.flatnonzero(rules.wants >= 0)
    back, places = np.divmod(rules.wants[placed] - rules.slots, rules.places)
    for age in range(1, min(rules.memory, len(before)) + 1):
        late = back == -age
        times = before[-age].reads[rules.frees[places[late]]] + rules.delay
        wait[placed[late]] = np.maximum(wait[placed[late]], times)
    own, freed = _waits_inside(rules)

    reads = np.full(len(rules.completes), _NEVER, np.int64)
    while True:
        blocked = wait.copy()
        blocked[own] = np.maximum(blocked[own], reads[freed] + rules.delay)
        writes = _goes(first_write, offered, blocked)
        later = _goes(first_read, room, writes[rules.completes] + 1, rules.at)
        if np.array_equal(later, reads):
            steps = np.maximum(np.concatenate(([first_write], writes[:-1])), offered)
            return Window(steps, writes, reads)
        reads = later


def stuck(rules: Rules) -> bool:
    """Whether a write waits for a read that waits for this write, or for a later one."""
    own, freed = _waits_inside(rules)
    return bool(np.any(np.maximum.accumulate(rules.completes)[freed] >= own))


def windows(rules: Rules, count: int) -> tuple[list[Window], int]:
    """The first windows, and the cycles from window to window after them, if nothing else stalls."""
    seen: list[Window] = []
    recent: deque[Window] = deque(maxlen=rules.memory)
    same = shift = 0
    while len(seen) < count and same < rules.memory:
        window = run(rules, list(recent))
        if seen:
            moved = int(window.reads[-1] - seen[-1].reads[-1])
            equal = all(
                np.array_equal(new - old, np.full_like(new, moved))
                for new, old in ((window.writes, seen[-1].writes), (window.reads, seen[-1].reads))
            )
            same = (same + 1 if moved == shift else 1) if equal else 0
            shift = moved
        seen.append(window)
        recent.append(window)
    return seen, shift


def period(rules: Rules) -> float:
    """Cycles of a window in steady state; infinite if the two sides wait for each other."""
    if stuck(rules):
        return inf
    seen, shift = windows(rules, _SETTLED)
    if len(seen) < _SETTLED:
        return shift
    half = _SETTLED // 2
    return float(seen[-1].reads[-1] - seen[half].reads[-1]) / (_SETTLED - 1 - half)


def curve(by_window: Sequence[np.ndarray], count: int, shift: int) -> Curve:
    """The curve of `count` windows: the given windows, then the last one repeated at a fixed distance."""
    *transient, steady = by_window
    pieces = [piece for times in transient for piece in _pieces(times)]
    rest = count - len(transient)
    pattern = _pieces(steady)
    if len(pattern) == 1:
        first, loops = pattern[0]
        pieces.append((first, ((rest, shift), *loops) if rest > 1 else loops))
    else:
        for window in range(rest):
            pieces += [(first + window * shift, loops) for first, loops in pattern]
    return Curve(tuple(pieces))


def every(found: Sequence[Window], count: int, shift: int) -> Window:
    """All accesses of `count` windows: the given windows, then the last one repeated at a fixed distance."""
    rest = np.arange(1, count - len(found) + 1)[:, None] * shift

    def joined(times: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([*times, (times[-1] + rest).reshape(-1)])

    return Window(
        joined([window.write_steps for window in found]),
        joined([window.writes for window in found]),
        joined([window.reads for window in found]),
    )


def waits(rules: Rules, fill: KernelSide, write: KernelSide, read: KernelSide) -> tuple[NodeStream, ...]:
    """The conditions of writes, reads and steps, as streams between the steps of writes and the goings of
    accesses.

    Of several conditions for the same access only the first is listed, because it implies the others. Steps
    are listed for writes that are part of a condition other than their own step, and for the writes after
    such a condition.
    """
    fills, reads = len(rules.wants), len(rules.completes)
    starts = np.arange(len(read.cycles) // reads)[:, None]

    first = _records(rules.completes)
    words = (starts * fills + rules.completes[first]).reshape(-1)
    readers = (starts * reads + first).reshape(-1)

    placed = np.flatnonzero(rules.wants >= 0)
    back, place = np.divmod(rules.wants[placed] - rules.slots, rules.places)
    freeing = ((starts + back) * reads + rules.frees[place]).reshape(-1)
    writing = (starts * fills + placed).reshape(-1)
    first = _records(freeing)
    freeing, writing = freeing[first], writing[first]

    ends = (starts * reads + reads - 1).reshape(-1)[:-2]
    begins = (starts * fills).reshape(-1)[2:]

    held = np.concatenate([writing, begins])
    steps = np.unique(np.concatenate([words, held, held + 1]))
    steps = steps[steps < len(fill.cycles)]
    return (
        fill.to(write, steps, steps, depth=1),
        write.to(read, words, readers),
        read.to(write, freeing, writing, latency=rules.delay),
        read.to(write, ends, begins),
    )


def _records(values: np.ndarray) -> np.ndarray:
    """Positions of non-negative values that are greater than all values before them."""
    before = np.maximum.accumulate(np.concatenate(([-1], values[:-1])))
    return np.flatnonzero(values > before)


def _waits_inside(rules: Rules) -> tuple[np.ndarray, np.ndarray]:
    """Writes that wait for reads of the same window, and these reads."""
    own = np.flatnonzero(rules.wants >= rules.slots)
    return own, rules.frees[rules.wants[own] - rules.slots]


def _goes(first: int, ready: np.ndarray | int, wait: np.ndarray, at: np.ndarray | None = None) -> np.ndarray:
    """The cycles in which accesses go, each ready in a given cycle and waiting for another access. at: as in
    `Rules`."""
    index = np.arange(len(wait), dtype=np.int64) if at is None else at
    least = np.maximum(np.maximum(wait, first + 1), np.asarray(ready) + 1)
    return index + np.maximum.accumulate(least - index)


def _pieces(times: np.ndarray) -> list[Piece]:
    """Runs of equal distances, then equal runs of runs at equal distances."""
    pieces: list[Piece] = []
    gaps = np.diff(times)
    ends = np.append(np.flatnonzero(np.diff(gaps)) + 1, len(gaps))  # last tokens of runs of equal gaps
    k = 0
    while k < len(times):
        last = int(ends[np.searchsorted(ends, k, side="right")]) if k < len(gaps) else k
        pieces.append((int(times[k]), ((last - k + 1, int(gaps[k])),) if last > k else ()))
        k = last + 1
    while len(merged := _merge(pieces)) < len(pieces):
        pieces = merged
    return pieces


def _merge(pieces: list[Piece]) -> list[Piece]:
    """Merge neighbours that are translations of one another at equal distances."""
    result: list[Piece] = []
    k = 0
    while k < len(pieces):
        first, loops = pieces[k]
        count = 1
        while k + count < len(pieces) and pieces[k + count][1] == loops:
            if pieces[k + count][0] - first != count * (pieces[k + 1][0] - first):
                break
            count += 1
        if count > 1:
            result.append((first, ((count, pieces[k + 1][0] - first), *loops)))
        else:
            result.append(pieces[k])
        k += count
    return result
