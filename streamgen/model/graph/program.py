"""A family of graphs: one structure, one hardware, runs of any number of tokens at any position."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from streamgen.base.errors import GraphError
from streamgen.contract import Bounds, completes
from streamgen.model.graph.ir import Graph, Node

_Execution = tuple[str, int]  # a node in a phase


@dataclass(frozen=True, eq=False)
class Variant:
    """A run that leaves something out, by other bounds of some nodes.

    bounds: by node, those that are others, in every phase in which it is at work. resting: nodes and phases
    that have nothing to do then.
    """

    bounds: Mapping[str, Bounds]
    resting: frozenset[tuple[str, int]]

    @classmethod
    def of(cls, graph: Graph, bounds: Mapping[str, Bounds]) -> Variant:
        """What follows from those bounds: who gets nothing rests, too, and who would send only to those that
        rest, unless a run waits for it. GraphError when somebody sends to a node that rests, and for a node
        that the graph has not."""
        others = {name: cls(bounds, frozenset())._node(graph.node(name)) for name in bounds}
        links = [
            ((edge.source.node, sent), (edge.target.node, read), edge)
            for edge in graph.edges
            for sent, read in graph.pairs(edge)
        ]
        ends = defaultdict[_Execution, list[int]](list)  # numbers of the links that end or begin there
        sends = Counter[_Execution]()
        for number, (source, target, _) in enumerate(links):
            ends[source].append(number)
            ends[target].append(number)
            sends[source] += 1
        dropped = [
            number
            for number, ((name, sent), _, edge) in enumerate(links)
            if name in others and edge.source.name not in others[name].outputs(sent)
        ]
        silent, resting, waiting = set(dropped), set[_Execution](), dropped.copy()
        while waiting:
            source, target, _ = links[waiting.pop()]
            sends[source] -= 1
            idle = not sends[source] and source[0] not in others
            if idle and not completes(graph.node(source[0]).params):
                resting.add(source)
            resting.add(target)
            for one in (source, target):
                if one in resting:
                    fresh = [number for number in ends[one] if number not in silent]
                    silent.update(fresh)
                    waiting += fresh
        for number in sorted(silent.difference(dropped)):
            source, (name, phase), edge = links[number]
            if source not in resting:
                raise GraphError(f"{name!r} rests in phase {phase} of a variant; {edge.name} does not")
        return cls(bounds, frozenset(resting))

    def __call__(self, graph: Graph) -> Graph:
        """A graph of the family as this variant of its run."""
        others = {*self.bounds, *(name for name, _ in self.resting)}
        return replace(graph, nodes=tuple(self._node(n) if n.name in others else n for n in graph.nodes))

    def _node(self, node: Node) -> Node:
        changed = self.bounds.get(node.name, {})
        bounds = tuple(
            None if one is None or (node.name, phase) in self.resting else {**one, **changed}
            for phase, one in enumerate(node.bounds)
        )
        return replace(node, bounds=bounds)


@dataclass(frozen=True)
class Regions:
    """Where nodes lie on a board. order: names of its regions, as they lie beside one another. slrs: region
    of each block, by name; blocks that are not named lie together."""

    order: tuple[str, ...] = ()
    slrs: Mapping[str, str] = field(default_factory=dict)

    def crossings(self, graph: Graph) -> dict[str, int]:
        """Boundaries of regions that an edge crosses, by its name, where it crosses any."""
        found = {}
        for edge in graph.edges:
            ends = [self.slrs.get(port.node) for port in (edge.source, edge.target)]
            if None not in ends and ends[0] != ends[1]:
                first, last = (self.order.index(end) for end in ends if end is not None)
                found[edge.name] = abs(first - last)
        return found


@dataclass(frozen=True, eq=False)
class Program:
    """What is emitted and run.

    graph: the finished graph of the largest run; its params and FIFO depths are the hardware.
    token_lanes: tokens of a tile. max_tiles: token tiles of the largest run.
    smaller: gives the finished graph of a run of fewer tiles, or at another position; equal params, other
    bounds. context: positions of the tokens of a run end below it; 0 when nothing depends on positions.
    variants: runs that leave something out, by name. regions: where nodes lie, where that was settled before
    FIFOs were sized. whole: all tokens of a sequence belong to one run.
    """

    graph: Graph
    token_lanes: int = 1
    max_tiles: int = 1
    smaller: Callable[[int, int], Graph] | None = field(default=None, repr=False)
    context: int = 0
    variants: Mapping[str, Variant] = field(default_factory=dict)
    regions: Regions = field(default_factory=Regions)
    whole: bool = False

    def at(self, tiles: int, position: int = 0, variant: str | None = None) -> Graph:
        """The graph of a run of `tiles` token tiles, the first token at `position`. ValueError unless
        1 <= tiles <= max_tiles and the last token is inside the context."""
        if not 1 <= tiles <= self.max_tiles:
            raise ValueError(f"tiles is {tiles}; 1 to {self.max_tiles} are allowed")
        last = self.last_position(tiles)
        if not 0 <= position <= last:
            raise ValueError(f"position is {position}; 0 to {last} are allowed for {tiles} token tiles")
        graph = self.graph
        if self.smaller is not None and (tiles, position) != (self.max_tiles, last):
            graph = self.smaller(tiles, position)
        return graph if variant is None else self.variants[variant](graph)

    def last_position(self, tiles: int) -> int:
        """Where the first token of a run may be at most."""
        return max(0, self.context - tiles * self.token_lanes)
