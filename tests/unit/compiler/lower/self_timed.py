"""A run of a graph without stalls of memory, only handshakes: when does it end with the FIFOs it has?

Every clock (of a node, or of a port) stands while a token is missing at an input or a place behind an output;
in its cycles the ports move as the curves say, but that no output waits for another, as valid must not wait
for ready. Real kernels are less strict (their ports do not all wait for one another), so they end no later.
FIFOs behind loads of constants have no limit here, as the loads read ahead into their own.
"""

import numpy as np

from streamgen.compiler.lower.passes import run_nodes, run_streams
from streamgen.fifo.queue import QueueParams
from streamgen.model.graph import Graph

__all__ = ["finish"]


def finish(graph: Graph, limit: int) -> int | None:
    """Cycles of the run of a graph of one phase; None when it takes more than `limit`, or never ends.

    Least times that satisfy all waits, by relaxation, clock by clock until nothing changes.
    """
    streams = run_streams(graph, 0)
    depth, latency = [], []
    for k, stream in enumerate(streams):
        own = stream.depth if stream.depth is not None else graph.edges[k].depth
        depth.append(min(own, len(stream.produced)))
        queue = QueueParams(bits=stream.bits, depth=own)
        latency.append(queue.latency if stream.latency is None else stream.latency)
    clocks = {}
    times: dict[tuple[int, str], np.ndarray] = {}
    for name in run_nodes(graph):
        ports = [(k, "in") for k, stream in enumerate(streams) if stream.target == name]
        ports += [(k, "out") for k, stream in enumerate(streams) if stream.source == name]
        curves = [streams[k].consumed if side == "in" else streams[k].produced for k, side in ports]
        shown = [streams[k].clocks[side == "in"] for k, side in ports]
        times |= dict(zip(ports, shown, strict=True))
        merged = np.concatenate(curves)
        clocks[name] = (ports, merged, np.concatenate(shown), np.argsort(merged, kind="stable"))

    def earliest(k: int, side: str) -> np.ndarray:
        """What the other end allows. When an input moved is no part of it: an output may have held it up."""
        if side == "in":
            return times[k, "out"] + latency[k]
        result = np.zeros_like(times[k, "out"])
        result[depth[k] :] = np.maximum(result[depth[k] :], times[k, "in"][: -depth[k]] + (depth[k] > 1))
        return result

    waiting = set(clocks)
    while waiting:
        for name in (*clocks, *reversed(clocks)):
            if name not in waiting:
                continue
            waiting.discard(name)
            ports, own, shown, order = clocks[name]
            can = np.concatenate([earliest(*port) for port in ports])
            inward = np.concatenate([np.full(len(times[port]), port[1] == "in") for port in ports])
            late = np.maximum.accumulate(np.maximum(can - shown, 0)[order])
            behind = np.append(0, late)  # of the cycles before each
            real = shown + late[np.searchsorted(own[order], own, side="right") - 1]
            base = shown + behind[np.searchsorted(own[order], own, side="left")]
            cycles, group = np.unique(own, return_inverse=True)
            ready = np.zeros(len(cycles), own.dtype)
            np.maximum.at(ready, group[inward], can[inward])
            real[~inward] = np.maximum(np.maximum(base, ready[group]), can)[~inward]
            if real.max(initial=0) >= limit:
                return None
            for (k, side), new in zip(
                ports, np.split(real, np.cumsum([len(times[p]) for p in ports])[:-1]), strict=True
            ):
                if not np.array_equal(times[k, side], new):
                    times[k, side] = new
                    other = streams[k].source if side == "in" else streams[k].target
                    assert other is not None
                    waiting.add(other)
    return int(max(t[-1] for t in times.values() if len(t))) + 1
