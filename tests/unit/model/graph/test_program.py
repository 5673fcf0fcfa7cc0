"""Variants of a program's runs: who rests when a node passes nothing on."""

import pytest

from sim.memory import MEMORY
from streamgen.artifact.packing import MemoryLayout
from streamgen.base.errors import GraphError
from streamgen.itensor import ITensor
from streamgen.kernels.moves.concat import ConcatParams
from streamgen.kernels.moves.fork import ForkParams
from streamgen.kernels.moves.take_rows import TakeRowsParams
from streamgen.model.graph import Edge, Graph, Node, Port, Program, Variant
from streamgen.platform.dma import LoadParams, StoreParams

ROWS = ITensor((1, 1), "i8", (4, 3), (1, 1), ((0,), (1,)))
TAKE = {"rows": 4, "features": 3, "first": 0, "count": 4}
LAYOUT = MemoryLayout.of(ROWS)


def _store(name: str) -> Node:
    bounds = {"itensor": ROWS, "offset": 0}
    return Node(name, StoreParams(layout=LAYOUT, max_tokens=12, **MEMORY), (bounds, bounds))


def _graph(*ends: Node, edges: tuple[Edge, ...]) -> Graph:
    """A load, a fork, one of whose ways goes through `take`; two phases."""
    nodes = (
        Node(
            "load", LoadParams(layout=LAYOUT, max_tokens=12, **MEMORY), ({"itensor": ROWS, "offset": 0},) * 2
        ),
        Node("fork", ForkParams(token_bits=8, ways=2, max_tokens=12), ({"itensor": ROWS},) * 2),
        Node("take", TakeRowsParams(dtype="i8", lanes=1, max_tokens=12), (TAKE, TAKE)),
    )
    joined = (Edge(Port("load", "o"), Port("fork", "i")), Edge(Port("fork", "o_0"), Port("take", "i")))
    return Graph("g", (*nodes, *ends), (*joined, *edges), ())


APART = _graph(
    _store("taken"),
    _store("all"),
    edges=(Edge(Port("take", "o"), Port("taken", "i")), Edge(Port("fork", "o_1"), Port("all", "i"))),
)


def test_who_gets_nothing_rests() -> None:
    variant = Variant.of(APART, {"take": {"count": 0}})
    assert variant.resting == {("taken", 0), ("taken", 1)}
    graph = Program(APART, variants={"brief": variant}).at(1, variant="brief")
    assert graph.node("taken").bounds == (None, None)
    assert graph.node("take").bounds == ({**TAKE, "count": 0},) * 2
    for name in ("load", "fork", "all"):
        assert graph.node(name) is APART.node(name)
    assert Program(APART, variants={"brief": variant}).at(1) is APART


def test_other_bounds_alone_let_nobody_rest() -> None:
    """Streams that go on may be shorter: what reads them says so in bounds of its own."""
    variant = Variant.of(APART, {"take": {"count": 2}})
    assert variant.resting == frozenset()
    assert variant(APART).node("take").bounds == ({**TAKE, "count": 2},) * 2


def test_nobody_may_send_to_a_node_that_rests() -> None:
    params = ConcatParams(ways=2, dtype="i8", element_shape=(1, 1), max_tokens=12)
    graph = _graph(
        Node("pair", params, ({"itensor": ROWS},) * 2),
        edges=(Edge(Port("take", "o"), Port("pair", "i_0")), Edge(Port("fork", "o_1"), Port("pair", "i_1"))),
    )
    with pytest.raises(GraphError) as caught:
        Variant.of(graph, {"take": {"count": 0}})
    assert str(caught.value) == "'pair' rests in phase 0 of a variant; fork.o_1 -> pair.i_1 does not"


def test_who_would_send_only_to_nodes_that_rest_rests() -> None:
    """Beside what a pair gets no more lies a load, and before it a copy: both have nobody to send to."""
    rows, way = {"itensor": ROWS, "offset": 0}, {"itensor": ROWS}
    params = ConcatParams(ways=2, dtype="i8", element_shape=(1, 1), max_tokens=12)
    graph = _graph(
        Node("beside", LoadParams(layout=LAYOUT, max_tokens=12, **MEMORY), (rows,) * 2),
        Node("copy", ForkParams(token_bits=8, ways=1, max_tokens=12), (way,) * 2),
        Node("pair", params, (way,) * 2),
        _store("all"),
        edges=(
            Edge(Port("beside", "o"), Port("copy", "i")),
            Edge(Port("take", "o"), Port("pair", "i_0")),
            Edge(Port("copy", "o_0"), Port("pair", "i_1")),
            Edge(Port("fork", "o_1"), Port("all", "i")),
        ),
    )
    resting = Variant.of(graph, {"take": {"count": 0}}).resting
    assert resting == {(name, phase) for name in ("beside", "copy", "pair") for phase in (0, 1)}


def test_a_node_that_a_run_waits_for_does_not_rest() -> None:
    """Nobody but `pair` reads what passes `other`, which drops the rest: it goes on, and would be stuck."""
    params = ConcatParams(ways=2, dtype="i8", element_shape=(1, 1), max_tokens=12)
    graph = _graph(
        Node("other", TakeRowsParams(dtype="i8", lanes=1, max_tokens=12), (TAKE, TAKE)),
        Node("pair", params, ({"itensor": ROWS},) * 2),
        edges=(
            Edge(Port("fork", "o_1"), Port("other", "i")),
            Edge(Port("take", "o"), Port("pair", "i_0")),
            Edge(Port("other", "o"), Port("pair", "i_1")),
        ),
    )
    with pytest.raises(GraphError) as caught:
        Variant.of(graph, {"take": {"count": 0}})
    assert str(caught.value) == "'pair' rests in phase 0 of a variant; other.o -> pair.i_1 does not"


def test_who_gets_nothing_over_a_back_edge_rests() -> None:
    rows, way = {"itensor": ROWS, "offset": 0}, {"itensor": ROWS}
    nodes = (
        Node("load", LoadParams(layout=LAYOUT, max_tokens=12, **MEMORY), (rows, None)),
        Node("take", TakeRowsParams(dtype="i8", lanes=1, max_tokens=12), (TAKE, None)),
        Node("later", ForkParams(token_bits=8, ways=1, max_tokens=12), (None, way)),
        Node("store", StoreParams(layout=LAYOUT, max_tokens=12, **MEMORY), (None, rows)),
    )
    edges = (
        Edge(Port("load", "o"), Port("take", "i")),
        Edge(Port("take", "o"), Port("later", "i"), depth=12, back=True),
        Edge(Port("later", "o_0"), Port("store", "i")),
    )
    variant = Variant.of(Graph("g", nodes, edges, ()), {"take": {"count": 0}})
    assert variant.resting == {("later", 1), ("store", 1)}


def test_bounds_are_those_of_a_node() -> None:
    with pytest.raises(GraphError, match="graph 'g' has no node 'took'"):
        Variant.of(APART, {"took": {"count": 0}})
