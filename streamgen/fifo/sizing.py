"""Depths of all FIFOs, as small as the runs that matter allow.

Numbers only: a stream is the cycle of each token leaving its producer and the cycle of each token
entering its consumer, both counted from the node's own start, nothing stalling. A run says what passes
through every FIFO; the depths serve all runs given. Each run has a promise, the latest time of each token:

    conservative   with FIFOs without limit the run takes F cycles; it shall take no more
    normal         every node keeps its own rate from its start on; no token shall move later than that

The starts of `normal` come from a linear program (`rates`).

FIFOs are then limited one after the other, the one first that can save most, each to the smallest depth
that keeps the promises in an exact run with all depths chosen before (`events`). `conservative` begins with
FIFOs without limit; to begin with what FIFOs hold at the starts of the linear program is worse, where that
keeps the promise at all (`benchmarks/fifo_sizing.py`). The less a FIFO holds the
later tokens move, so in the end no FIFO can lose a single token. What is found depends on the order: in
graphs small enough every FIFO is also tried as the first and as the last, and the best result is taken; in
graphs too large for that many FIFOs are limited at once, and one by one where they turn out too small. In
graphs larger still `normal` takes the depths that FIFOs have when every token moves at the last moment.

FIFOs in which the same happens in every run, as those of the columns of an engine, are one (`symmetry`): one
of them is sized, and counts as many times as there are.

A deep queue is slower than a shallow one. Sizing begins with the fastest queues and is done again while
queues turn out slower, so that runs are computed with the FIFOs that will be built.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import Literal, TypeVar

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.base.progress import Counted
from streamgen.base.threads import workers
from streamgen.fifo.curves import NodeStream
from streamgen.fifo.events import SelfTimedRun
from streamgen.fifo.queue import QueueParams
from streamgen.fifo.rates import own_rates
from streamgen.fifo.symmetry import Contents, classes, firsts
from streamgen.fifo.waits import deadlock

Strategy = Literal["normal", "conservative"]
Begin = Literal["free", "rates"]
_T = TypeVar("_T")
_R = TypeVar("_R")

# Token moves over all runs and FIFOs tried: about as many as a processor computes in half a second.
_EFFORT = 20_000_000
_LARGE = 200_000  # tokens of all runs, from which on threads are worth their switching
# Beyond this, runs of nodes at their own rates are not computed at all: they have long to settle.
_EFFORT_OWN_RATES = 500_000_000


@dataclass(frozen=True, eq=False)
class Timetable:
    """The promise of a run: its cycles, and by stream the latest cycle in which each token moves, where that
    was asked for."""

    finish: int
    produced: tuple[np.ndarray, ...]
    consumed: tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False)
class Sizing:
    """Depth of every FIFO (0: nothing passes through it, or it is no FIFO), and the schedule of every run."""

    depths: tuple[int, ...]
    schedules: tuple[Timetable, ...]


def size(
    nodes: Iterable[str],
    runs: Sequence[Sequence[NodeStream | None]],
    strategy: Strategy = "conservative",
    least: int = 1,
    begin: Begin = "free",
    counted: Counted | None = None,
    times: bool = True,
) -> Sizing:
    """The depths for all runs. The streams of a run stand in the order of the FIFOs; None where one rests.

    least: what every FIFO holds anyhow, if that many tokens pass through it. begin: with which depths the
    search of `conservative` begins: without limit, or with what FIFOs hold when nodes keep their own rates.
    counted: told of FIFOs. times: whether schedules have those of tokens.

    Streams with a depth of their own keep it, and may close cycles. ValueError: unknown strategy, runs
    that differ in more than curves; GraphError: a cycle of streams without a depth, or streams of given
    depths that wait for one another for ever.
    """
    if strategy not in ("normal", "conservative"):
        raise ValueError(f"strategy is {strategy!r}; 'normal' and 'conservative' are allowed")
    nodes = [*nodes]
    fifos = [_common(streams) for streams in zip(*runs, strict=True)]
    _ordered(nodes, fifos)  # whose errors name nodes and streams as they are
    alike = _Alike(nodes, fifos, runs)
    fifos = alike.of(fifos)
    order = _ordered(alike.nodes, fifos)
    latencies = [_latency(fifo, 1) for fifo in fifos]
    different = dict(zip(alike.keys, map(alike.of, runs), strict=True))
    sizer = _Sizer(
        order, fifos, alike.counts, [*different.values()], latencies, strategy, least, begin, counted, times
    )
    with closing(sizer):
        while True:
            depths, schedules = sizer.search()
            slower = [
                max(old, _latency(fifo, depth))
                for fifo, depth, old in zip(fifos, depths, latencies, strict=True)
            ]
            if slower == latencies:
                timetables = dict(zip(different, map(alike.expanded, schedules), strict=True))
                return Sizing(tuple(alike.all(depths)), tuple(timetables[key] for key in alike.keys))
            sizer.begin(latencies := slower)


class _Alike:
    """FIFOs in which the same happens in every run, as those of columns that are alike (`symmetry`): one of
    each is sized, for all.

    nodes: one of each class. counts: how many FIFOs each one kept stands for. keys: equal for runs in which
    the same happens: of layers that are alike, say.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        fifos: Sequence[NodeStream | None],
        runs: Sequence[Sequence[NodeStream | None]],
    ) -> None:
        known = Contents()
        contents = [[_content(stream, known) for stream in streams] for streams in runs]
        number: dict[str | None, int] = {name: i for i, name in enumerate(nodes)}
        outside = len(nodes), len(nodes) + 1
        ends = [
            (-1, -1) if f is None else (number.get(f.source, outside[0]), number.get(f.target, outside[1]))
            for f in fifos
        ]
        labels = [
            (None if f is None else (f.bits, f.depth, f.latency, f.inside, f.way), *said)
            for f, said in zip(fifos, zip(*contents, strict=True), strict=True)
        ]
        links = [(*end, label) for end, label in zip(ends, labels, strict=True) if end[0] >= 0]
        of = classes([0] * len(nodes) + [1, 2], links)
        same = firsts(
            ("rests",) if source < 0 else (of[source], of[target], label)
            for (source, target), label in zip(ends, labels, strict=True)
        )
        first = firsts(of)
        self._named: dict[str | None, str | None] = {
            name: nodes[first[i]] for name, i in number.items() if name
        }
        self.nodes = [name for i, name in enumerate(nodes) if first[i] == i]
        times = Counter(same)
        self._kept = [*times]
        self.counts = [*times.values()]
        place = {k: i for i, k in enumerate(self._kept)}
        self._place = [place[k] for k in same]
        self.keys = [tuple(said[k] for k in self._kept) for said in contents]

    def of(self, streams: Sequence[NodeStream | None]) -> list[NodeStream | None]:
        """Those kept, between the nodes kept."""
        kept = [streams[k] for k in self._kept]
        return [
            s
            if s is None or (self._named.get(s.source) == s.source and self._named.get(s.target) == s.target)
            else replace(s, source=self._named.get(s.source), target=self._named.get(s.target))
            for s in kept
        ]

    def all(self, found: Sequence[_T]) -> list[_T]:
        """By every FIFO what is found of those kept."""
        return [found[i] for i in self._place]

    def expanded(self, timetable: Timetable) -> Timetable:
        """The timetable of all FIFOs."""
        moves = (
            tuple(self.all(numbers)) if numbers else ()
            for numbers in (timetable.produced, timetable.consumed)
        )
        return Timetable(timetable.finish, *moves)


