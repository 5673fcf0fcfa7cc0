"""A compiled family of graphs: one structure, one hardware, any number of tokens up to the largest."""

from collections.abc import Callable
from dataclasses import dataclass, field

from streamgen.errors import GraphError
from streamgen.fifo.sizing import Schedule, Strategy
from streamgen.graph import Graph
from streamgen.lower.passes import insert_converters, insert_forks, size_fifos

__all__ = ["Program"]


@dataclass(frozen=True, eq=False)
class Program:
    """graph: the finished graph of the largest run; at(tiles): the one of a run of fewer token tiles.

    token_lanes: tokens of a tile. max_tiles: of the largest run. schedules: of the corner runs, the
    largest first.
    """

    graph: Graph
    token_lanes: int
    max_tiles: int
    build: Callable[[int], Graph] = field(repr=False)
    schedules: tuple[Schedule, ...] = ()

    @classmethod
    def finish(
        cls, build: Callable[[int], Graph], token_lanes: int, max_tiles: int, strategy: Strategy
    ) -> "Program":
        """Insert forks and converters and size the FIFOs. build(tiles) gives the unfinished graphs."""
        largest = insert_converters(insert_forks(build(max_tiles)))
        unsized = cls(largest, token_lanes, max_tiles, build)
        corners = [largest] if max_tiles == 1 else [largest, unsized.at(1)]
        sized, schedules = size_fifos(corners, strategy)
        return cls(sized, token_lanes, max_tiles, build, tuple(schedules))

    def at(self, tiles: int) -> Graph:
        """The finished graph of a run of `tiles` token tiles, 1 to max_tiles."""
        if not 1 <= tiles <= self.max_tiles:
            raise ValueError(f"tiles is {tiles}; 1 to {self.max_tiles} are allowed")
        if tiles == self.max_tiles:
            return self.graph
        graph = insert_converters(insert_forks(self.build(tiles), self.graph), self.graph)
        for node in graph.nodes:
            if node.params != self.graph.node(node.name).params:
                raise GraphError(
                    f"node {node.name!r} is other hardware for {tiles} token tiles than for the largest run"
                )
        return graph.with_depths(
            {(e.source, e.target): e.depth for e in self.graph.edges if e.depth is not None}
        )
