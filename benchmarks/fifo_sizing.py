"""Seconds of FIFO sizing on large graphs, and how much it saves; how much storage more it takes than needed.

    python benchmarks/fifo_sizing.py [graphs]

Random layered graphs: node i reads one to three of the 40 nodes before it, every stream has 64 tokens in
bursts of random length and gap. `as soon` is the storage in bits when every node starts as soon as its inputs
allow at its own rate. `bound`: seconds that it may take on an idle core.

Then smaller graphs, sized by `conservative` from FIFOs without limit and from what they hold at the starts of
the linear program (`rates`, which is `free` where these are too late for the end of the run): bits of FIFOs.

Then graphs of the campaign (`sim.campaign`, 60 of them or as many as asked for) in emitted Verilog: broken
promises, and bits of the FIFOs against the fewest that keep the promise, found among all depths in graphs of
up to five FIFOs, and token by token in larger ones.
"""

import sys
import time

import numpy as np

from sim.campaign import EXHAUSTIVE_EDGES, Case, Trial, random_cases
from sim.network_models import NetworkModels
from streamgen.fifo.curves import NodeStream
from streamgen.fifo.sizing import Begin, Strategy, size

STRATEGIES: list[Strategy] = ["conservative", "normal"]
BEGINS: list[Begin] = ["free", "rates"]
TOKENS = 64
BOUNDS = {2000: 0.5, 10_000: 5.0}  # seconds on an idle core, by edges


def random_graph(rng: np.random.Generator, edges: int) -> tuple[list[str], list[NodeStream]]:
    """Names of the nodes in topological order, and the streams between them."""
    nodes, streams = ["n0"], []
    while len(streams) < edges:
        name = f"n{len(nodes)}"
        near = nodes[-40:]
        for source in rng.choice(near, min(int(rng.integers(1, 4)), len(near)), replace=False):
            streams.append(
                NodeStream(str(source), name, int(rng.choice([24, 48, 280, 512])), bursts(rng), bursts(rng))
            )
        nodes.append(name)
    return nodes, streams


def bursts(rng: np.random.Generator) -> np.ndarray:
    """Cycles of the tokens: bursts of 1 to 16 tokens, gaps of 0 to 40 cycles."""
    length, gap = int(rng.integers(1, 17)), int(rng.integers(0, 41))
    index = np.arange(TOKENS)
    return int(rng.integers(1, 60)) + index + index // length * gap


def as_soon(nodes: list[str], streams: list[NodeStream]) -> int:
    """Bits of all FIFOs when every node starts as soon as its inputs allow."""
    starts = dict.fromkeys(nodes, 0)
    total = 0
    for stream in streams:  # grouped by target, targets in topological order
        least = int(np.max(stream.produced - stream.consumed)) + 1
        starts[stream.target] = max(starts[stream.target], starts[stream.source] + least)
    for stream in streams:
        consumed = stream.consumed + starts[stream.target] - starts[stream.source]
        inside = np.searchsorted(stream.produced, consumed, side="right") - np.arange(TOKENS)
        total += stream.bits * max(1, int(inside.max()))
    return total


def main() -> None:
    """Print the table."""
    print(
        f"{'edges':>6} {'nodes':>6} {'strategy':>12} {'seconds':>8} {'bound':>6} {'bits':>12} {'as soon':>12}"
    )
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    for edges, bound in BOUNDS.items():
        nodes, streams = random_graph(np.random.default_rng(edges), edges)
        soon = as_soon(nodes, streams)
        for strategy in STRATEGIES:
            start = time.perf_counter()
            depths = size(nodes, [streams], strategy).depths
            seconds = time.perf_counter() - start
            bits = sum(s.bits * d for s, d in zip(streams, depths, strict=True))
            graph = f"{len(streams):6} {len(nodes):6} {strategy:>12}"
            print(f"{graph} {seconds:8.2f} {bound:6.1f} {bits:12,} {soon:12,}")
    begins()
    campaign(random_cases(count))


def begins() -> None:
    """Print how the search ends by what it begins with."""
    print(f"\n{'edges':>6} {'free':>12} {'rates':>12} {'rates / free':>13}")
    for edges in (50, 200, 500):
        for seed in range(4):
            nodes, streams = random_graph(np.random.default_rng((edges, seed)), edges)
            found: list[int] = []
            for begin in BEGINS:
                depths = size(nodes, [streams], "conservative", begin=begin).depths
                found.append(sum(s.bits * d for s, d in zip(streams, depths, strict=True)))
            print(f"{len(streams):6} {found[0]:12,} {found[1]:12,} {found[1] / found[0]:13.3f}")


def campaign(cases: list[Case]) -> None:
    """Print how far depths are from the fewest."""
    models = NetworkModels(case.graph for case in cases)
    print(f"\n{'graphs':>6} {'edges':>6} {'strategy':>12} {'broken':>7} {'median':>7} {'worst':>7}")
    for few in (True, False):
        chosen = [case for case in cases if (len(case.graph.edges) <= EXHAUSTIVE_EDGES) == few]
        edges = f"<= {EXHAUSTIVE_EDGES}" if few else f"> {EXHAUSTIVE_EDGES}"
        for strategy in STRATEGIES:
            trials = [Trial(models, case, strategy) for case in chosen]
            broken = sum(len(trial.problems()) for trial in trials)
            ratios = [trial.ratio() for trial in trials]
            figures = f"{broken:7} {np.median(ratios):7.3f} {max(ratios):7.3f}"
            print(f"{len(trials):6} {edges:>6} {strategy:>12} {figures}")


if __name__ == "__main__":
    main()