def _content(stream: NodeStream | None, known: Contents) -> Hashable:
    """Equal for streams in which the same happens in a run."""
    if stream is None:
        return None
    return stream.depth, *map(known.of, (stream.produced, stream.consumed, *stream.clocks))


def _common(streams: Sequence[NodeStream | None]) -> NodeStream | None:
    """What a FIFO is in all runs; the longest run's stream."""
    present = [stream for stream in streams if stream is not None]
    if not present:
        return None
    first, *others = present
    for other in others:
        for name in ("source", "target", "bits", "depth", "latency", "way"):
            if getattr(other, name) != getattr(first, name):
                raise ValueError(
                    f"stream {first}: {name} is {getattr(first, name)} in one run, {getattr(other, name)} "
                    "in another"
                )
    return max(present, key=lambda stream: len(stream.produced))


def _latency(fifo: NodeStream | None, depth: int) -> int:
    if fifo is None:
        return 1
    if fifo.latency is not None:
        return fifo.latency + fifo.way
    return _queue_latency(fifo.bits, max(1, fifo.depth or depth)) + fifo.way


@cache
def _queue_latency(bits: int, depth: int) -> int:
    return QueueParams(bits=bits, depth=depth).latency


def _ordered(nodes: Iterable[str], fifos: Iterable[NodeStream | None]) -> list[str]:
    """The nodes in topological order.

    Streams with a depth of their own count when they go along with the order given and none of those closes
    a cycle.
    """
    place = {name: i for i, name in enumerate(nodes)}
    free: list[tuple[str, str]] = []
    along: list[tuple[str, str]] = []
    for fifo in fifos:
        if fifo is None:
            continue
        for end in (fifo.source, fifo.target):
            if end is not None and end not in place:
                raise ValueError(f"stream {fifo} names no node: {end!r}")
        if fifo.source is None or fifo.target is None:
            continue
        if fifo.depth is None:
            free.append((fifo.target, fifo.source))
        if fifo.depth is None or place[fifo.source] < place[fifo.target]:
            along.append((fifo.target, fifo.source))
    with suppress(CycleError):
        return _sorted(place, along)
    try:
        return _sorted(place, free)
    except CycleError as error:
        raise GraphError(
            f"the nodes {' -> '.join(error.args[1])} are a cycle; one of its streams needs a depth of its own"
        ) from None


