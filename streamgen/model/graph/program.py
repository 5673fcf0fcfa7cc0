"""A family of graphs with one structure and one hardware, for runs of any number of tokens at any
position, with any number of rows of a source."""

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
    """A run that leaves out some work: some nodes have other bounds.

    bounds: by node, the changed bounds, in every phase in which the node works. resting: nodes and phases
    without work in such a run.
    """

    bounds: Mapping[str, Bounds]
    resting: frozenset[tuple[str, int]]

    @classmethod
    def of(cls, graph: Graph, bounds: Mapping[str, Bounds]) -> Variant:
        """The variant that follows from these bounds. A node without input rests too, and so does a node
        whose targets all rest, unless the run waits for it. GraphError if a node sends to a node that rests,
        and for a node that is not in the graph."""
        others = {name: cls(bounds, frozenset())._node(graph.node(name)) for name in bounds}
        links = [
            ((edge.source.node, sent), (edge.target.node, read), edge)
            for edge in graph.edges
            for sent, read in graph.pairs(edge)
        ]
        ends = defaultdict[_Execution, list[int]](list)  # numbers of the links that begin or end there
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
            for execution in (source, target):
                if execution in resting:
                    fresh = [number for number in ends[execution] if number not in silent]
                    silent.update(fresh)
                    waiting += fresh
        for number in sorted(silent.difference(dropped)):
            source, (name, phase), edge = links[number]
            if source not in resting:
                raise GraphError(f"{name!r} rests in phase {phase} of a variant; {edge.name} does not")
        return cls(bounds, frozenset(resting))

    def __call__(self, graph: Graph) -> Graph:
        """A graph of the family, changed to this variant of its run."""
        others = {*self.bounds, *(name for name, _ in self.resting)}
        return replace(graph, nodes=tuple(self._node(n) if n.name in others else n for n in graph.nodes))

    def _node(self, node: Node) -> Node:
        changed = self.bounds.get(node.name, {})
        bounds = tuple(
            None
            if phase_bounds is None or (node.name, phase) in self.resting
            else {**phase_bounds, **changed}
            for phase, phase_bounds in enumerate(node.bounds)
        )
        return replace(node, bounds=bounds)


@dataclass(frozen=True)
class Regions:
    """The places of nodes on a board. order: names of its regions, in the order in which they are adjacent.
    slrs: region of each block, by name; blocks that are not named share one place."""

    order: tuple[str, ...] = ()
    slrs: Mapping[str, str] = field(default_factory=dict)

    def crossings(self, graph: Graph) -> dict[str, int]:
        """The number of region boundaries that an edge crosses, by the edge's name; edges that cross none are
        left out."""
        crossed = {}
        for edge in graph.edges:
            ends = [self.slrs.get(port.node) for port in (edge.source, edge.target)]
            if None not in ends and ends[0] != ends[1]:
                first, last = (self.order.index(end) for end in ends if end is not None)
                crossed[edge.name] = abs(first - last)
        return crossed


@dataclass(frozen=True, eq=False)
class Program:
    """A program for the hardware.

    graph: the finished graph of the largest run; its params and FIFO depths are the hardware. token_lanes:
    tokens of a tile. max_tiles: token tiles of the largest run. smaller: returns the finished graph of a run
    of fewer tiles, at another position, or with fewer rows of a source, with equal params and other bounds.
    context: the positions of a run are below it; 0 if nothing depends on positions. source: most rows of the
    source of a text; 0 for none. variants: runs that leave out some work, by name.
    regions: the places of nodes, if they were chosen before FIFOs were sized. whole: all tokens of a sequence
    belong to one run.
    """

    graph: Graph
    token_lanes: int = 1
    max_tiles: int = 1
    smaller: Callable[..., Graph] | None = field(default=None, repr=False)
    context: int = 0
    source: int = 0
    variants: Mapping[str, Variant] = field(default_factory=dict)
    regions: Regions = field(default_factory=Regions)
    whole: bool = False

    def at(
        self, tiles: int, position: int = 0, variant: str | None = None, source: int | None = None
    ) -> Graph:
        """The graph of a run of `tiles` token tiles with the first token at `position`. source: rows of the
        source; None for the most. Raises ValueError unless 1 <= tiles <= max_tiles, the last token is inside
        the context, and 1 <= source <= the most, if there is a source."""
        if not 1 <= tiles <= self.max_tiles:
            raise ValueError(f"tiles is {tiles}; 1 to {self.max_tiles} are allowed")
        last = self.last_position(tiles)
        if not 0 <= position <= last:
            raise ValueError(f"position is {position}; 0 to {last} are allowed for {tiles} token tiles")
        rows = self.source if source is None else source
        if not min(1, self.source) <= rows <= self.source:
            raise ValueError(f"source has {rows} rows; {min(1, self.source)} to {self.source} are allowed")
        graph = self.graph
        if self.smaller is not None and (tiles, position, rows) != (self.max_tiles, last, self.source):
            graph = self.smaller(tiles, position, *([rows] if self.source else []))
        return graph if variant is None else self.variants[variant](graph)

    def last_position(self, tiles: int) -> int:
        """The largest position of the first token of a run."""
        return max(0, self.context - tiles * self.token_lanes)
