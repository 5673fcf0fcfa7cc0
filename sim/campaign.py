"""FIFO sizing tried on random graphs in emitted Verilog: are promises kept, and could FIFOs be smaller?

    cases = random_cases(300)
    models = NetworkModels(case.graph for case in cases)
    for case in cases:
        trial = Trial(models, case, "conservative")
        trial.problems(), trial.ratio()

A third of the graphs are small, with two to four nodes, the others have up to 40; half of them run in two
phases with other curves and token counts. Tokens in Verilog are 32 bits wide but at converters, so that
there are few kinds to compile; the widths that FIFOs are weighed with are drawn at random. No cycle depends
on them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

from sim.network_models import ModelRun, NetworkModels
from sim.random_graphs import boundary, boundary_tokens, golden_tokens, random_graph, streams
from streamgen.compiler.lower.passes import run_nodes
from streamgen.fifo.curves import NodeStream
from streamgen.fifo.sizing import Sizing, Strategy, size
from streamgen.model.graph import Graph
from streamgen.testing.bench import Stalls
from streamgen.testing.kernel import descriptor_word

__all__ = ["EXHAUSTIVE_EDGES", "Case", "Trial", "random_cases"]

EXHAUSTIVE_EDGES = 5
_WIDTHS = (1, 8, 24, 48, 280)


@dataclass(frozen=True)
class Case:
    """A graph, and the seed of its tokens and stalls; widths: of the tokens of every edge, for sizing."""

    graph: Graph
    seed: int
    widths: tuple[int, ...]


def random_cases(count: int, most_nodes: int = 40, seed: int = 0) -> list[Case]:
    """As many cases, always the same for a seed."""
    cases = []
    for number in range(1000 * seed, 1000 * seed + count):
        random = Random(number)
        nodes = random.randint(2, 4) if number % 3 == 0 else random.randint(5, most_nodes)
        graph = random_graph(random, nodes, phases=1 + number % 2, widths=(32,))
        cases.append(Case(graph, number, tuple(random.choice(_WIDTHS) for _ in graph.edges)))
    return cases


class Trial:
    """A case and the depths that a strategy gives it."""

    def __init__(self, models: NetworkModels, case: Case, strategy: Strategy) -> None:
        self._models, self._case, self._strategy = models, case, strategy
        self._graph = case.graph
        self._phases = range(self._graph.phases)
        random = Random(case.seed)
        self._inputs = [boundary_tokens(self._graph, phase, random) for phase in self._phases]

    @cached_property
    def sizing(self) -> Sizing:
        """What `streamgen.fifo.sizing` says; edges first, then the streams at the boundary."""
        runs: list[list[NodeStream | None]] = []
        for phase in self._phases:
            found = streams(self._graph, phase)
            inner = zip(found, self._case.widths, strict=False)
            runs.append([*(replace(s, bits=bits) for s, bits in inner), *found[len(self._graph.edges) :]])
        return size(run_nodes(self._graph), runs, self._strategy)

    @property
    def depths(self) -> list[int]:
        """Of the edges of the graph."""
        return list(self.sizing.depths[: len(self._graph.edges)])

    def storage(self, depths: Sequence[int]) -> int:
        """Bits of the FIFOs."""
        return sum(bits * depth for bits, depth in zip(self._case.widths, depths, strict=True))

    def run(
        self, phase: int, depths: Sequence[int], stalls: Stalls | None = None, deadline: int | None = None
    ) -> ModelRun:
        """A phase with depths of one's own."""
        inputs = self._inputs[phase]
        return self._models.run(self._graph, phase, inputs, depths, stalls=stalls, deadline=deadline)

    def pins(self, phase: int) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """What enters `sim.network`'s component in a phase, descriptors included, and what shall leave."""
        golden = golden_tokens(self._graph, phase, self._inputs[phase])
        ends = {port: f"{port.node}_{port.name}" for port in boundary(self._graph)}
        inputs = {ends[port]: list(tokens) for port, tokens in self._inputs[phase].items()}
        for node in self._graph.nodes:
            bounds = node.bounds[phase]
            assert bounds is not None
            inputs[f"{node.name}_i_descriptor"] = [descriptor_word(node.params, bounds)]
        return inputs, {ends[port]: golden[port] for port in ends if port not in self._inputs[phase]}

    def problems(self) -> list[str]:
        """What is wrong with the runs: a deadlock, a token too late, too many inside, a wrong result."""
        found = []
        for phase in self._phases:
            golden = golden_tokens(self._graph, phase, self._inputs[phase])
            chances = ((0.0, 0.0), (0.3, 0.3), (0.6, 0.0), (0.0, 0.6))
            for sources, sinks in chances:
                stalls = Stalls(seed=self._case.seed, sources=sources, sinks=sinks)
                run = self.run(phase, self.depths, stalls)
                label = f"seed {self._case.seed}, {self._strategy}, phase {phase}, {stalls}"
                if run.ended:
                    found.append(f"{label}: {run.ended}")
                    continue
                found += [
                    f"{label}: {port} differs from golden"
                    for port, tokens in run.tokens.items()
                    if tokens != golden[port]
                ]
                found += [
                    f"{label}: {edge.name} holds {link.peak}, its depth is {depth}"
                    for edge, link, depth in zip(self._graph.edges, run.links, self.depths, strict=True)
                    if link.peak > depth
                ]
                if not sources and not sinks:
                    found += [f"{label}: {name} is late" for name in self._late(run, phase)]
        return found

    def _late(self, run: ModelRun, phase: int) -> list[str]:
        """Streams with a token later than scheduled, those at the boundary included."""
        schedule = self.sizing.schedules[phase]
        found = streams(self._graph, phase)
        names = [edge.name for edge in self._graph.edges]
        times = [(link.sent, link.taken) for link in run.links]
        for port in boundary(self._graph):
            names.append(str(port))
            times.append((run.cycles[port],) * 2)
        return [
            name
            for name, stream, (sent, taken), produced, consumed in zip(
                names, found, times, schedule.produced, schedule.consumed, strict=False
            )
            if (stream.source is not None and (sent > produced).any())
            or (stream.target is not None and (taken > consumed).any())
        ]

    def keeps(self, depths: Sequence[int]) -> bool:
        """Whether all phases keep their promise with other depths.

        That is the finishing cycle for `conservative`, the time of every token for `normal`.
        """
        for phase in self._phases:
            run = self.run(phase, depths, deadline=self.sizing.schedules[phase].finish - 1)
            if run.ended or (self._strategy == "normal" and self._late(run, phase)):
                return False
        return True

    def ratio(self) -> float:
        """Bits of the FIFOs against the fewest with which the promise is kept.

        The fewest are found among all depths in a graph of up to EXHAUSTIVE_EDGES edges. In a larger one
        FIFOs lose tokens one by one for as long as any can: 1 says that no single FIFO can lose a token.
        """
        if not self.depths:
            return 1.0
        search = self._smallest if len(self.depths) <= EXHAUSTIVE_EDGES else self._descended
        return self.storage(self.depths) / search()

    def _descended(self) -> int:
        depths = self.depths
        changed = True
        while changed:
            changed = False
            for k in sorted(range(len(depths)), key=lambda k: -self._case.widths[k]):
                while depths[k] > 1 and self.keeps([*depths[:k], depths[k] - 1, *depths[k + 1 :]]):
                    depths[k] -= 1
                    changed = True
        return self.storage(depths)

    def _smallest(self) -> int:
        most = [
            max(len(stream.produced) for stream in pair)
            for pair in zip(*(streams(self._graph, phase) for phase in self._phases), strict=True)
        ][: len(self.depths)]
        least = [self._least(most, k) for k in range(len(most))]
        order = sorted(range(len(most)), key=lambda k: -self._case.widths[k])
        best = self.storage(self.depths)
        stack: list[tuple[int, list[int]]] = [(0, most)]
        while stack:
            place, depths = stack.pop()
            spent = self.storage(least) + sum(
                self._case.widths[k] * (depths[k] - least[k]) for k in order[:place]
            )
            if spent >= best:
                continue
            if place == len(order):
                best = spent
                continue
            k = order[place]
            low = self._least(depths, k, least[k])
            stack += [(place + 1, [*depths[:k], d, *depths[k + 1 :]]) for d in range(most[k], low - 1, -1)]
        return best

    def _least(self, depths: Sequence[int], k: int, low: int = 1) -> int:
        """The smallest depth of FIFO k, the others as given, with which the promise is kept."""
        high = depths[k]
        while low < high:
            trial = (low + high) // 2
            if self.keeps([*depths[:k], trial, *depths[k + 1 :]]):
                high = trial
            else:
                low = trial + 1
        return high
