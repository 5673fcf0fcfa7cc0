"""A long phase without its middle.

A phase that goes through many tiles of weights, as that of a language model's head, does the same tile after
tile: every part repeats a period of moves. Most periods can be left out of a run; what they would have taken
is what those take that are left (`Cut.taken`), where they have settled.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from streamgen.compiler.explore.layout import Client, Groups

MARKS = 4  # of a part, a window apart, as tokens.h has it; the third is where it is cut
LEAST = 4  # periods of a window
WINDOWS = 80  # of a phase, at most; of those that repeat one is left to settle, three are looked at, one ends
SETTLED = 0.01  # by which windows may differ
_LONG = 64  # tokens of a stream that repeats, as a part of those of the longest

Track = tuple[Groups, np.ndarray]  # what a part does in a phase, and the streams of its moves


@dataclass(frozen=True, eq=False)
class Cut:
    """periods: left out. window: periods between marks. groups: by part, the first one left out and the first
    one behind. marks: by part, int32 groups done, rising. beats: by client, of its command, left out."""

    periods: int
    window: int
    groups: Mapping[int, tuple[int, int]]
    marks: Mapping[int, np.ndarray]
    beats: Mapping[int, int]

    def taken(self, times: np.ndarray) -> int | None:
        """Cycles of the periods left out. times: int64 [parts, MARKS] when the parts came to their marks.
        None where windows or parts differ, or parts were not at work side by side."""
        windows = np.median(np.diff(times, axis=1), axis=0)
        both = times[:, -1] - times[:, -3]
        apart = np.ptp(times[:, -2])
        if max(np.ptp(windows), np.ptp(both) / 2) > SETTLED * windows.max() or apart > windows[-1]:
            return None
        return round(self.periods * np.median(both) / (2 * self.window))


def cut_of(tracks: Mapping[int, Track], fifos: int, clients: Sequence[Client], phase: int) -> Cut | None:
    """What of a phase can be left out; None where nothing is known to repeat.

    tracks: of all parts at work. fifos: how many streams are those between nodes. clients: with their streams
    numbered as in the tracks.
    """
    counted, repeating = _Once(_counts), _Once(_repeating)
    periods = _periods(tracks, fifos, counted)
    window = max(LEAST, periods // WINDOWS)
    lengths: dict[int, int] = {}
    spans: dict[int, tuple[int, int]] = {}
    moved: dict[int, dict[int, int]] = {}  # in a period, by event
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
    """Of how many the streams between nodes that have most tokens can be; 0 where nothing moves."""
    tokens = [
        count
        for groups, streams in tracks.values()
        for event, count in _by_event(counted(groups, 0, len(groups[0])), streams).items()
        if event >> 1 < fifos
    ]
    most = max(tokens, default=0)
    return gcd(*(count for count in tokens if count * _LONG >= most))


def _agreed(moved: dict[int, dict[int, int]], clients: Sequence[Client], phase: int) -> dict[int, int]:
    """Keeps the parts of `moved` that can leave out periods, so that as many tokens move at both ends of each
    stream; beats of a client are those of its only command. The beats in a period, by client."""
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
            max(one, other)[1]
            for stream in ends[0].keys() | ends[1].keys()
            if (one := ends[0].get(stream, (0, -1)))[0] != (other := ends[1].get(stream, (0, -1)))[0]
        }
        if not differ:
            return given
        for part in differ:
            del moved[part]


class _Once:
    """A function of groups and numbers that is asked once for the same ones: many parts have the same
    groups."""

    def __init__(self, of: Callable[..., Any]) -> None:
        self._of, self._known = of, dict[Hashable, Any]()

    def __call__(self, groups: Groups, *numbers: int) -> Any:
        key = id(groups), *numbers
        if key not in self._known:
            self._known[key] = self._of(groups, *numbers)
        return self._known[key]


def _counts(groups: Groups, first: int, behind: int) -> np.ndarray:
    """How many events of each kind there are in some groups."""
    _, begins, event = groups
    return np.bincount(event[begins[first] : begins[behind]])


def _by_event(counts: np.ndarray, streams: np.ndarray) -> dict[int, int]:
    """The same by 2 * stream + (is output)."""
    return {2 * int(streams[e >> 1]) + (int(e) & 1): int(counts[e]) for e in np.flatnonzero(counts)}


def _repeating(groups: Groups, length: int) -> tuple[int, int]:
    """The periods, as many as can be, of which each does the same: the first one, and the one behind."""
    clock, begins, event = groups
    other = np.zeros(len(clock), bool)  # than what the one a period before does
    for one in (np.diff(clock, prepend=clock[0]), np.diff(begins)):
        other[length:] |= one[length:] != one[:-length]
    ends = np.flatnonzero(np.concatenate([[True], other, [True]]))
    longest = int(np.argmax(np.diff(ends)))
    first, behind = max(0, int(ends[longest]) - length), int(ends[longest + 1]) - 1
    moved, once = event[begins[first] : begins[behind]], begins[first + length] - begins[first]
    if not np.array_equal(moved[once:], moved[:-once]):
        return 0, 0
    return -(-first // length), behind // length
