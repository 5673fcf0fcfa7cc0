"""Run the emitted Verilog of a graph of kernels in Verilator, and see what every edge does.

    simulator = NetworkSimulator(graph)
    result = simulator.run({"a_i_descriptor": words, "a_i": given}, {"b_o": 64}, tokens={"a.o -> b.i": 64})
    result.links["a.o -> b.i"].taken  # the cycle in which each token left the FIFO

Like `streamgen.testing.StreamSimulator`, whose results, stalls and errors these are: of a
`sim.network.Network`. A run in which nothing moves any more raises StuckError with the cycle of nodes that
wait for one another. With `adjustable` a run may give each FIFO less than its depth, so that one build serves
a search. A run with tokens left in cycle `deadline` ends there with LateError.
"""

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from sim.network import LIMIT_BITS, Link, Network
from streamgen.fifo.waits import Wait, cycle_of_waits
from streamgen.model.graph import Graph
from streamgen.runtime.sharing import sharing
from streamgen.testing.bench import BenchError, Result, Stalls, StuckError
from streamgen.testing.stream_simulator import StreamSimulator

__all__ = ["LateError", "LinkTimes", "NetworkResult", "NetworkSimulator", "waiting"]


class LateError(Exception):
    """A run had tokens left at its deadline; result: what had moved until then."""

    def __init__(self, deadline: int, result: "NetworkResult") -> None:
        super().__init__(f"tokens are left in cycle {deadline}")
        self.result = result


@dataclass(frozen=True)
class LinkTimes:
    """Cycle in which each token entered the FIFO, and left it; the most tokens that were inside at once."""

    sent: np.ndarray
    taken: np.ndarray
    peak: int


@dataclass(frozen=True)
class NetworkResult(Result):
    """What a run saw; links: every edge, by name."""

    links: dict[str, LinkTimes]


class NetworkSimulator(StreamSimulator):
    """A graph whose edges have depths, built for simulation."""

    def __init__(self, graph: Graph, *, adjustable: bool = False) -> None:
        network = Network(graph, adjustable=adjustable)
        self.links: Sequence[Link] = network.links
        self._adjustable = adjustable and bool(network.links)
        header = f"#define LINKS {len(network.links)}\n" if network.links else ""
        header += "#define ADJUSTABLE\n" if self._adjustable else ""
        header += f'#include "{Path(__file__).with_name("network_links.h")}"\n' if network.links else ""
        # kernels of one kind stay one piece of code
        sources = {**network.sources, "sharing.vlt": sharing(network.verilog, "top")}
        self._build(f"graph {graph.name!r}", network.ports, network.verilog, sources, header)

    def run(  # type: ignore[override]
        self,
        inputs: Mapping[str, Sequence[int]],
        outputs: Mapping[str, int],
        *,
        tokens: Mapping[str, int],
        limits: Mapping[str, int] | None = None,
        deadline: int | None = None,
        stalls: Stalls | None = None,
        watchdog: int = 2000,
    ) -> NetworkResult:
        """Send `inputs`, collect `outputs`, as `streamgen.testing.run` does. tokens: how many pass each edge.

        limits: of edges that shall hold less than their depth.
        """
        names = [link.name for link in self.links]
        if set(tokens) != set(names):
            raise ValueError(f"tokens are given for {sorted(tokens)}, the edges are {sorted(names)}")
        if limits and not self._adjustable:
            raise ValueError("limits need a simulator that is adjustable")
        for name, limit in (limits or {}).items():
            depth = next((link.depth for link in self.links if link.name == name), 0)
            if not 1 <= limit <= min(depth, (1 << LIMIT_BITS) - 1):
                raise ValueError(f"limit of edge {name!r} must be 1 to its depth {depth}, not {limit}")
        watch = _Watch([tokens[name] for name in names], [(limits or {}).get(n, 65535) for n in names])
        links = ctypes.byref(watch.links) if names else None
        try:
            result, late = self._run(
                inputs, outputs, stalls, watchdog, tail=0, deadline=deadline, links=links
            )
        except StuckError as error:
            raise StuckError("\n".join([str(error), *self._stuck(watch)])) from None
        if watch.links.extra:
            name = names[watch.links.extra - 1]
            raise BenchError(f"edge {name!r}: a token too many, {tokens[name]} expected")
        found = NetworkResult(**vars(result), links={name: watch.times(k) for k, name in enumerate(names)})
        if late:
            assert deadline is not None
            raise LateError(deadline, found)
        return found

    def _stuck(self, watch: "_Watch") -> Iterable[str]:
        width = max(len(link.name) for link in self.links)
        states = []
        for k, link in enumerate(self.links):
            into, out_of = int(watch.into[k]), int(watch.out_of[k])
            inside = int(watch.pushed[k] - watch.popped[k])
            yield (
                f"{link.name:{width}}  in {into & 1} {into >> 1}  out {out_of & 1} {out_of >> 1}  "
                f"{inside} inside, {watch.counts[k] - int(watch.popped[k])} of {watch.counts[k]} left"
            )
            states.append(
                (link, into == 1, out_of == 2, out_of & 1 == 0 and watch.popped[k] < watch.counts[k], inside)
            )
        yield from waiting(states)


def waiting(states: Iterable[tuple[Link, bool, bool, bool, int]]) -> list[str]:
    """The cycle of nodes that wait for one another, edge by edge; no line when there is none.

    states: edge, whether its source waits for room, whether its target waits for a token with `ready` high,
    whether it may wait for one, tokens inside. Waits that are certain are followed first.
    """
    full, wanted, missing = [], [], []
    for link, blocked, asks, empty, inside in states:
        if blocked:
            full.append(Wait(link.source, link.target, link.name, f"full, holds {inside}"))
        if empty:
            (wanted if asks else missing).append(Wait(link.target, link.source, link.name, "empty"))
    cycle = cycle_of_waits([*full, *wanted]) or cycle_of_waits([*full, *wanted, *missing])
    return ["a cycle of waits:", *(f"  {wait}" for wait in cycle)] if cycle else []


class _Links(ctypes.Structure):
    """`Links` of network_links.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("first", "sent", "taken", "pushed", "popped", "peak")),
        *((name, ctypes.c_void_p) for name in ("limits", "into", "out_of")),
        ("extra", ctypes.c_uint64),
    ]


class _Watch:
    """The memory of all edges in a run."""

    def __init__(self, counts: Sequence[int], limits: Sequence[int]) -> None:
        self.counts = counts
        edges = len(counts)
        self._first = np.array([0, *accumulate(counts)], np.uint64)
        self._sent, self._taken = (np.zeros(max(1, int(self._first[-1])), np.uint64) for _ in range(2))
        self.pushed, self.popped, self._peak = (np.zeros(edges, np.uint64) for _ in range(3))
        self._limits = np.array(limits, np.uint32)
        self.into, self.out_of = (np.zeros(edges, np.uint8) for _ in range(2))
        arrays = (self._first, self._sent, self._taken, self.pushed, self.popped, self._peak)
        arrays = (*arrays, self._limits, self.into, self.out_of)
        self.links = _Links(*(array.ctypes.data for array in arrays))

    def times(self, k: int) -> LinkTimes:
        """What edge k has done."""
        first = int(self._first[k])
        sent, taken = (
            times[first : first + int(count[k])].astype(np.int64)
            for times, count in ((self._sent, self.pushed), (self._taken, self.popped))
        )
        return LinkTimes(sent, taken, int(self._peak[k]))
