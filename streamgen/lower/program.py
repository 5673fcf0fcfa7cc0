"""All passes from unfinished graphs to a program, on one screen."""

from collections.abc import Callable

from streamgen.errors import GraphError
from streamgen.fifo.sizing import Schedule, Strategy
from streamgen.graph import Graph, Program
from streamgen.lower.passes import insert_converters, insert_forks, place_constants, size_fifos

__all__ = ["finish"]


def finish(
    build: Callable[[int], Graph], token_lanes: int, max_tiles: int, strategy: Strategy = "conservative"
) -> tuple[Program, list[Schedule]]:
    """The program of a family of graphs, and the schedules of its corner runs, the largest first.

    build(tiles) gives the unfinished graph (no forks, no converters, no depths) of a run of that many
    token tiles. GraphError when a smaller run would need other hardware than the largest.
    """
    largest = place_constants(insert_converters(insert_forks(build(max_tiles))))

    def smaller(tiles: int) -> Graph:
        graph = place_constants(insert_converters(insert_forks(build(tiles), largest), largest))
        for node in graph.nodes:
            if node.params != largest.node(node.name).params:
                raise GraphError(f"node {node.name!r} is other hardware for {tiles} token tiles than for all")
        return graph

    corners = [largest] if max_tiles == 1 else [largest, smaller(1)]
    sized, schedules = size_fifos(corners, strategy)
    depths = {(e.source, e.target): e.depth for e in sized.edges if e.depth is not None}
    program = Program(sized, token_lanes, max_tiles, lambda tiles: smaller(tiles).with_depths(depths))
    return program, schedules
