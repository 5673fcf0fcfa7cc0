"""The passes: each does what is needed and nothing else, and says what it cannot do."""

from dataclasses import replace

import numpy as np
import pytest

from streamgen.artifact.packing import MemoryLayout
from streamgen.base.errors import BudgetError, GraphError
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.lower import (
    GraphBuilder,
    finish,
    insert_converters,
    insert_forks,
    place_constants,
    size_fifos,
)
from streamgen.compiler.lower.forks import branch_forks
from streamgen.converters import LayoutParams, choose_converter
from streamgen.fifo.sizing import Strategy
from streamgen.itensor import ITensor, same_stream
from streamgen.kernels.elementwise import BinaryParams, UnaryParams
from streamgen.kernels.moves.fork import ForkParams
from streamgen.model.graph import Edge, Graph, Node, Port, Program, Regions
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.operations import Binary, Unary
from tests.shared.campaigns import sampled
from tests.unit.compiler.lower.networks import Compiled, linear, network, random_network
from tests.unit.compiler.lower.self_timed import finish as self_timed

ROWS = ITensor((1, 2), "f24", (4, 3), (1, 2), ((0,), (1,)))
COLUMNS = ITensor((1, 2), "f24", (3, 4), (2, 1), ((1,), (0,)))


def _relu(b: GraphBuilder, name: str, source: Port, itensor: ITensor = ROWS) -> Port:
    params = UnaryParams(function="relu", lanes=itensor.element_shape[1], max_tokens=itensor.token_count)
    return b.kernel(name, params, {"itensor": itensor}, i=source)["o"]


def _add(b: GraphBuilder, name: str, one: Port, two: Port, itensor: ITensor = ROWS) -> Port:
    params = BinaryParams(operation="add", lanes=2, max_tokens=itensor.token_count)
    return b.kernel(name, params, {"itensor": itensor}, i_a=one, i_b=two)["o"]


def _two_readers() -> Graph:
    b = GraphBuilder("g")
    x = b.load("x", ROWS, shape=(4, 6), channel=0)
    y = _relu(b, "y", x)
    z = _add(b, "z", y, y)
    b.store("z", _add(b, "w", z, y), shape=(4, 6), channel=0)
    return b.build()


def _other_order() -> Graph:
    b = GraphBuilder("g")
    x = b.load("x", ROWS, shape=(4, 6), channel=0)
    y = _relu(b, "y", x, COLUMNS)
    z = _relu(b, "z", y, COLUMNS)
    b.store("z", z, shape=(4, 6), channel=0, itensor=ROWS)
    return b.build()


def _kinds(graph: Graph) -> list[str]:
    return [type(node.params).__name__.removesuffix("Params") for node in graph.nodes]


def test_forks_stand_where_several_read() -> None:
    graph = insert_forks(_two_readers())
    assert _kinds(graph) == ["Load", "Unary", "Fork", "Binary", "Binary", "Store"]
    fork = graph.node("fork_y_o")
    assert fork.params == ForkParams(token_bits=48, ways=3, max_tokens=12)
    assert {(e.source.name, str(e.target)) for e in graph.outputs_of("fork_y_o")} == {
        ("o_0", "z.i_a"),
        ("o_1", "z.i_b"),
        ("o_2", "w.i_b"),
    }
    assert insert_forks(graph) == graph


def test_forks_branch_where_slrs_begin() -> None:
    b = GraphBuilder("g")
    y = _relu(b, "y", b.load("x", ROWS, shape=(4, 6), channel=0))
    readers = [_relu(b, f"r{k}", y) for k in range(6)]
    for k, one in enumerate(readers):
        b.store(f"o{k}", one, shape=(4, 6), channel=0)
    graph = insert_forks(b.build())
    order = ("SLR0", "SLR1", "SLR2")
    slrs = {node.name: "SLR0" for node in graph.nodes} | {
        "r1": "SLR1",
        "r2": "SLR1",
        "r3": "SLR2",
        "r4": "SLR2",
    }
    made, placed = branch_forks(graph, Regions(order, slrs))
    ways = {n.name: n.params.ways for n in made.nodes if isinstance(n.params, ForkParams)}
    assert ways == {"fork_y_o": 3, "fork_y_o_SLR1": 3, "fork_y_o_SLR2": 2}
    assert placed.slrs == slrs | {"fork_y_o_SLR1": "SLR1", "fork_y_o_SLR2": "SLR2"}
    read = {name: {str(edge.target) for edge in made.outputs_of(name)} for name in ways}
    assert read == {
        "fork_y_o": {"r0.i", "r5.i", "fork_y_o_SLR1.i"},
        "fork_y_o_SLR1": {"r1.i", "r2.i", "fork_y_o_SLR2.i"},
        "fork_y_o_SLR2": {"r3.i", "r4.i"},
    }
    crossed = [edge for edge in made.edges if placed.crossings(made).get(edge.name) and "fork" in edge.name]
    assert {edge.target.node for edge in crossed} == {"fork_y_o_SLR1", "fork_y_o_SLR2"}
    # one reader beyond a boundary needs no fork of its own, and with all at home nothing changes
    alone = {**slrs, "r1": "SLR0", "r2": "SLR0", "r4": "SLR0"}
    assert branch_forks(graph, Regions(order, alone))[0] is graph
    assert branch_forks(graph, Regions())[0] is graph


