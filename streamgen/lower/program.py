"""All passes from unfinished graphs to a program, on one screen."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import zip_longest
from typing import Any

from streamgen.contract import Bounds
from streamgen.errors import GraphError
from streamgen.fifo.sizing import Strategy, Timetable
from streamgen.graph import Graph, Program, Regions, Variant
from streamgen.lower.passes import insert_converters, insert_forks, place_constants, size_fifos
from streamgen.progress import After

__all__ = ["finish"]

_PLACED = 3  # placements at most, each with the FIFOs of the one before
_KEPT = 32  # graphs of smaller runs: sizing, placement and emission ask for the same few


def finish(
    build: Callable[[int, int], Graph],
    token_lanes: int,
    max_tiles: int,
    strategy: Strategy = "conservative",
    context: int = 0,
    variants: Mapping[str, Mapping[str, Bounds]] | None = None,
    place: Callable[[Program], Regions] | None = None,
    after: After | None = None,
) -> tuple[Program, list[Timetable]]:
    """The program of a family of graphs, and the schedules of its corner runs, the largest first.

    lower -> place -> size: what `place` says of the program without depths is settled before FIFOs are sized,
    for FIFOs whose ends lie apart have other latencies and depths. Asked again with the depths, it says the
    same unless an SLR has become too full; then all is sized once more.

    build(tiles, position) gives the unfinished graph (no forks, no converters, no depths) of a run of that
    many token tiles whose first token is at `position`; all end inside the context, if there is one.
    GraphError when a smaller run would need other hardware than the largest. The corners are one tile and
    all of them, at the first and at the last position: they end as scheduled. FIFOs that hold these hold the
    runs between, which may wait for a place in one for some cycles. variants: of runs that leave something
    out, by name, the bounds that are others (`streamgen.graph.Variant`). after: shown the graph of the
    largest run behind each pass.
    """
    show = after or (lambda name, made: None)
    family = Program(Graph("", (), (), ()), token_lanes, max_tiles, build, context)
    runs = [(tiles, position) for tiles in (max_tiles, 1) for position in (family.last_position(tiles), 0)]
    (most, last), *others = dict.fromkeys(runs)
    unfinished = build(most, last)
    smallest = None
    if others:
        _require_same_hardware(unfinished, one := build(1, 0), 1)
        smallest = insert_forks(one)
    show("forks", forked := insert_forks(unfinished))
    show("converters", converted := insert_converters(forked, smallest=smallest))
    largest = place_constants(converted)

    @lru_cache(maxsize=_KEPT)
    def smaller(tiles: int, position: int) -> Graph:
        graph = build(tiles, position)
        _require_same_hardware(unfinished, graph, tiles)
        return place_constants(insert_converters(insert_forks(graph, largest), largest))

    lowered = replace(
        family,
        graph=largest,
        smaller=smaller,
        variants={name: Variant.of(largest, bounds) for name, bounds in (variants or {}).items()},
    )
    corners = [largest, *(smaller(*run) for run in others)]
    regions = Regions() if place is None else place(lowered)
    for _ in range(_PLACED):
        show("place", "\n".join(f"{node}: {slr}" for node, slr in regions.slrs.items()))
        sized, schedules = size_fifos([one.with_boundaries(regions.crossings) for one in corners], strategy)
        program = _sized(lowered, sized, regions, smaller)
        if place is None or (again := place(program)) == regions:
            break
        regions = again
    show("size", sized)
    return program, schedules


def _sized(lowered: Program, sized: Graph, regions: Regions, smaller: Callable[[int, int], Graph]) -> Program:
    depths = {(e.source, e.target): e.depth for e in sized.edges if e.depth is not None}

    def build(tiles: int, position: int) -> Graph:
        return smaller(tiles, position).with_boundaries(regions.crossings).with_depths(depths)

    return replace(lowered, graph=sized, smaller=build, regions=regions)


def _require_same_hardware(largest: Graph, graph: Graph, tiles: int) -> None:
    """GraphError unless two graphs differ in bounds and in the data of their tensors only."""

    def parts(g: Graph) -> Iterator[tuple[str, Any]]:
        yield from ((f"section {k}", section) for k, section in enumerate(g.sections))
        yield from ((f"node {n.name!r}", n.params) for n in g.nodes)
        yield from ((f"edge {e.name}", e.depth) for e in g.edges)
        yield from ((f"tensor {t.name!r}", (t.role, t.node, t.port, t.channel)) for t in g.tensors)

    for expected, found in zip_longest(parts(largest), parts(graph)):
        if expected != found:
            name = (expected or found)[0]
            raise GraphError(f"{name} is other hardware for {tiles} token tiles than for all")
