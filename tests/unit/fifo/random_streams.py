"""Random bursty curves, graphs of streams, and the smallest depths by brute force."""

from collections.abc import Sequence

import numpy as np

from streamgen.fifo.curves import NodeStream
from streamgen.fifo.events import SelfTimedRun

__all__ = ["bursts", "random_streams", "smallest", "storage", "unlimited_finish"]


def bursts(rng: np.random.Generator, tokens: int) -> np.ndarray:
    """Rising cycles: up to three pieces of bursts, each with its own length, period and gap."""
    ends = np.sort(rng.integers(0, tokens + 1, int(rng.integers(0, 3))))
    cycles, now = [], int(rng.integers(1, 20))
    for count in np.diff([0, *ends, tokens]):
        length, gap = int(rng.integers(1, 13)), int(rng.integers(0, 30))
        period = int(rng.integers(1, 4)) if rng.random() < 0.5 else 1
        for k in range(count):
            cycles.append(now)
            now += period + (gap if k % length == length - 1 else 0)
    return np.array(cycles, np.int64)


def random_streams(rng: np.random.Generator, nodes: int) -> tuple[list[str], list[NodeStream]]:
    """Nodes in topological order; each but the first reads one to three of the six before it."""
    names = [f"n{i}" for i in range(nodes)]
    streams = []
    for v in range(1, nodes):
        near = np.arange(max(0, v - 6), v)
        for u in rng.choice(near, min(len(near), int(rng.integers(1, 4))), replace=False):
            tokens = int(rng.integers(4, 65))
            produced = bursts(rng, tokens) + int(rng.integers(0, 60))
            bits = int(rng.choice([1, 8, 24, 48, 280]))
            streams.append(NodeStream(names[u], names[v], bits, produced, bursts(rng, tokens)))
    return names, streams


def storage(streams: Sequence[NodeStream], depths: Sequence[int]) -> int:
    """Bits in all FIFOs."""
    return sum(stream.bits * depth for stream, depth in zip(streams, depths, strict=True))


def unlimited_finish(nodes: Sequence[str], streams: Sequence[NodeStream]) -> int:
    """Cycles of a run whose FIFOs have no limit and take a cycle."""
    return SelfTimedRun(nodes, streams, [1] * len(streams)).finish


def ends(nodes: Sequence[str], streams: Sequence[NodeStream], depths: Sequence[int], finish: int) -> bool:
    """Whether a run with these depths takes at most `finish` cycles."""
    run = SelfTimedRun(nodes, streams, [1] * len(streams))
    for k, depth in enumerate(depths):
        run.limit(k, depth)
    return run.settle(finish)


def smallest(
    nodes: Sequence[str], streams: Sequence[NodeStream], finish: int, least: Sequence[int], below: int
) -> int:
    """Least storage of all depths that end in time, at most `below`: all that could be less are tried.

    least: depths that each FIFO needs when the others have no limit.
    """
    most = [len(stream.produced) for stream in streams]
    order = sorted(range(len(streams)), key=lambda k: -streams[k].bits)
    best = below
    stack = [(0, list(most), 0)]
    while stack:
        place, depths, spent = stack.pop()
        if spent + sum(streams[k].bits * least[k] for k in order[place:]) >= best:
            continue
        if place == len(order):
            best = spent
            continue
        k = order[place]
        for depth in range(least[k], most[k] + 1):
            trial = [*depths]
            trial[k] = depth
            if ends(nodes, streams, trial, finish):
                stack.append((place + 1, trial, spent + streams[k].bits * depth))
    return best
