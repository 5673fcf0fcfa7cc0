"""All passes from unfinished graphs to a program, in one function."""

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

_PLACED = 4  # most placements; each uses the FIFOs of the placement before
_SPARE = 0.005  # each placement leaves this share of each SLR more free than the placement before
_SPARE_UNSIZED = 0.02  # the same share before FIFOs are sized
_UNSIZED = 4  # tokens of a FIFO before it is sized; LUT RAM takes as much up to a depth of 32
_KEPT = 32  # cached graphs of smaller runs; sizing, placement and emission ask for the same ones


def finish(
    build: Callable[..., Graph],
    token_lanes: int,
    max_tiles: int,
    strategy: Strategy = "conservative",
    context: int = 0,
    variants: Mapping[str, Mapping[str, Bounds]] | None = None,
    place: Callable[[Program, float], Regions] | None = None,
    after: After | None = None,
    counted: Counted | None = None,
    *,
    source: int = 0,
) -> tuple[Program, list[int]]:
    """The program of a family of graphs, and the scheduled cycles of the phases of its corner runs; the
    largest run comes first.

    The passes are lower -> place -> branch -> size -> place. They depend on one another: placement depends on
    the sizes of FIFOs, forks depend on placement, and FIFOs between SLRs have other latencies and depths. The
    first placement guesses the depths. The second has the sized FIFOs. It keeps the placement unless an SLR
    has become too full. In that case the passes are repeated, with a little more room on each SLR for FIFOs
    that grow.

    The corner runs are one tile and the largest number of tiles, at the first and at the last position, with
    one row of a source and with the most. They end as scheduled. FIFOs that are deep enough for them are deep
    enough for all runs between, which may wait for some cycles for a place in a FIFO.

    build: called with a number of token tiles, the position of the first token and, if there is a source,
    its rows; returns the unfinished graph (no forks, no converters, no depths) of this run. All runs end
    inside the context, if there is one. source: most rows of a source; 0 for none. variants: for each variant
    of a run, the bounds that differ, by node (`streamgen.model.graph.Variant`). place: chooses the SLRs of
    nodes; see `emit.place_program`. after: called with the graph of the largest run after each pass. counted:
    called with the progress of long passes.

    Raises GraphError if a smaller run needs other hardware than the largest.
    """
    show = after or (lambda name, value: None)
    family = Program(Graph("", (), (), ()), token_lanes, max_tiles, build, context, source)
    runs = [
        (tiles, position, *rows)
        for rows in ([(source,), (1,)] if source else [()])
        for tiles in (max_tiles, 1)
        for position in (family.last_position(tiles), 0)
    ]
    largest_run, *others = dict.fromkeys(runs)
    unfinished = build(*largest_run)
    smallest = None
    if others:
        _require_same_hardware(unfinished, unfinished_smallest := build(*others[-1]), 1)
        smallest = insert_forks(unfinished_smallest)
    show("forks", forked := insert_forks(unfinished))
    show("converters", converted := insert_converters(forked, smallest=smallest, counted=counted))
    largest = place_constants(converted)

    @lru_cache(maxsize=_KEPT)
    def smaller(tiles: int, position: int, *rows: int) -> Graph:
        graph = build(tiles, position, *rows)
        _require_same_hardware(unfinished, graph, tiles)
        return place_constants(insert_converters(insert_forks(graph, largest), largest))

    lowered = replace(
        family,
        graph=largest,
        smaller=smaller,
        variants={name: Variant.of(largest, bounds) for name, bounds in (variants or {}).items()},
    )
    regions = Regions() if place is None else place(replace(lowered, graph=unsized(largest)), _SPARE_UNSIZED)
    for number in range(1, 1 + _PLACED):
        branched = _branched(lowered, regions)
        regions = branched.regions
        corners = [branched.at(run[0], run[1], None, *run[2:]) for run in dict.fromkeys(runs)]
        sized, cycles = size_fifos(corners, strategy, counted)
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


def unsized(graph: Graph) -> Graph:
    """The graph with a guessed depth of each FIFO that has none, for a first placement."""
    return replace(graph, edges=tuple(replace(edge, depth=edge.depth or _UNSIZED) for edge in graph.edges))


def _branched(lowered: Program, regions: Regions) -> Program:
    """The program with a fork on every SLR that needs one, and with the boundaries that edges cross."""
    crossings: dict[str, int] = {}

    def branched(graph: Graph) -> Graph:
        return branch_forks(graph, regions)[0].with_boundaries(crossings)

    @lru_cache(maxsize=_KEPT)
    def smaller(tiles: int, position: int, *rows: int) -> Graph:
        assert lowered.smaller is not None
        return branched(lowered.smaller(tiles, position, *rows))

    largest, placed = branch_forks(lowered.graph, regions)
    crossings |= placed.crossings(largest)
    return replace(
        lowered,
        graph=largest.with_boundaries(crossings),
        smaller=smaller,
        variants={name: Variant.of(largest, variant.bounds) for name, variant in lowered.variants.items()},
        regions=placed,
    )


def _sized(branched: Program, sized: Graph) -> Program:
    depths = {(e.source, e.target): e.depth for e in sized.edges if e.depth is not None}

    def build(tiles: int, position: int, *rows: int) -> Graph:
        assert branched.smaller is not None
        return branched.smaller(tiles, position, *rows).with_depths(depths)

    return replace(branched, graph=sized, smaller=build)


def _require_same_hardware(largest: Graph, graph: Graph, tiles: int) -> None:
    """Raise GraphError unless two graphs differ only in bounds and in the data of their tensors."""

    def parts(g: Graph) -> Iterator[tuple[str, Any]]:
        yield from ((f"section {k}", section) for k, section in enumerate(g.sections))
        yield from ((f"node {n.name!r}", n.params) for n in g.nodes)
        yield from ((f"edge {e.name}", e.depth) for e in g.edges)
        yield from ((f"tensor {t.name!r}", (t.role, t.node, t.port, t.channel)) for t in g.tensors)

    for expected, actual in zip_longest(parts(largest), parts(graph)):
        if expected != actual:
            name = (expected or actual)[0]
            raise GraphError(
                f"{name} needs other hardware for {tiles} token tiles than for the largest number of tiles"
            )
