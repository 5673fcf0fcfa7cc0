"""A group of kernels, built as far as its cost needs it: without placement, FIFO depths and descriptors."""

from dataclasses import fields
from fractions import Fraction
from functools import cached_property, reduce
from operator import add

from streamgen.compiler.explore.bound import Stage, least_cycles, phases, stages
from streamgen.compiler.explore.estimate import GAP
from streamgen.compiler.plan.grouping import GroupPlan
from streamgen.contract import multipliers
from streamgen.contract.cost import Resources
from streamgen.fifo.queue import QueueParams
from streamgen.model.graph import Graph, Node

LINK = 2  # least depth of a FIFO whose depth is not fixed


class Sketch:
    """A group, built up to its converters: without placement, FIFO depths and descriptors."""

    def __init__(self, part: GroupPlan) -> None:
        self._part, self._budget = part, part.budget
        self._rate: Fraction = self._budget.board.hbm.beats_per_cycle(self._budget.clock_mhz)
        self._largest = part.converted

    @cached_property
    def resources(self) -> Resources:
        """Resources of kernels, converters and FIFOs, without the blocks around the graph."""
        graph = self._largest
        nodes = [_cost(node) for node in graph.nodes]
        fifos = []
        for edge in graph.edges:
            bits = [t.token_bits for p in range(graph.phases) if (t := graph.itensor(edge, p)) is not None]
            fifos.append(QueueParams(bits=max(bits), depth=edge.depth or LINK).resources)
        return reduce(add, (*nodes, *fifos))

    def cycles(self, tokens: int, position: int) -> float:
        """Least cycles of a pass: the sum over its phases of the largest of the cycles of memory, of
        products, and of the slowest operation."""
        graph = self._graph(tokens, position)
        if graph.phases == 1:
            walked: list[tuple[Stage, int]] = [(stage, 1) for stage in stages(graph, tokens)]
            least = least_cycles([stage for stage, _ in walked], self._rate) + GAP * len(walked)
            return max(least, float(_longest(graph, 0)))
        return sum(
            walks * (max(stage.cycles(self._rate), _longest(graph, phase)) + GAP)
            for phase, (stage, walks) in enumerate(phases(graph))
        )

    def work(self, tokens: int, position: int) -> tuple[float, float]:
        """The products of a pass, and the bits that it reads from and writes to memory."""
        walked = phases(self._graph(tokens, position))
        return (
            float(sum(walks * stage.products for stage, walks in walked)),
            8.0 * sum(walks * stage.bytes for stage, walks in walked),
        )

    def _graph(self, tokens: int, position: int) -> Graph:
        plan = self._part.derivation.plan
        tokens = -(-tokens // plan.token_lanes) * plan.token_lanes
        return self._part.derivation.graph(tokens, min(position, max(0, plan.context - tokens)))


def _longest(graph: Graph, phase: int) -> int:
    """Cycles of the slowest operation of a phase, without matmuls and moves."""
    return max(
        (
            node.params.cost(bounds).cycles
            for node in graph.nodes
            if (bounds := node.bounds[phase]) is not None and not multipliers(node.params)
        ),
        default=0,
    )


def _cost(node: Node) -> Resources:
    bounds = next(bounds for bounds in node.bounds if bounds is not None)
    return node.params.cost(bounds).resources


def larger(a: Resources, b: Resources) -> Resources:
    """For each resource, the larger of two amounts."""
    return Resources(**{f.name: max(getattr(a, f.name), getattr(b, f.name)) for f in fields(Resources)})
