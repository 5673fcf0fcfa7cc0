"""Token times of a self-timed run with given FIFO depths: exact, by relaxation of max-plus equations.

Every node has one clock, which shows the cycles of its curves, or those of `Stream.clocks` for the same
events in the same order. It stands while what is due cannot move:
inputs due in a cycle move together, when all of them have a token and the outputs due have found room; an
output moves as soon as those inputs have a token and its FIFO has room; one to another part of the same
kernel when all outputs due to other nodes have moved besides. With S(g) the real time at which
the g-th cycle of the clock, tau(g), is done, p and c the times of a stream's tokens,

    base(g) = max(tau(g), S(g-1) + tau(g) - tau(g-1), p(k) + latency of the inputs due)
    p(k)    = max(base(g), c(k - depth) + 1 + way)   of the outputs due; c(k - 1) + 0 where depth is 1 and way
                                                     0; inside a kernel also p of the outputs due to others
    S(g)    = max(base(g), p of the outputs due)
    c(k)    = S(g)                                   of the inputs due

The equations are monotone: kernels that keep their curves and stall no more than that run as computed or
earlier. Backwards they give the latest times with which a run still meets its end. Changing one depth
costs as much as tokens change their times. A time found to rest on itself some cycles later has no end: then
the depths fit no run. The loops are in events.c.
"""

import ctypes
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from streamgen.fifo.curves import NodeStream
from streamgen.fifo.groups import StreamEnd, grouped
from streamgen.fifo.library import loaded

_NEVER = 1 << 30


