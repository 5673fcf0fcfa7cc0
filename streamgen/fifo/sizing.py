"""Depths of all FIFOs from one linear program over the start times of the nodes.

Numbers only: a stream is the cycle of each token leaving its producer and the cycle of each token
entering its consumer, both counted from the node's own start, nothing stalling. The schedule gives
every node v a start s_v such that no token is wanted before it has arrived,

    s_v - s_u >= max_n(produced(n) - consumed(n)) + latency          for every stream u -> v,

no node without readers starts later than it must, and sum(bits * depth) is least. Depth as a
function of s_v - s_u is replaced in the LP by the lower convex envelope of a few samples; the exact
depth is read off the curves afterwards and lowered by local descent. (StreamTensor, arXiv 2509.13694,
section on FIFO sizing, with token curves instead of two rates a kernel.)

Handshakes make a run self-timed: with these depths no token moves later than scheduled, because a
self-timed network is monotone and the schedule itself fits the depths.

Strategies: `normal` takes every node at its own rate, so a fast consumer of a slow producer starts late
and the FIFO holds what has gathered. `conservative` first paces each node to its neighbours: its clock
stands still while a token is missing, or while its next token is not needed yet. That is what
handshakes do; the depths are smaller and the finish is the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

__all__ = ["Schedule", "Strategy", "Stream", "depth_at", "schedule"]

Strategy = Literal["normal", "conservative"]

_SAMPLES = 8


@dataclass(frozen=True, eq=False)
class Stream:
    """A stream between two nodes.

    produced, consumed: int64 arrays of equal length, never decreasing, cycles from the node's start.
    latency: cycles from a token's transfer into the FIFO to the first cycle it can leave it.
    """

    source: str
    target: str
    bits: int
    produced: np.ndarray
    consumed: np.ndarray
    latency: int = 1

    def __post_init__(self) -> None:
        if len(self.produced) != len(self.consumed):
            raise ValueError(
                f"stream {self.source} -> {self.target}: {len(self.produced)} tokens are produced, "
                f"{len(self.consumed)} consumed"
            )
        for name in ("produced", "consumed"):
            if np.any(np.diff(getattr(self, name)) < 0):
                raise ValueError(f"stream {self.source} -> {self.target}: the curve {name!r} is not monotone")


@dataclass(frozen=True, eq=False)
class Schedule:
    """Start cycle of each node, and per stream (in the order given) its depth in tokens.

    finish: the last cycle in which any stream moves a token, plus 1.
    """

    starts: dict[str, int]
    depths: tuple[int, ...]
    finish: int


def depth_at(stream: Stream, delta: int) -> int:
    """Tokens that the FIFO must hold when its consumer starts `delta` cycles after its producer."""
    return _occupancy(stream.produced, stream.consumed + delta)


def schedule(
    nodes: Sequence[str], streams: Sequence[Stream], strategy: Strategy = "conservative"
) -> Schedule:
    """Solve for one set of curves. `nodes` stand in topological order.

    ValueError: unknown strategy, a stream against the order of the nodes, curves of unequal length or
    not monotone.
    """
    if strategy not in ("normal", "conservative"):
        raise ValueError(f"strategy is {strategy!r}; 'normal' and 'conservative' are allowed")
    position = {name: i for i, name in enumerate(nodes)}
    for stream in streams:
        if position[stream.source] >= position[stream.target]:
            raise ValueError(f"stream {stream.source} -> {stream.target} runs against the order of the nodes")
    if strategy == "conservative":
        streams = _paced(nodes, streams)
    least = [_least_delta(stream) for stream in streams]
    earliest = _earliest(nodes, streams, least)
    starts = _solve(nodes, streams, least, earliest)
    starts = _descend(nodes, streams, least, earliest, starts)
    depths = tuple(depth_at(s, starts[s.target] - starts[s.source]) for s in streams)
    finish = max(
        (
            max(starts[s.source] + int(s.produced[-1]), starts[s.target] + int(s.consumed[-1]))
            for s in streams
            if len(s.produced)
        ),
        default=0,
    )
    return Schedule(starts=starts, depths=depths, finish=finish + 1)


def _least_delta(stream: Stream) -> int:
    if len(stream.produced) == 0:
        return 0
    return int(np.max(stream.produced - stream.consumed)) + stream.latency


def _paced(nodes: Sequence[str], streams: Sequence[Stream]) -> list[Stream]:
    """The same streams with every node's clock stopped while an input is missing or an output not wanted.

    Forward, every node runs as soon as its inputs allow: the earliest time of every token. Backward, a
    node may run that soon, or as late as the readers of its outputs allow; it takes what stores
    less, its inputs counted as if their producers ran as late as this one stream allows.
    """
    into: dict[str, list[int]] = {name: [] for name in nodes}
    out_of: dict[str, list[int]] = {name: [] for name in nodes}
    for index, stream in enumerate(streams):
        into[stream.target].append(index)
        out_of[stream.source].append(index)
    produced: list[np.ndarray] = [s.produced for s in streams]
    consumed: list[np.ndarray] = [s.consumed for s in streams]
    starts: dict[str, int] = {}
    for name in nodes:
        own, late = _merged([(streams[i].consumed, produced[i] + streams[i].latency) for i in into[name]])
        late = np.maximum.accumulate(late)
        starts[name] = int(late[0]) if len(late) else 0
        for i in into[name]:
            consumed[i] = _soon(streams[i].consumed, own, late)
        for i in out_of[name]:
            produced[i] = _soon(streams[i].produced, own, late)

    def stored(i: int, p: np.ndarray, c: np.ndarray) -> int:
        return streams[i].bits * _occupancy(p, c)

    for name in reversed(nodes):
        own, slack = _merged([(streams[i].produced, consumed[i] - streams[i].latency) for i in out_of[name]])
        if not len(own):
            continue
        slack = np.minimum.accumulate(slack[::-1])[::-1]
        late_in = {i: _just_in_time(streams[i].consumed, consumed[i], own, slack) for i in into[name]}
        late_out = {i: _just_in_time(streams[i].produced, produced[i], own, slack) for i in out_of[name]}
        cost_soon = sum(stored(i, produced[i], consumed[i]) for i in out_of[name])
        cost_late = sum(stored(i, late_out[i], consumed[i]) for i in out_of[name])
        for i in into[name]:
            cost_soon += stored(i, _followed(streams[i], produced[i], consumed[i]), consumed[i])
            cost_late += stored(i, _followed(streams[i], produced[i], late_in[i]), late_in[i])
        if cost_late < cost_soon:
            starts[name] = int(slack[0])
            for i in into[name]:
                consumed[i] = late_in[i]
            for i in out_of[name]:
                produced[i] = late_out[i]
    _settle(nodes, streams, into, out_of, produced, consumed, starts)
    return [
        Stream(
            s.source,
            s.target,
            s.bits,
            produced[i] - starts[s.source],
            consumed[i] - starts[s.target],
            s.latency,
        )
        for i, s in enumerate(streams)
    ]


def _settle(
    nodes: Sequence[str],
    streams: Sequence[Stream],
    into: dict[str, list[int]],
    out_of: dict[str, list[int]],
    produced: list[np.ndarray],
    consumed: list[np.ndarray],
    starts: dict[str, int],
) -> None:
    """Change single nodes to as soon, or as late, as their neighbours now allow while less is stored."""

    def stored(name: str, taken: Mapping[int, np.ndarray], given: Mapping[int, np.ndarray]) -> int:
        total = sum(streams[i].bits * _occupancy(produced[i], taken[i]) for i in into[name])
        return total + sum(streams[i].bits * _occupancy(given[i], consumed[i]) for i in out_of[name])

    for name in (*nodes, *reversed(nodes)):
        if not into[name] or not out_of[name]:
            continue
        now = stored(name, {i: consumed[i] for i in into[name]}, {i: produced[i] for i in out_of[name]})
        if now <= sum(2 * streams[i].bits for i in (*into[name], *out_of[name])):
            continue
        own, late = _merged([(streams[i].consumed, produced[i] + streams[i].latency) for i in into[name]])
        late = np.maximum.accumulate(late)
        soon_in = {i: _soon(streams[i].consumed, own, late) for i in into[name]}
        soon_out = {i: _soon(streams[i].produced, own, late) for i in out_of[name]}
        ends, slack = _merged([(streams[i].produced, consumed[i] - streams[i].latency) for i in out_of[name]])
        slack = np.minimum.accumulate(slack[::-1])[::-1]
        late_in = {i: _just_in_time(streams[i].consumed, soon_in[i], ends, slack) for i in into[name]}
        late_out = {i: _just_in_time(streams[i].produced, soon_out[i], ends, slack) for i in out_of[name]}
        for start, taken, given in ((int(late[0]), soon_in, soon_out), (int(slack[0]), late_in, late_out)):
            if (there := stored(name, taken, given)) < now:
                now, starts[name] = there, start
                for i in into[name]:
                    consumed[i] = taken[i]
                for i in out_of[name]:
                    produced[i] = given[i]


def _merged(pairs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Own cycles of all tokens in order, and real time minus own cycle of each."""
    if not pairs:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    own = np.concatenate([cycles for cycles, _ in pairs])
    shift = np.concatenate([times - cycles for cycles, times in pairs])
    order = np.argsort(own, kind="stable")
    return own[order], shift[order]