def _sorted(nodes: Iterable[str], pairs: Iterable[tuple[str, str]]) -> list[str]:
    sorter = TopologicalSorter(dict.fromkeys(nodes, ()))
    for target, source in pairs:
        sorter.add(target, source)
    return list(sorter.static_order())


class _Sizer:
    """Sizes FIFOs of given latencies. counts: how many each one stands for."""

    def __init__(
        self,
        nodes: Sequence[str],
        fifos: Sequence[NodeStream | None],
        counts: Sequence[int],
        runs: Sequence[Sequence[NodeStream | None]],
        latencies: Sequence[int],
        strategy: Strategy,
        at_least: int,
        begin: Begin,
        counted: Counted | None,
        times: bool,
    ) -> None:
        self._nodes, self._fifos, self._streams = nodes, fifos, runs
        self._counted = counted or (lambda what, done, goal: None)
        self._strategy, self._from_rates, self._times = strategy, begin == "rates", times
        tokens = [sum(len(stream.produced) for stream in streams if stream is not None) for streams in runs]
        self._largest = sorted(range(len(runs)), key=lambda k: -tokens[k])
        threads = sum(tokens) > _LARGE and len(runs) > 1
        self._threads = workers() if threads else None
        self._runs = self._each(lambda streams: SelfTimedRun(nodes, streams, latencies), runs)
        self._bits = [0 if f is None else f.bits * count for f, count in zip(fifos, counts, strict=True)]
        self._ways = [0 if fifo is None else fifo.way for fifo in fifos]
        self._most = [0 if fifo is None else max(1, len(fifo.produced)) for fifo in fifos]
        self._floor = [min(at_least, most) for most in self._most]
        self._free = [
            k
            for k, fifo in enumerate(fifos)
            if fifo is not None and fifo.depth is None and fifo.source is not None and fifo.target is not None
        ]
        self._promise(latencies)

    def begin(self, latencies: Sequence[int]) -> None:
        """Size them again, with queues that take so many cycles."""
        self._each(lambda run: run.begin(latencies), self._runs)
        self._promise(latencies)

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.shutdown()

    def _each(self, do: Callable[[_T], _R], runs: Iterable[_T]) -> list[_R]:
        """What is done for every run; for large ones side by side, the largest first, for the loops of a run
        are C."""
        if self._threads is None:
            return [*map(do, runs)]
        given = [*runs]
        results = dict(
            zip(self._largest, self._threads.map(do, (given[k] for k in self._largest)), strict=True)
        )
        return [results[k] for k in range(len(given))]

    def _promise(self, latencies: Sequence[int]) -> None:
        """Promise what the runs do while no FIFO is limited."""
        own: list[np.ndarray] = []
        ends: list[np.ndarray] = []
        for run, streams in zip(self._runs, self._streams, strict=True):
            if not run.ends:
                raise GraphError(deadlock(self._nodes, streams))
            if self._strategy == "normal" or self._from_rates:
                own.append(own_rates(run, self._nodes, streams, self._bits, latencies))
            ends.append(np.full(len(run.group_cycle), run.finish - 1))

        def promise(one: tuple[SelfTimedRun, np.ndarray]) -> None:
            run, done = one
            run.promise(done)
            run.mark()

        self._each(promise, zip(self._runs, own if self._strategy == "normal" else ends, strict=True))
        held = self._held([*zip(self._runs, own, strict=True)]) if self._from_rates else None
        self._begin = held

    def search(self) -> tuple[list[int], tuple[Timetable, ...]]:
        """The best depths of several orders of limiting the FIFOs, and what the runs promise with them."""
        effort = sum(len(run.times) for run in self._runs) * len(self._free)
        if self._strategy == "normal" and effort > _EFFORT_OWN_RATES:
            promised = [(run, run.promised_groups) for run in self._runs]
            return self._named(self._held(promised)), self._schedules()
        left = _EFFORT - effort
        best, schedules = self._limited([], [], together=left < 0), self._schedules()
        for k in sorted(self._free, key=lambda k: -self._bits[k] * best[k]):
            for first, last in (([k], []), ([], [k])):
                left -= effort
                if left >= 0:
                    depths = self._limited(first, last)
                    if self._storage(depths) < self._storage(best):
                        best, schedules = depths, self._schedules()
        return self._named(best), schedules

    def _schedules(self) -> tuple[Timetable, ...]:
        """What the runs promise with the FIFOs as they are limited at present."""
        return tuple(self._each(self._schedule, self._runs))

    def _schedule(self, run: SelfTimedRun) -> Timetable:
        if not self._times:
            return Timetable(run.promised_finish, (), ())
        times = run.times.copy() if self._strategy == "conservative" else run.promised()
        return Timetable(run.promised_finish, *(tuple(moves) for moves in run.split(times)))

    def _named(self, depths: Sequence[int]) -> list[int]:
        """The depths, those given included."""
        return [
            0 if fifo is None or fifo.source is None or fifo.target is None else fifo.depth or depth
            for fifo, depth in zip(self._fifos, depths, strict=True)
        ]

    def _storage(self, depths: Sequence[int]) -> int:
        return sum(bits * depth for bits, depth in zip(self._bits, depths, strict=True))

    def _limited(self, first: Sequence[int], last: Sequence[int], together: bool = False) -> list[int]:
        """Every FIFO as small as can be in turn: some first, some last, the others by what they can save.

        together: many FIFOs are tried at once, and fewer where that goes wrong.
        """
        self._each(lambda run: run.restart(), self._runs)
        depths = list(self._most)
        if self._begin is not None:
            lower = {k: self._begin[k] for k in self._free if self._begin[k] < depths[k]}
            if self._fits(lower):
                for k, depth in lower.items():
                    depths[k] = depth
                for run in self._runs:
                    run.postpone(lower)
        self._limit(first, depths)
        apart = {*first, *last}

        def saved(k: int) -> int:
            return -(depths[k] - self._least(k)) * self._bits[k]

        queue = [(saved(k), k) for k in self._free if k not in apart]
        heapq.heapify(queue)
        chosen: list[int] = []
        many = 1
        while queue:
            self._counted("FIFO depths", len(self._free) - len(queue) - len(chosen), len(self._free))
            _, k = heapq.heappop(queue)
            now = saved(k)  # less than before, as other FIFOs have been limited since
            if queue and now > queue[0][0]:
                heapq.heappush(queue, (now, k))
                continue
            chosen.append(k)
            if len(chosen) == many or not queue:
                fits = self._limit(chosen, depths)
                if together:
                    many = 2 * many if fits else max(1, many // 2)
                chosen = []
        self._limit(last, depths)
        return depths

    def _held(self, done: Iterable[tuple[SelfTimedRun, np.ndarray]]) -> list[int]:
        """What every FIFO holds when the groups of events of each run are done in these cycles."""
        held = list(self._floor)
        for run, groups in done:
            sent, taken = run.split(run.of_tokens(groups))
            for k in self._free:
                if len(sent[k]):
                    free = taken[k] + self._ways[k]
                    inside = np.searchsorted(sent[k], free, side="right") - np.arange(len(sent[k]))
                    held[k] = max(held[k], int(inside.max()))
        return held

    def _least(self, k: int) -> int:
        least = self._floor[k]
        for run in self._runs:
            least = max(least, run.least_depth(k))
        return least

    def _limit(self, fifos: Sequence[int], depths: list[int]) -> bool:
        """Limit each to the smallest depth with which all runs keep their promises.

        Whether these are the least ones that each FIFO could have alone.
        """
        least = {k: low for k in fifos if (low := self._least(k)) < depths[k]}
        if not least:
            return True
        if fits := self._fits(least):
            for k, depth in least.items():
                depths[k] = depth
        elif len(least) > 1:
            half = len(least) // 2
            self._limit([*least][:half], depths)
            self._limit([*least][half:], depths)
            return False
        else:
            ((k, low),) = least.items()
            low += 1
            while low < depths[k]:
                trial = (low + depths[k]) // 2
                if self._fits({k: trial}):
                    depths[k] = trial
                else:
                    low = trial + 1
        self._each(lambda run: run.postpone(least), self._runs)
        return fits

    def _fits(self, depths: Mapping[int, int]) -> bool:
        """Limit some FIFOs if all runs keep their promises."""
        before = {k: int(self._runs[0].depth[k]) for k in depths}
        failed = False

        def fits(run: SelfTimedRun) -> bool | None:
            """Whether it does; None, and nothing changed, behind one that does not."""
            nonlocal failed
            if failed:
                return None
            for k, depth in depths.items():
                run.limit(k, depth)
            if not (settled := run.settle()):
                failed = True
            return settled

        settled_runs = self._each(fits, self._runs)
        if failed:
            for run, fitted in zip(self._runs, settled_runs, strict=True):
                if fitted:
                    run.revert()
                if fitted is not None:
                    for k, depth in before.items():
                        run.depth[k] = depth
        return not failed
