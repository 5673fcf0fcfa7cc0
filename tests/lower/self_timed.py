"""A run of a graph without stalls of memory, only handshakes: when does it end with the FIFOs it has?

Every node has one clock, which stands while a token is missing at an input or a place behind an output;
in the cycles of that clock its ports move as its curves say, but that no output waits for another, as
valid must not wait for ready. Real kernels are less strict (their ports do not all wait for one another),
so they end no later. FIFOs behind loads of constants have no limit here,
as the loads read ahead into their own.
"""

import numpy as np

from streamgen.fifo.queue import QueueParams
from streamgen.graph import Graph

__all__ = ["finish"]


def finish(graph: Graph, limit: int) -> int | None:
    """Cycles of the run of a graph of one phase; None when it takes more than `limit`, or never ends.

    Least times that satisfy all waits, by relaxation, node by node until nothing changes.
    """
    ahead = {tensor.node for tensor in graph.tensors if tensor.role == "constant"}
    for node in graph.nodes:
        sources = {edge.source.node for edge in graph.inputs_of(node.name)}
        if sources and sources <= ahead:
            ahead.add(node.name)
    edges = list(graph.edges)
    latency, depth = [], []
    clocks = {}
    times: dict[tuple[int, str], np.ndarray] = {}
    for node in graph.nodes:
        (bounds,) = node.bounds
        assert bounds is not None
        curves = node.params.curves(bounds)
        ports = [(i, "in", e.target.name) for i, e in enumerate(edges) if e.target.node == node.name]
        ports += [(i, "out", e.source.name) for i, e in enumerate(edges) if e.source.node == node.name]
        own = [curves[name].cycles() for _, _, name in ports]
        for (i, side, _), cycles in zip(ports, own, strict=True):
            times[i, side] = cycles
        merged = np.concatenate(own)
        order = np.argsort(merged, kind="stable")
        clocks[node.name] = ([(i, side) for i, side, _ in ports], merged, order)
    for edge in edges:
        itensor = graph.itensor(edge, 0)
        assert itensor is not None
        assert edge.depth is not None
        latency.append(QueueParams(bits=itensor.token_bits, depth=edge.depth).latency)
        depth.append(itensor.token_count if edge.source.node in ahead else edge.depth)

    def earliest(i: int, side: str) -> np.ndarray:
        if side == "in":
            return np.maximum(times[i, "in"], times[i, "out"] + latency[i])
        result = times[i, "out"].copy()
        result[depth[i] :] = np.maximum(result[depth[i] :], times[i, "in"][: -depth[i]] + 1)
        return result

    names = [node.name for node in graph.nodes]
    waiting = set(names)
    while waiting:
        for name in (*names, *reversed(names)):
            if name not in waiting:
                continue
            waiting.discard(name)
            ports, own, order = clocks[name]
            can = np.concatenate([earliest(*port) for port in ports])
            inward = np.concatenate([np.full(len(times[port]), port[1] == "in") for port in ports])
            late = np.maximum.accumulate((can - own)[order])
            behind = np.append(0, late)  # of the cycles before each
            real = own + late[np.searchsorted(own[order], own, side="right") - 1]
            base = own + behind[np.searchsorted(own[order], own, side="left")]
            cycles, group = np.unique(own, return_inverse=True)
            ready = np.zeros(len(cycles), own.dtype)
            np.maximum.at(ready, group[inward], can[inward])
            real[~inward] = np.maximum(np.maximum(base, ready[group]), can)[~inward]
            if real.max() >= limit:
                return None
            for (i, side), new in zip(
                ports, np.split(real, np.cumsum([len(times[p]) for p in ports])[:-1]), strict=True
            ):
                if not np.array_equal(times[i, side], new):
                    times[i, side] = new
                    waiting.add(edges[i].source.node if side == "in" else edges[i].target.node)
    return int(max(t[-1] for t in times.values())) + 1