def test_an_output_that_nobody_reads_is_an_error() -> None:
    b = GraphBuilder("g")
    _relu(b, "y", b.load("x", ROWS, shape=(4, 6), channel=0))
    with pytest.raises(GraphError) as caught:
        insert_forks(b.build())
    assert str(caught.value) == "graph 'g': port y.o has 0 edges; exactly one is allowed"


def test_converters_stand_where_orders_differ() -> None:
    graph = insert_converters(_other_order())
    assert [node.name for node in graph.nodes] == [
        "load_x",
        "convert_y_i",
        "y",
        "z",
        "convert_store_z_i",
        "store_z",
    ]
    assert graph.node("convert_y_i").params == choose_converter(ROWS, COLUMNS)
    assert graph.node("convert_store_z_i").params == choose_converter(COLUMNS, ROWS)
    assert insert_converters(graph) == graph


def test_nothing_to_insert_changes_nothing() -> None:
    b = GraphBuilder("g")
    b.store("y", _relu(b, "y", b.load("x", ROWS, shape=(4, 6), channel=0)), shape=(4, 6), channel=0)
    graph = b.build()
    assert insert_converters(insert_forks(graph)) == graph


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (
            ITensor((1, 2), "f24", (3, 3), (1, 2), ((0,), (1,))),
            "the target reads element 3 of dimension 0, which the source never sends",
        ),
        (
            ITensor((1, 2), "f24", (4, 2), (1, 4), ((0,), (1,))),
            "the target reads element 2 of dimension 1, which the source never sends",
        ),
        (
            ITensor((2,), "f24", (12,), (2,), ((0,),)),
            "rank must agree; the source has 1, the target 2",
        ),
        (
            ITensor((1, 2), "i24", (4, 3), (1, 2), ((0,), (1,))),
            "dtype must agree; the source has i24, the target f24",
        ),
    ],
)
def test_impossible_conversions(sent: ITensor, reason: str) -> None:
    copy = Node("x", ForkParams(token_bits=48, ways=1, max_tokens=12), ({"itensor": sent},))
    y = Node("y", ForkParams(token_bits=48, ways=1, max_tokens=12), ({"itensor": ROWS},))
    graph = Graph("g", (copy, y), (Edge(Port("x", "o_0"), Port("y", "i")),), ())
    with pytest.raises(GraphError) as caught:
        insert_converters(graph)
    assert str(caught.value) == f"edge x.o_0 -> y.i of graph 'g' needs a converter: {reason}"


def _networks() -> list[Compiled]:
    rng = np.random.default_rng(0)
    residual = network(
        {"x": 40},
        {
            "up": (linear(rng, 72, 40, bias=True), "x"),
            "act": (Unary("silu"), "up"),
            "down": (linear(rng, 40, 72), "act"),
            "y": (Binary("add"), "x", "down"),
        },
        "y",
    )
    configs = [
        CompileConfig(max_tokens=6, channels=4, token_lanes=2),
        CompileConfig(max_tokens=7, channels=3, weights="w8", sizing="normal"),
        CompileConfig(max_tokens=1, channels=32, multipliers=2048),
    ]
    wide = Compiled(residual, configs[0], {"up": (8, 4), "down": (8, 4)})  # whose sum waits in a deep FIFO
    return [*(Compiled(residual, config) for config in configs), wide]


@pytest.fixture(scope="module")
def compiled() -> list[Compiled]:
    return _networks()


