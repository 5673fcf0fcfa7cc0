"""When tokens move if every node keeps its own rate from its start on, and the starts that hold least.

They come from a linear program: s_v - s_u >= max_n(produced(n) - consumed(n)) + latency for every stream
u -> v, no node without readers starts later than it must, and the sum of bits * rate * (s_v - s_u) is least.
(StreamTensor, arXiv 2509.13694, section on FIFO sizing, with token curves instead of two rates a kernel.)
"""

from collections.abc import Sequence

import numpy as np

from streamgen.fifo.curves import NodeStream
from streamgen.fifo.events import SelfTimedRun


def own_rates(
    run: SelfTimedRun,
    nodes: Sequence[str],
    streams: Sequence[NodeStream | None],
    bits: Sequence[int],
    latencies: Sequence[int],
) -> np.ndarray:
    """When each group of events is done by nodes at their own rates, or as given depths force them."""
    place = {name: i for i, name in enumerate(nodes)}
    inner = [
        (place[stream.source], place[stream.target], stream, weight, latency)
        for stream, weight, latency in zip(streams, bits, latencies, strict=True)
        if stream is not None
        and stream.source is not None
        and stream.target is not None
        and len(stream.produced)
        and place[stream.source] < place[stream.target]
    ]
    starts = _starts(len(place), inner)
    own = run.group_cycle + starts[run.group_node]
    moved = np.zeros(len(own), np.int64)
    np.maximum.at(moved, run.group[run.group >= 0], run.times[: 2 * run.tokens][run.group >= 0])
    return np.maximum(own, moved)


def _starts(nodes: int, streams: Sequence[tuple[int, int, NodeStream, int, int]]) -> np.ndarray:
    """Start of every node that keeps its own rate: the linear program."""
    if not streams:
        return np.zeros(nodes, np.int64)
    source, target = (np.array([stream[end] for stream in streams]) for end in (0, 1))
    least = np.array([int((s.produced - s.consumed).max()) + latency for _, _, s, _, latency in streams])
    earliest = [0] * nodes
    for k in np.argsort(source, kind="stable"):  # nodes stand in topological order
        earliest[target[k]] = max(earliest[target[k]], earliest[source[k]] + int(least[k]))
    weights = np.full(nodes, 1e-6)
    for u, v, stream, bits, _ in streams:
        span = max(int(c[-1] - c[0]) for c in (stream.produced, stream.consumed)) + 1
        rate = bits * len(stream.produced) / span
        weights[v] += rate
        weights[u] -= rate
    from scipy.optimize import linprog  # slow to load, and most designs are sized without it
    from scipy.sparse import coo_matrix

    count = np.arange(len(streams))
    matrix = coo_matrix(
        (np.repeat([1.0, -1.0], len(streams)), (np.tile(count, 2), np.concatenate([source, target]))),
        shape=(len(streams), nodes),  # also where the last nodes have none of these streams
    )
    bounds = np.zeros((nodes, 2))
    bounds[:, 1] = earliest
    bounds[source, 1] = np.inf
    result = linprog(
        weights,
        A_ub=matrix.tocsr(),
        b_ub=-least,
        bounds=bounds,
        method="highs",
    )
    if not result.success:
        raise AssertionError(f"the sizing LP has a solution by construction: {result.message}")
    starts = np.rint(result.x).astype(np.int64)
    assert (starts[target] - starts[source] >= least).all(), "a basic solution of differences is integral"
    return starts
