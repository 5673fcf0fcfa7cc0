"""A family of graphs: one structure, one hardware, any number of tokens up to the largest."""

from collections.abc import Callable
from dataclasses import dataclass, field

from streamgen.graph.ir import Graph

__all__ = ["Program"]


@dataclass(frozen=True, eq=False)
class Program:
    """What is emitted and run.

    graph: the finished graph of the largest run; its params and FIFO depths are the hardware.
    token_lanes: tokens of a tile. max_tiles: token tiles of the largest run.
    smaller: gives the finished graph of a run of fewer tiles; equal params, other bounds.
    """

    graph: Graph
    token_lanes: int = 1
    max_tiles: int = 1
    smaller: Callable[[int], Graph] | None = field(default=None, repr=False)

    def at(self, tiles: int) -> Graph:
        """The graph of a run of `tiles` token tiles. ValueError unless 1 <= tiles <= max_tiles."""
        if not 1 <= tiles <= self.max_tiles:
            raise ValueError(f"tiles is {tiles}; 1 to {self.max_tiles} are allowed")
        if tiles == self.max_tiles or self.smaller is None:
            return self.graph
        return self.smaller(tiles)