def test_forks_and_converters_of_networks_are_needed(compiled: list[Compiled]) -> None:
    for each in compiled:
        graph = each.program.graph
        for node in graph.nodes:
            if isinstance(node.params, ForkParams):
                assert node.params.ways > 1
            if isinstance(node.params, LayoutParams):
                assert not same_stream(node.params.source, node.params.target)


def test_constants_do_not_overlap(compiled: list[Compiled]) -> None:
    """Each channel's buffer is filled from 0 without gaps, and in runs of any length alike."""
    for each in compiled:
        graph = each.program.graph
        spans: dict[int, list[tuple[int, int]]] = {}
        for tensor in graph.tensors:
            if tensor.role == "constant":
                (bounds,) = graph.node(tensor.node).bounds
                itensor = graph.tensor_itensor(tensor)
                beats = MemoryLayout.of(itensor).beats(itensor.token_count)
                spans.setdefault(tensor.channel, []).append((bounds["offset"], bounds["offset"] + beats))
                (smallest,) = each.at(1).node(tensor.node).bounds
                assert smallest == bounds
        assert spans
        for channel in spans.values():
            ends = [0, *(end for _, end in sorted(channel))]
            assert [start for start, _ in sorted(channel)] == ends[:-1]


def test_constants_keep_offsets_of_their_own_channel() -> None:
    b = GraphBuilder("g")
    data = np.zeros(ROWS.shape, np.float32)
    loads = [b.load(f"c{i}", ROWS, shape=(4, 6), channel=i % 2, data=data) for i in range(4)]
    total = _add(b, "y", _add(b, "a", loads[0], loads[1]), _add(b, "b", loads[2], loads[3]))
    b.store("y", total, shape=(4, 6), channel=0)
    graph = place_constants(b.build())
    assert [graph.node(f"load_c{i}").bounds[0]["offset"] for i in range(4)] == [0, 0, 2, 2]
    assert graph.node("store_y").bounds[0]["offset"] == 0


def test_a_fifo_too_deep_to_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamgen.compiler.lower.passes.DEEPEST", 1)
    b = GraphBuilder("g")
    loads = [b.load(name, ROWS, shape=(4, 6), channel=0) for name in "xy"]
    b.store("z", _add(b, "a", *loads), shape=(4, 6), channel=0)
    graph = insert_converters(insert_forks(b.build()))
    message = r"^the FIFO from \S+ to \S+ needs room for \d+ tokens; a FIFO of at most 1 can be counted"
    with pytest.raises(BudgetError, match=message):
        size_fifos([graph], "conservative")


def _scheduled(graph: Graph, strategy: Strategy) -> int:
    """Cycles of the schedule of a run alone, whatever the graph's depths."""
    return size_fifos([graph], strategy)[1][0]


def _check_depths(compiled: Compiled) -> None:
    """The corners, one tile and all tiles, end when they are scheduled to end, or before.

    Depths are not chosen for the runs between them: those end too, before the longest one.
    """
    most = compiled.program.max_tiles
    for tiles in range(1, most + 1):
        graph = compiled.at(tiles)
        corner = compiled.at(tiles if tiles == 1 else most)
        promised = _scheduled(corner, compiled.config.sizing)
        assert self_timed(graph, limit=promised + 1) is not None, f"{tiles} tiles in {promised} cycles"


@pytest.mark.slow
def test_depths_hold_the_schedule(compiled: list[Compiled]) -> None:
    for each in compiled:
        assert [edge.depth for edge in each.program.graph.edges if edge.depth is None] == []
        _check_depths(each)
        corners = dict.fromkeys((each.program.max_tiles, 1))
        assert each.cycles == [_scheduled(each.at(tiles), each.config.sizing) for tiles in corners]


