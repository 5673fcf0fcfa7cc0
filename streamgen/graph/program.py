"""A family of graphs: one structure, one hardware, runs of any number of tokens at any position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from streamgen.contract import Bounds
from streamgen.errors import GraphError
from streamgen.graph.ir import Edge, Graph, Node

__all__ = ["Program", "Regions", "Variant"]


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
        """What follows from those bounds: who gets nothing rests, too. GraphError when somebody still sends
        to a node that rests, when a back edge would carry less, and for a node that the graph has not."""
        resting: set[tuple[str, int]] = set()
        others = {name: cls(bounds, frozenset())._node(graph.node(name)) for name in bounds}

        def sends(edge: Edge, phase: int) -> bool:
            source = edge.source.node
            node = others.get(source) or graph.node(source)
            return (source, phase) not in resting and edge.source.name in node.outputs(phase)

        for node in graph.nodes:  # in topological order
            for phase in range(graph.phases):
                read = [e for e in graph.inputs_of(node.name) if e.target.name in node.inputs(phase)]
                silent = [edge for edge in read if not edge.back and not sends(edge, phase)]
                if not silent:
                    continue
                resting.add((node.name, phase))
                if still := [edge.name for edge in read if edge not in silent]:
                    raise GraphError(
                        f"{node.name!r} rests in phase {phase} of a variant; {still[0]} does not"
                    )
        for edge in graph.edges:
            for phase in range(graph.phases):
                if edge.back and graph.itensor(edge, phase) is not None and not sends(edge, phase):
                    raise GraphError(f"back edge {edge.name} would rest in phase {phase} of a variant")
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
