"""Seconds of the FIFO-sizing LP on large graphs.

    python benchmarks/fifo_sizing.py

Random layered graphs: node i reads one to three of the 40 nodes before it, every stream has 64 tokens in
bursts of random length and gap. `as soon` is the storage in bits when every node starts as soon as its inputs
allow at its own rate, which is what the LP lowers.
"""

import time

import numpy as np

from streamgen.fifo.sizing import Stream, depth_at, schedule

TOKENS = 64


def random_graph(rng: np.random.Generator, edges: int) -> tuple[list[str], list[Stream]]:
    """Names of the nodes in topological order, and the streams between them."""
    nodes, streams = ["n0"], []
    while len(streams) < edges:
        name = f"n{len(nodes)}"
        near = nodes[-40:]
        for source in rng.choice(near, min(int(rng.integers(1, 4)), len(near)), replace=False):
            streams.append(
                Stream(str(source), name, int(rng.choice([24, 48, 280, 512])), bursts(rng), bursts(rng))
            )
        nodes.append(name)
    return nodes, streams


def bursts(rng: np.random.Generator) -> np.ndarray:
    """Cycles of the tokens: bursts of 1 to 16 tokens, gaps of 0 to 40 cycles."""
    length, gap = int(rng.integers(1, 17)), int(rng.integers(0, 41))
    index = np.arange(TOKENS)
    return int(rng.integers(1, 60)) + index + index // length * gap


def as_soon(nodes: list[str], streams: list[Stream]) -> int:
    """Bits of all FIFOs when every node starts as soon as its inputs allow."""
    starts = dict.fromkeys(nodes, 0)
    for stream in streams:  # grouped by target, targets in topological order
        least = int(np.max(stream.produced - stream.consumed)) + stream.latency
        starts[stream.target] = max(starts[stream.target], starts[stream.source] + least)
    return sum(s.bits * depth_at(s, starts[s.target] - starts[s.source]) for s in streams)


def main() -> None:
    """Print the table."""
    print(f"{'edges':>6} {'nodes':>6} {'strategy':>12} {'seconds':>8} {'bits':>12} {'as soon':>12}")
    for edges in (2000, 10_000):
        nodes, streams = random_graph(np.random.default_rng(edges), edges)
        soon = as_soon(nodes, streams)
        for strategy in ("normal", "conservative"):
            start = time.perf_counter()
            found = schedule(nodes, streams, strategy)
            seconds = time.perf_counter() - start
            bits = sum(s.bits * d for s, d in zip(streams, found.depths, strict=True))
            print(f"{len(streams):6} {len(nodes):6} {strategy:>12} {seconds:8.2f} {bits:12,} {soon:12,}")


if __name__ == "__main__":
    main()
