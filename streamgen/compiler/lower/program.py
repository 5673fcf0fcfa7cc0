"""All passes from unfinished graphs to a program, on one screen."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import zip_longest
from typing import Any

from streamgen.base.errors import GraphError
from streamgen.base.progress import After, Counted
from streamgen.compiler.lower.forks import branch_forks
from streamgen.compiler.lower.passes import insert_converters, insert_forks, place_constants, size_fifos
from streamgen.contract import Bounds
from streamgen.fifo.sizing import Strategy
from streamgen.model.graph import Graph, Program, Regions, Variant

_PLACED = 4  # placements at most, each with the FIFOs of the one before
_SPARE = 0.005  # of each SLR, which each placement leaves free beyond the one before
_KEPT = 32  # graphs of smaller runs: sizing, placement and emission ask for the same few


def finish(
    build: Callable[[int, int], Graph],
    token_lanes: int,
    max_tiles: int,
    strategy: Strategy = "conservative",
    context: int = 0,
    variants: Mapping[str, Mapping[str, Bounds]] | None = None,
    place: Callable[[Program, float], Regions] | None = None,
    after: After | None = None,
    counted: Counted | None = None,
) -> tuple[Program, list[int]]:
    """The program of a family of graphs, and the scheduled cycles of the phases of its corner runs, those of
    the largest first.

    lower -> place -> size -> place -> branch -> size: what fits nowhere even without FIFOs is not sized, and
    a design on one SLR is sized once. Else where nodes lie follows from what FIFOs take, forks follow from
    that, and FIFOs whose ends lie apart have other latencies and depths. Asked again with these, `place` says
    the same unless an SLR has become too full; then all is done once more, and of each SLR a little more is
    left for FIFOs that grow with that.

    build(tiles, position) gives the unfinished graph (no forks, no converters, no depths) of a run of that
    many token tiles whose first token is at `position`; all end inside the context, if there is one.
    GraphError when a smaller run would need other hardware than the largest. The corners are one tile and
    all of them, at the first and at the last position: they end as scheduled. FIFOs that hold these hold the
    runs between, which may wait for a place in one for some cycles. variants: of runs that leave something
    out, by name, the bounds that are others (`streamgen.model.graph.Variant`). after: shown the graph of the
    largest run behind each pass. counted: told how far they are.
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
    show("converters", converted := insert_converters(forked, smallest=smallest, counted=counted))
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
    regions = Regions() if place is None else place(lowered, 0.0)
    if regions.crossings(largest):
        regions = Regions()  # FIFOs decide what lies where; so far there are none
    for number in range(1, 1 + _PLACED):
        branched = _branched(lowered, regions)
        regions = branched.regions
        sized, cycles = size_fifos([branched.at(*run) for run in dict.fromkeys(runs)], strategy, counted)
        program = _sized(branched, sized)
        if place is None:
            break
        again = place(program, number * _SPARE)
        show("place", "\n".join(f"{node}: {slr}" for node, slr in again.slrs.items()))
        if again.crossings(sized) == regions.crossings(sized):
            program = replace(program, regions=again)
            break
        regions = again
    show("size", sized)
    return program, cycles


def _branched(lowered: Program, regions: Regions) -> Program:
    """With the forks that lie on SLRs of their own, and the boundaries that edges cross."""
    crossings: dict[str, int] = {}

    def branched(graph: Graph) -> Graph:
        return branch_forks(graph, regions)[0].with_boundaries(crossings)

    @lru_cache(maxsize=_KEPT)
    def smaller(tiles: int, position: int) -> Graph:
        assert lowered.smaller is not None
        return branched(lowered.smaller(tiles, position))

    largest, placed = branch_forks(lowered.graph, regions)
    crossings |= placed.crossings(largest)
    return replace(
        lowered,
        graph=largest.with_boundaries(crossings),
        smaller=smaller,
        variants={name: Variant.of(largest, one.bounds) for name, one in lowered.variants.items()},
        regions=placed,
    )


def _sized(branched: Program, sized: Graph) -> Program:
    depths = {(e.source, e.target): e.depth for e in sized.edges if e.depth is not None}

    def build(tiles: int, position: int) -> Graph:
        assert branched.smaller is not None
        return branched.smaller(tiles, position).with_depths(depths)

    return replace(branched, graph=sized, smaller=build)


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
