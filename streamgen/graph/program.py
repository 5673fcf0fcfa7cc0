"""A family of graphs: one structure, one hardware, runs of any number of tokens at any position."""

from collections.abc import Callable
from dataclasses import dataclass, field

from streamgen.graph.ir import Graph

__all__ = ["Program"]


@dataclass(frozen=True, eq=False)
class Program:
    """What is emitted and run.

    graph: the finished graph of the largest run; its params and FIFO depths are the hardware.
    token_lanes: tokens of a tile. max_tiles: token tiles of the largest run.
    smaller: gives the finished graph of a run of fewer tiles, or at another position; equal params, other
    bounds. context: positions of the tokens of a run end below it; 0 when nothing depends on positions.
    """

    graph: Graph
    token_lanes: int = 1
    max_tiles: int = 1
    smaller: Callable[[int, int], Graph] | None = field(default=None, repr=False)
    context: int = 0

    def at(self, tiles: int, position: int = 0) -> Graph:
        """The graph of a run of `tiles` token tiles, the first token at `position`. ValueError unless
        1 <= tiles <= max_tiles and the last token is inside the context."""
        if not 1 <= tiles <= self.max_tiles:
            raise ValueError(f"tiles is {tiles}; 1 to {self.max_tiles} are allowed")
        last = self.last_position(tiles)
        if not 0 <= position <= last:
            raise ValueError(f"position is {position}; 0 to {last} are allowed for {tiles} token tiles")
        if (tiles == self.max_tiles and position == last) or self.smaller is None:
            return self.graph
        return self.smaller(tiles, position)

    def last_position(self, tiles: int) -> int:
        """Where the first token of a run may be at most."""
        return max(0, self.context - tiles * self.token_lanes)