def test_wide_tokens_wait_in_fifos(compiled: list[Compiled], monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless their source is patient, which none of these is."""
    monkeypatch.setattr("streamgen.compiler.lower.passes._WIDEST", 1)
    for each in compiled:
        corners = [each.at(tiles) for tiles in dict.fromkeys((each.program.max_tiles, 1))]
        sized, _ = size_fifos(corners, each.config.sizing)
        assert [edge.depth for edge in sized.edges] == [edge.depth for edge in each.program.graph.edges]


@pytest.mark.slow
@pytest.mark.parametrize("seed", sampled(range(40), (*range(11), 15)))
def test_depths_of_random_networks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    config = CompileConfig(
        max_tokens=int(rng.integers(1, 17)),
        multipliers=4096,
        channels=int(rng.integers(1, 17)),
        sizing=str(rng.choice(["normal", "conservative"])),
    )
    _check_depths(Compiled(random_network(rng), config))


def test_a_shallower_fifo_would_be_too_shallow(compiled: list[Compiled]) -> None:
    """The check above can fail: with one token less in a deep FIFO a corner run is late or hangs."""
    checked = 0
    for each in compiled:
        if each.config.sizing != "conservative":
            continue
        corners = [each.at(tiles) for tiles in dict.fromkeys((each.program.max_tiles, 1))]
        for edge in each.program.graph.edges:
            if edge.depth > 2:
                less = {(edge.source, edge.target): edge.depth - 1}
                assert any(
                    self_timed(corner.with_depths(less), limit=cycles) is None
                    for corner, cycles in zip(corners, each.cycles, strict=True)
                ), edge.name
                checked += 1
    assert checked


def _renamed(graph: LogicalGraph) -> LogicalGraph:
    """Names in the opposite alphabetical order."""
    names = [value.name for value in graph.inputs] + [operation.name for operation in graph.operations]
    new = {name: f"n{900 - i}" for i, name in enumerate(names)}
    return LogicalGraph(
        tuple(replace(value, name=new[value.name]) for value in graph.inputs),
        tuple(
            replace(o, name=new[o.name], inputs=tuple(new[name] for name in o.inputs))
            for o in graph.operations
        ),
        tuple(new[name] for name in graph.outputs),
    )


def test_names_do_not_change_depths(compiled: list[Compiled]) -> None:
    for each in compiled:
        if each.config.fixed:  # names operations
            continue
        other = Compiled(_renamed(each.graph), each.config)
        for one, two in ((each.program.graph, other.program.graph), (each.at(1), other.at(1))):
            assert [edge.depth for edge in one.edges] == [edge.depth for edge in two.edges]
            assert [node.params for node in one.nodes] == [node.params for node in two.nodes]


def _family(tiles: int, *, change: str = "") -> Graph:
    """A graph whose run of one tile may differ in more than bounds."""
    small = change if tiles == 1 else ""
    rows, largest = (replace(ROWS, tripcounts=(2 * n, 3)) for n in (tiles, 3))
    b = GraphBuilder("g")
    x = b.load("x", rows, shape=(2 * tiles, 6), channel=int(small == "channel"), largest=largest)
    params = UnaryParams(function="relu", lanes=2, max_tokens=20 if small == "params" else 18)
    y = b.kernel("y", params, {"itensor": rows}, i=x)["o"]
    if small == "node":
        y = b.kernel("more", params, {"itensor": rows}, i=y)["o"]
    if small == "forks":
        y = _add(b, "sum", y, y, rows)
    b.store("y", y, shape=(2 * tiles, 6), channel=0, largest=largest)
    return b.build()


def test_runs_of_one_family() -> None:
    program, cycles = finish(lambda tiles, _: _family(tiles), 2, 3)
    assert len(cycles) == 2
    assert [program.at(t).node("y").bounds[0]["itensor"].tripcounts for t in (1, 2, 3)] == [
        (2, 3),
        (4, 3),
        (6, 3),
    ]
    assert {edge.depth for t in (1, 2, 3) for edge in program.at(t).edges} == {
        edge.depth for edge in program.graph.edges
    }


def test_placements_that_follow_one_another_leave_more_free() -> None:
    """A placement that always changes is repeated four times with sized FIFOs."""
    asked: list[float] = []

    def place(program: Program, spare: float) -> Regions:
        asked.append(spare)
        ends = ("SLR0", "SLR0") if len(asked) % 2 else ("SLR1", "SLR0")
        return Regions(("SLR0", "SLR1"), dict(zip(("y", "load_x"), ends, strict=True)))

    finish(lambda *_: _two_readers(), 1, 1, place=place)
    assert asked == pytest.approx([0.02, 0.005, 0.01, 0.015, 0.02])


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ("params", "node 'y'"),
        ("node", "node 'store_y'"),
        ("forks", "node 'store_y'"),
        ("channel", "tensor 'x'"),
    ],
)
def test_a_smaller_run_of_other_structure(change: str, part: str) -> None:
    with pytest.raises(GraphError) as caught:
        finish(lambda tiles, _: _family(tiles, change=change), 2, 3)
    assert str(caught.value) == (
        f"{part} needs other hardware for 1 token tiles than for the largest number of tiles"
    )