class SelfTimedRun:
    """The run of `nodes`, in any order, over `streams` (None: rests in this run).

    A stream without a depth is not limited at first. latencies: of each FIFO, in cycles. A new run is
    settled: all tokens move as early as they can. ValueError for cycles beyond 2^29.

    ends: False when streams of given depths wait for one another for ever. tokens: of all streams. times,
    latest: of all productions, then of all consumptions. group_cycle: of each group of events that are due
    together the cycle; group: of each token in `times`, -1 outside.
    """

    def __init__(
        self, nodes: Sequence[str], streams: Sequence[NodeStream | None], latencies: Sequence[int]
    ) -> None:
        index: dict[str | None, int] = {name: i for i, name in enumerate(nodes)}
        curves = [(_EMPTY, _EMPTY) if s is None else (s.produced, s.consumed) for s in streams]
        clocks = [(p, c) if s is None else s.clocks for s, (p, c) in zip(streams, curves, strict=True)]
        first = np.cumsum([0, *(len(p) for p, _ in curves)], dtype=np.int32)
        if max((int(c[-1]) for ends in curves for c in ends if len(c)), default=0) >= _NEVER // 2:
            raise ValueError(f"curves reach beyond cycle {_NEVER // 2}, the last one that sizing counts")
        source, target = (
            np.array([-1 if s is None else index.get(end(s), -1) for s in streams], np.int32)
            for end in (lambda s: s.source, lambda s: s.target)
        )
        inside = np.array([s is not None and s.inside for s in streams], np.int32)
        way = np.array([0 if s is None else s.way for s in streams], np.int32)
        total = int(first[-1])
        of_token = np.full(2 * total, -1, np.int32)
        sides: list[list[StreamEnd]] = [[] for _ in nodes]
        # in a group inputs come first, then outputs to others, then those inside
        for which in range(3):
            for k, ((made, taken), (sends, takes)) in enumerate(zip(curves, clocks, strict=True)):
                at, stop = first[k : k + 2]
                if which == 0 and target[k] >= 0:
                    own = of_token[total + at : total + stop]
                    sides[target[k]].append(StreamEnd(taken, takes, 2 * k, at, own))
                if which == 1 + inside[k] and source[k] >= 0:
                    sides[source[k]].append(StreamEnd(made, sends, 2 * k + 1, at, of_token[at:stop]))
        found = grouped(sides)  # the world outside has no clock
        groups = len(found.clock)
        self._nodes, self.tokens, self._first = len(nodes), total, first
        self._sources, self._targets = source, target
        self.group, self.group_cycle, self._node_group = of_token, found.cycle, found.node
        self._depth = np.array([0 if s is None or s.depth is None else s.depth for s in streams], np.int32)
        self.depth, self._latency = self._depth.copy(), np.zeros(len(streams), np.int32)
        self._alone = [_EMPTY, *(end for ends in zip(*clocks, strict=True) for end in ends)]
        self.times = np.zeros(2 * total + groups, np.int32)
        self.latest, self._promise = np.empty(2 * total, np.int32), np.empty(groups, np.int32)
        self._needed, self._base = np.empty(total, np.int32), np.empty(groups, np.int32)
        counts = (len(nodes), len(streams), total, groups)
        arrays = (
            *(found.node, found.clock, found.first, found.event, found.token),
            *(first, inside, source, target, of_token[:total], of_token[total:], self._latency, way),
            *(self.depth, self.times, self.latest, self._needed, self._promise, self._base),
            *(np.zeros(len(nodes), np.int32) for _ in range(5)),
            *(np.zeros(len(self.times), np.int32) for _ in range(3)),
        )
        self._arrays = tuple(np.ascontiguousarray(array, np.int32) for array in arrays)
        self._run = _RunStruct(*counts, *(array.ctypes.data for array in self._arrays), 0, 0, 0)
        self._state = (self.depth, self.times, self.latest, self._needed, self._base)
        self._longest = sum(int(c[-1]) for ends in curves for c in ends if len(c))
        self._longest += total * (2 + int(way.max(initial=0)))
        self.begin(latencies)

    def begin(self, latencies: Sequence[int]) -> None:
        """A new run of the same streams through FIFOs of other latencies."""
        self.depth[:] = self._depth
        np.concatenate(self._alone, out=self.times[: 2 * self.tokens], casting="same_kind")
        self.times[2 * self.tokens :] = 0
        for array in (self.latest, self._needed, self._base, self._promise):
            array[:] = _NEVER
        self._latency[:] = latencies
        self._touch(range(self._nodes))
        # no path of waits is longer, but where it goes round in circles
        longest = self._longest + self.tokens * max(latencies, default=0)
        self.ends = self.settle(min(longest, _NEVER))

    @property
    def group_node(self) -> np.ndarray:
        """The node of each group of events."""
        return np.repeat(np.arange(self._nodes), np.diff(self._node_group))

    @property
    def finish(self) -> int:
        """Cycles of the run: the last one in which a token moves, plus 1."""
        return 1 + int(self.times[: 2 * self.tokens].max(initial=-1))

    def split(self, times: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """`times` or `latest` by stream: of the productions, of the consumptions."""
        cuts = [*pairwise(self._first.tolist())]
        sent, taken = times[: self.tokens], times[self.tokens : 2 * self.tokens]
        return [sent[a:b] for a, b in cuts], [taken[a:b] for a, b in cuts]

    def mark(self) -> None:
        """Remember this state for `restart`."""
        self._marked = [array.copy() for array in self._state]

    def restart(self) -> None:
        """Go back to where `mark` was called."""
        for array, marked in zip(self._state, self._marked, strict=True):
            array[:] = marked

    def settle(self, limit: int = _NEVER) -> bool:
        """Delay what must wait, beginning with the FIFOs limited since, until everything fits.

        False, and nothing changed, when a token would move at `limit` or later, or after its latest time.
        """
        return bool(_library.run_settle(self._run, limit))

    def limit(self, k: int, depth: int) -> None:
        """Give FIFO k a smaller depth."""
        self.depth[k] = depth
        self._touch([self._sources[k]])

    def revert(self) -> None:
        """Undo the last `settle`; the depth is the caller's to put back."""
        _library.run_revert(self._run)

    def promise(self, done: np.ndarray) -> None:
        """Every group of events shall be done in its cycle of `done`, or before: sets the latest times."""
        self._promise[:] = done
        self._touch(range(self._nodes))
        _library.run_postpone(self._run)

    def promised(self) -> np.ndarray:
        """What was promised, of all productions, then of all consumptions."""
        return self.of_tokens(self.promised_groups)

    @property
    def promised_groups(self) -> np.ndarray:
        """What was promised, of all groups of events."""
        return self._promise

    @property
    def promised_finish(self) -> int:
        """Cycles of the run, as promised."""
        outside = self.times[: 2 * self.tokens][self.group < 0]
        return 1 + max(int(self._promise.max(initial=-1)), int(outside.max(initial=-1)))

    def of_tokens(self, done: np.ndarray) -> np.ndarray:
        """When tokens move, as in `times`, if groups of events are done so; the world outside is as ever."""
        return np.where(self.group >= 0, done[self.group], self.times[: 2 * self.tokens])

    def postpone(self, fifos: Iterable[int]) -> None:
        """Bring the latest times forward by what smaller depths of some FIFOs change."""
        self._touch([self._targets[k] for k in fifos])
        _library.run_postpone(self._run)

    def least_depth(self, k: int) -> int:
        """No smaller depth of FIFO k meets the latest times, all else equal."""
        return int(_library.run_least_depth(self._run, k))

    def _touch(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            _library.run_touch(self._run, node)


class _RunStruct(ctypes.Structure):
    """`struct run` of events.c."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("nodes", "streams", "tokens", "groups")),
        *((f"array{i}", ctypes.c_void_p) for i in range(27)),
        *((name, ctypes.c_int32) for name in ("logged", "trial", "waiting")),
    ]


def _load() -> ctypes.CDLL:
    library = loaded("streamgen.fifo._events")
    run, number = ctypes.POINTER(_RunStruct), ctypes.c_int32
    for name, result, arguments in (
        ("touch", None, (run, ctypes.c_int32)),
        ("revert", None, (run,)),
        ("settle", ctypes.c_int, (run, number)),
        ("postpone", None, (run,)),
        ("least_depth", number, (run, number)),
    ):
        function = getattr(library, f"run_{name}")
        function.restype, function.argtypes = result, arguments
    return library


_EMPTY = np.zeros(0, np.int32)
_library = _load()
