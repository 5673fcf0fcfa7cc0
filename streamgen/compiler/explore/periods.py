"""Leave out the middle of a long phase.

A phase with many tiles of weights, such as the head of a language model, does the same for every tile: each
part repeats a period of moves. Most periods can be left out of a run. The cycles that they would take follow
from the cycles of the remaining periods (`Cut.taken`), once these have settled.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from streamgen.compiler.explore.layout import Client, Groups

MARKS = 4  # marks of a part, a window apart, as in streams.h; the part is cut at the third
LEAST = 4  # fewest periods of a window
WINDOWS = 80  # most windows of a phase; of the repeating ones, one settles, three are measured, one ends
SETTLED = 0.01  # largest relative difference of settled windows
_LONG = 64  # a stream counts if it has at least 1 / _LONG of the tokens of the longest stream

Track = tuple[Groups, np.ndarray]  # groups of a part in a phase, and the streams of its moves


@dataclass(frozen=True, eq=False)
class Cut:
    """The part of a phase that is left out.

    periods: number of periods left out. window: periods between marks. groups: for each part, the first group
    that is left out and the first group behind. marks: for each part, rising int32 numbers of groups done.
    beats: beats that are left out of the command of each client.
    """

    periods: int
    window: int
    groups: Mapping[int, tuple[int, int]]
    marks: Mapping[int, np.ndarray]
    beats: Mapping[int, int]

    def taken(self, times: np.ndarray) -> int | None:
        """Cycles of the periods left out. times: int64 [parts, MARKS], the cycles in which the parts reached
        their marks. None if windows or parts differ, or if parts did not work side by side."""
        windows = np.median(np.diff(times, axis=1), axis=0)
        both = times[:, -1] - times[:, -3]
        apart = np.ptp(times[:, -2])
        if max(np.ptp(windows), np.ptp(both) / 2) > SETTLED * windows.max() or apart > windows[-1]:
            return None
        return round(self.periods * np.median(both) / (2 * self.window))


def cut_of(tracks: Mapping[int, Track], fifos: int, clients: Sequence[Client], phase: int) -> Cut | None:
    """The part of a phase that can be left out; None if nothing is known to repeat.

    tracks: tracks of all parts at work. fifos: number of streams between nodes. clients: clients whose
    streams are numbered as in the tracks.
    """
    counted, repeating = _Once(_counts), _Once(_repeating)
    periods = _periods(tracks, fifos, counted)
    window = max(LEAST, periods // WINDOWS)
    lengths: dict[int, int] = {}
    spans: dict[int, tuple[int, int]] = {}
    moved: dict[int, dict[int, int]] = {}  # tokens in a period, by event
    for part, (groups, streams) in tracks.items():
        if periods and (length := round(len(groups[0]) / periods)):
            first, behind = repeating(groups, length)
            if behind - first > (MARKS + 1) * window:
                lengths[part], spans[part] = length, (first, behind)
                counts = counted(groups, first * length, (first + 1) * length)
                moved[part] = _by_event(counts, streams)
    given = _agreed(moved, clients, phase)
    if not moved:
        return None
    first, behind = max(spans[part][0] for part in moved), min(spans[part][1] for part in moved)
    if (left_out := behind - first - (MARKS + 1) * window) <= 0:
        return None
    cuts, marks = {}, {}
    for part in moved:
        at = [(first + k * window) * lengths[part] for k in range(1, 1 + MARKS)]
        cuts[part] = at[-2], at[-2] + left_out * lengths[part]
        marks[part] = np.array(at, np.int32)
    return Cut(left_out, window, cuts, marks, {client: left_out * count for client, count in given.items()})


def _periods(tracks: Mapping[int, Track], fifos: int, counted: "_Once") -> int:
    """Number of periods of a phase: the greatest common divisor of the tokens of the long streams between
    nodes. 0 if nothing moves."""
    tokens = [
        count
        for groups, streams in tracks.values()
        for event, count in _by_event(counted(groups, 0, len(groups[0])), streams).items()
        if event >> 1 < fifos
    ]
    most = max(tokens, default=0)
    return gcd(*(count for count in tokens if count * _LONG >= most))


def _agreed(moved: dict[int, dict[int, int]], clients: Sequence[Client], phase: int) -> dict[int, int]:
    """Remove parts from `moved` until equal numbers of tokens move at both ends of each stream. The remaining
    parts can leave out periods. Returns the beats of each client in a period; a client counts only if it has
    one command in the phase.

    Example: part 0 sends 4 tokens per period to stream 7, and part 1 takes 2 tokens per period from it. Then
    both ends differ, and the part with more tokens, part 0, is removed. In the next round stream 7 has only
    one end, so part 1 is removed too.
    """
    while True:
        ends = dict[int, tuple[int, int]](), dict[int, tuple[int, int]]()  # of streams: tokens, part
        for part, side in moved.items():
            for event, count in side.items():
                ends[event & 1][event >> 1] = count, part
        given = {}
        for number, client in enumerate(clients):
            (count, _) = ends[client.writes].get(client.beats, (0, -1))
            if count and len(client.commands.get(phase, ())) == 1:
                given[number] = count
                ends[not client.writes][client.beats] = count, -1
        differ = {
            max(taken, sent)[1]
            for stream in ends[0].keys() | ends[1].keys()
            if (taken := ends[0].get(stream, (0, -1)))[0] != (sent := ends[1].get(stream, (0, -1)))[0]
        }
        if not differ:
            return given
        for part in differ:
            del moved[part]


class _Once:
    """A function of groups and numbers that is computed once for the same arguments, because many parts have
    the same groups."""

    def __init__(self, of: Callable[..., Any]) -> None:
        self._of, self._known = of, dict[Hashable, Any]()

    def __call__(self, groups: Groups, *numbers: int) -> Any:
        key = id(groups), *numbers
        if key not in self._known:
            self._known[key] = self._of(groups, *numbers)
        return self._known[key]


def _counts(groups: Groups, first: int, behind: int) -> np.ndarray:
    """Number of events of each kind in the groups from `first` to `behind` - 1."""
    _, begins, event = groups
    return np.bincount(event[begins[first] : begins[behind]])


def _by_event(counts: np.ndarray, streams: np.ndarray) -> dict[int, int]:
    """The counts by 2 * stream + (is output)."""
    return {2 * int(streams[e >> 1]) + (int(e) & 1): int(counts[e]) for e in np.flatnonzero(counts)}


def _repeating(groups: Groups, length: int) -> tuple[int, int]:
    """The longest sequence of equal periods: its first period, and the first period behind it. length: groups
    of a period."""
    clock, begins, event = groups
    other = np.zeros(len(clock), bool)  # whether a group differs from the group one period before
    for differences in (np.diff(clock, prepend=clock[0]), np.diff(begins)):
        other[length:] |= differences[length:] != differences[:-length]
    ends = np.flatnonzero(np.concatenate([[True], other, [True]]))
    longest = int(np.argmax(np.diff(ends)))
    first, behind = max(0, int(ends[longest]) - length), int(ends[longest + 1]) - 1
    moved, once = event[begins[first] : begins[behind]], begins[first + length] - begins[first]
    if not np.array_equal(moved[once:], moved[:-once]):
        return 0, 0
    return -(-first // length), behind // length
