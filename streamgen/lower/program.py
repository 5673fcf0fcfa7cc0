"""All passes from unfinished graphs to a program, on one screen."""

from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

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
    token tiles. GraphError when a smaller run would need other hardware than the largest. The corners
    are one tile and all of them: they end as scheduled. FIFOs that hold both hold the runs between, which
    may wait for a place in one for some cycles.
    """
    unfinished = build(max_tiles)
    smallest = None
    if max_tiles > 1:
        _require_same_hardware(unfinished, one := build(1), 1)
        smallest = insert_forks(one)
    largest = place_constants(insert_converters(insert_forks(unfinished), smallest=smallest))

    def smaller(tiles: int) -> Graph:
        graph = build(tiles)
        _require_same_hardware(unfinished, graph, tiles)
        return place_constants(insert_converters(insert_forks(graph, largest), largest))

    corners = [largest] if max_tiles == 1 else [largest, smaller(1)]
    sized, schedules = size_fifos(corners, strategy)
    depths = {(e.source, e.target): e.depth for e in sized.edges if e.depth is not None}
    program = Program(sized, token_lanes, max_tiles, lambda tiles: smaller(tiles).with_depths(depths))
    return program, schedules


def _require_same_hardware(largest: Graph, graph: Graph, tiles: int) -> None:
    """GraphError unless two graphs differ in bounds and in the data of their tensors only."""

    def parts(g: Graph) -> Iterator[tuple[str, Any]]:
        yield from ((f"node {n.name!r}", n.params) for n in g.nodes)
        yield from ((f"edge {e.name}", e.depth) for e in g.edges)
        yield from ((f"tensor {t.name!r}", (t.role, t.node, t.channel)) for t in g.tensors)

    for expected, found in zip_longest(parts(largest), parts(graph)):
        if expected != found:
            name = (expected or found)[0]
            raise GraphError(f"{name} is other hardware for {tiles} token tiles than for all")