def _soon(cycles: np.ndarray, own: np.ndarray, late: np.ndarray) -> np.ndarray:
    """Real time of own cycles when the clock is late by late[j] from own[j] on."""
    if not len(own):
        return cycles
    index = np.searchsorted(own, cycles, side="right") - 1
    return cycles + late[np.maximum(index, 0)]


def _just_in_time(cycles: np.ndarray, soon: np.ndarray, own: np.ndarray, slack: np.ndarray) -> np.ndarray:
    """Real time of own cycles when the clock may be late by slack[j] up to own[j]; never before `soon`."""
    following = np.searchsorted(own, cycles, side="left")
    return np.maximum(cycles + slack[np.minimum(following, len(slack) - 1)], soon)


def _followed(stream: Stream, soon: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """Production times of a producer that waits for this one stream's reader."""
    slack = np.minimum.accumulate((taken - stream.latency - stream.produced)[::-1])[::-1]
    return np.maximum(stream.produced + slack, soon)


def _occupancy(produced: np.ndarray, consumed: np.ndarray) -> int:
    """Tokens that lie between a producer and a consumer at most, at least 1."""
    if not len(produced):
        return 1
    arrived = np.searchsorted(produced, consumed, side="right")
    return max(1, int(np.max(arrived - np.arange(len(arrived)))))


def _earliest(nodes: Sequence[str], streams: Sequence[Stream], least: Sequence[int]) -> dict[str, int]:
    """Longest paths: the earliest start of each node."""
    starts = dict.fromkeys(nodes, 0)
    into: dict[str, list[tuple[str, int]]] = {name: [] for name in nodes}
    for stream, delta in zip(streams, least, strict=True):
        into[stream.target].append((stream.source, delta))
    for name in nodes:
        starts[name] = max([0, *(starts[source] + delta for source, delta in into[name])])
    return starts


def _solve(
    nodes: Sequence[str], streams: Sequence[Stream], least: Sequence[int], earliest: dict[str, int]
) -> dict[str, int]:
    """The LP: variables are the starts and one cost per stream above its convex envelope."""
    if not streams:
        return dict(earliest)
    index = {name: i for i, name in enumerate(nodes)}
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    limits: list[float] = []

    def row(entries: Sequence[tuple[int, float]], limit: float) -> None:
        for column, value in entries:
            rows.append(len(limits))
            columns.append(column)
            values.append(value)
        limits.append(limit)

    readers = {stream.source for stream in streams}
    horizon = max(earliest.values())
    for k, (stream, delta) in enumerate(zip(streams, least, strict=True)):
        u, v, z = index[stream.source], index[stream.target], len(nodes) + k
        row([(u, 1.0), (v, -1.0)], -delta)
        for slope, offset in _envelope(stream, delta, horizon):
            row([(v, slope), (u, -slope), (z, -1.0)], -offset)
    bounds: list[tuple[float, float | None]] = [
        (0.0, None if name in readers else float(earliest[name])) for name in nodes
    ]
    bounds += [(0.0, None)] * len(streams)
    objective = np.concatenate([np.full(len(nodes), 1e-6), [float(s.bits) for s in streams]])
    matrix = coo_matrix((values, (rows, columns)), shape=(len(limits), len(bounds))).tocsr()
    method = "highs-ipm" if len(streams) > 5000 else "highs-ds"
    result = linprog(objective, A_ub=matrix, b_ub=limits, bounds=bounds, method=method)
    if not result.success:
        raise AssertionError(f"the sizing LP has a solution by construction: {result.message}")
    starts = {name: round(result.x[i]) for name, i in index.items()}
    feasible = all(starts[s.target] - starts[s.source] >= d for s, d in zip(streams, least, strict=True))
    return starts if feasible else dict(earliest)


def _envelope(stream: Stream, least: int, horizon: int) -> list[tuple[float, float]]:
    """Lower convex envelope (slope, offset) of the depth over the differences that can matter."""
    span = max(1, horizon - least)
    deltas = sorted({least, *(least + max(1, span * i // _SAMPLES) for i in range(1, _SAMPLES + 1))})
    points = [(d, depth_at(stream, d)) for d in deltas]
    hull: list[tuple[int, int]] = []
    for x, y in points:
        while len(hull) > 1 and (hull[-1][1] - hull[-2][1]) * (x - hull[-1][0]) >= (y - hull[-1][1]) * (
            hull[-1][0] - hull[-2][0]
        ):
            hull.pop()
        hull.append((x, y))
    lines = []
    for (x0, y0), (x1, y1) in pairwise(hull):
        slope = (y1 - y0) / (x1 - x0)
        lines.append((slope, y0 - slope * x0))
    return lines


def _descend(
    nodes: Sequence[str],
    streams: Sequence[Stream],
    least: Sequence[int],
    earliest: dict[str, int],
    starts: dict[str, int],
) -> dict[str, int]:
    """Move one node at a time to either end of its slack while exact storage falls."""
    starts = dict(starts)
    into: dict[str, list[int]] = {name: [] for name in nodes}
    out_of: dict[str, list[int]] = {name: [] for name in nodes}
    for i, stream in enumerate(streams):
        into[stream.target].append(i)
        out_of[stream.source].append(i)

    def storage(name: str, start: int) -> int:
        total = 0
        for i in into[name]:
            total += streams[i].bits * depth_at(streams[i], start - starts[streams[i].source])
        for i in out_of[name]:
            total += streams[i].bits * depth_at(streams[i], starts[streams[i].target] - start)
        return total

    improved = True
    while improved:
        improved = False
        for name in (*reversed(nodes), *nodes):
            low = max([0, *(starts[streams[i].source] + least[i] for i in into[name])])
            if out_of[name]:
                high = min(starts[streams[i].target] - least[i] for i in out_of[name])
            else:
                high = earliest[name]
            now = storage(name, starts[name])
            for start in {low, high} - {starts[name]}:
                if low <= start <= high and (there := storage(name, start)) < now:
                    starts[name], now, improved = start, there, True
    return starts
