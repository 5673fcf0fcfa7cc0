"""Descriptors: what is wired, what is sent, and that the phase table sends what every run needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest

from streamgen.base.errors import GraphError
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.emit.descriptors import Encoding, encode
from streamgen.compiler.plan.policy import finished, whole
from streamgen.contract import Bounds, Field
from streamgen.model.graph import Graph, Node, Program, Variant
from streamgen.model.graph.logical import Input, LogicalGraph, Operation
from streamgen.model.operations import Binary, Linear

Describe = Callable[[int], int]


@dataclass(frozen=True)
class _Fields:
    """Of a kernel, only its descriptor: bounds are the values of its fields."""

    names: tuple[str, ...]

    def descriptor_fields(self) -> tuple[Field, ...]:
        return tuple(Field(name, 16) for name in self.names)

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        return bounds


def _program(max_tiles: int, *phases: Mapping[str, Describe] | None) -> Program:
    """One node; each field as a function of the tiles, in each phase."""
    names = next(tuple(fields) for fields in phases if fields is not None)

    def graph(tiles: int, position: int) -> Graph:
        bounds = tuple(None if p is None else {name: f(tiles) for name, f in p.items()} for p in phases)
        return Graph("g", (Node("n", _Fields(names), bounds),), (), ())  # type: ignore[arg-type]

    return Program(graph(max_tiles, 0), 1, max_tiles, graph)


def _sent(encoding: Encoding, tiles: int, target: int = 0) -> list[tuple[int, ...]]:
    table = encoding.table.expand(position=0, tiles=tiles)
    return [words for descriptor, words in table if descriptor.target == target]


@pytest.mark.parametrize("max_tiles", [2, 3, 64, 65, 1000])
def test_affine_fields_are_sent(max_tiles: int) -> None:
    fields = {
        "fixed": lambda t: 7,
        "rows": lambda t: t,
        "last": lambda t: 3 * t - 1,
        "left": lambda t: 2000 - t,
    }
    encoding = encode(_program(max_tiles, fields), set(), set())
    assert encoding.constants == {"n": {"fixed": 7}}
    assert encoding.varying == {"n": ("rows", "last", "left")}
    for tiles in range(1, max_tiles + 1):
        assert _sent(encoding, tiles) == [(tiles, 3 * tiles - 1, 2000 - tiles)]


def test_a_program_of_one_run_sends_nothing_but_starts() -> None:
    encoding = encode(_program(1, {"rows": lambda t: t, "last": lambda t: 5}), {"n"}, set())
    assert encoding.constants == {"n": {"rows": 1, "last": 5}}
    (descriptor,) = encoding.table.sections[0].descriptors
    assert (descriptor.words, descriptor.awaited, descriptor.barrier) == ((), True, False)


def test_phases_with_a_constant_each_and_a_rest() -> None:
    one, two = {"rows": lambda t: 4, "k": lambda t: 2 * t}, {"rows": lambda t: 9, "k": lambda t: t + 1}
    encoding = encode(_program(5, one, None, two), set(), set())
    assert encoding.constants == {"n": {}}
    for tiles in range(1, 6):
        assert _sent(encoding, tiles) == [(4, 2 * tiles), (9, tiles + 1)]


@pytest.mark.parametrize(
    ("max_tiles", "field", "message"),
    [
        (3, lambda t: t * t, "it is 9 at layer 0, position 0, tiles 3; expected -2 + 3 * tiles"),
        (4, lambda t: -(-t // 2), "it is 2 at layer 0, position 0, tiles 3; expected 1"),
        (64, lambda t: t + (t == 37), "it is 38 at layer 0, position 0, tiles 37; expected 0 + 1 * tiles"),
        (
            200,
            lambda t: t + (t == 127),
            "it is 128 at layer 0, position 0, tiles 127; expected 0 + 1 * tiles",
        ),
        (
            200,
            lambda t: t + (t == 199),
            "it is 200 at layer 0, position 0, tiles 199; expected 0 + 1 * tiles",
        ),
        (200, lambda t: min(t, 199), "it is 199 at layer 0, position 0, tiles 200; expected 0 + 1 * tiles"),
    ],
)
def test_other_fields_are_errors(max_tiles: int, field: Describe, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        encode(_program(max_tiles, {"rows": field}), set(), set())
    assert (
        str(caught.value)
        == f"descriptor field 'rows' of node 'n' is not affine in layer, position and tiles: {message}"
    )


def _walked(field: Callable[[int, int], int], **changes: int) -> Program:
    """A node with a field of (tiles, position) that grows in each walk, and one that rests before."""
    step, context = changes.get("step", 0), changes.get("context", 20)

    def graph(tiles: int, position: int) -> Graph:
        bounds = {"rows": field(tiles, position)}
        node = Node("n", _Fields(("rows",)), (bounds, bounds, None), {"rows": step})  # type: ignore[arg-type]
        rest = Node("m", _Fields(("rows",)), (None, None, {"rows": tiles}))  # type: ignore[arg-type]
        return Graph("g", (node, rest), (), (), sections=((1, 1), (1, 4), (1, 1)))

    return Program(graph(5, context - 5), 1, 5, graph, context)


def test_layers_and_positions_are_sent() -> None:
    """The sections of the graph are those of the table."""
    encoding = encode(_walked(lambda tiles, position: 7 * tiles + position, step=100), set(), set())
    assert [(section.repeats, len(section.descriptors)) for section in encoding.table.sections] == [
        (1, 1),
        (4, 1),
        (1, 1),
    ]
    for tiles, position in ((1, 0), (3, 11), (5, 15)):
        sent = [words for _, words in encoding.table.expand(position=position, tiles=tiles)]
        first = 7 * tiles + position
        assert sent == [(first,), *((first + 100 * walk,) for walk in range(4)), (tiles,)]


def _sourced(field: Callable[[int, int], int]) -> Program:
    """A node with a field of (tiles, rows of a source) and a field that is their number alone."""

    def graph(tiles: int, position: int, rows: int) -> Graph:
        bounds = {"rows": field(tiles, rows), "of_source": rows}
        node = Node("n", _Fields(("rows", "of_source")), (bounds,))  # type: ignore[arg-type]
        return Graph("g", (node,), (), ())

    return Program(graph(3, 0, 9), 1, 3, graph, source=9)


def test_the_host_adds_rows_of_a_source() -> None:
    """The words are those of the graph; the hardware gets bases that hold the rows."""
    table = encode(_sourced(lambda tiles, rows: 5 * tiles + 2 * rows + 1), set(), set()).table
    assert table.reads_source
    for tiles, rows in ((1, 1), (3, 4), (2, 9)):
        (sent,) = [words for _, words in table.expand(position=0, tiles=tiles, source=rows)]
        assert sent == (5 * tiles + 2 * rows + 1, rows)
        slots = np.frombuffer(table.pack(rows), "<i4").reshape(-1, 4)[4:]
        assert slots[1:3].tolist() == [[2 * rows + 1, 0, 0, 5], [rows, 0, 0, 0]]
    assert not encode(_walked(lambda tiles, position: tiles), set(), set()).table.reads_source


def test_words_that_are_not_affine_in_the_rows_of_a_source() -> None:
    message = "is not affine in layer, position, tiles and source: it is 81 at layer 0, position 0, tiles 1, "
    with pytest.raises(GraphError, match=message):
        encode(_sourced(lambda tiles, rows: rows * rows), set(), set())


def test_rows_of_a_source_outside_of_a_program() -> None:
    program = _sourced(lambda tiles, rows: rows)
    for rows in (0, 10):
        with pytest.raises(ValueError, match=f"^source has {rows} rows; 1 to 9 are allowed$"):
            program.at(1, source=rows)
    with pytest.raises(ValueError, match=r"^source has 1 rows; 0 to 0 are allowed$"):
        _program(1, {"rows": lambda t: t}).at(1, source=1)


def test_a_variant_has_a_table_of_its_own() -> None:
    """A field is wired if all variants agree; who rests is not told, a section of them is left out."""
    whole = _walked(lambda tiles, position: 7 * tiles + position)
    rests = Variant({}, frozenset({("m", 2)}))
    fewer = Variant({"m": {"rows": 3}}, frozenset({("n", 0)}))
    encoding = encode(replace(whole, variants={"rests": rests, "fewer": fewer}), set(), set())
    assert encoding.table == encode(whole, set(), set()).table
    sent = {
        name: [(d.target, *words) for d, words in table.expand(position=2, tiles=4)]
        for name, table in encoding.variants.items()
    }
    assert sent == {"rests": [(0, 30)] * 5, "fewer": [(0, 30)] * 4 + [(1, 3)]}
    one = _program(1, {"rows": lambda t: t, "last": lambda t: 5})
    found = encode(replace(one, variants={"v": Variant({"n": {"rows": 2}}, frozenset())}), set(), set())
    assert found.constants == {"n": {"last": 5}}
    assert _sent(found, 1) == [(1,)]
    assert [words for _, words in found.variants["v"].expand(position=0, tiles=1)] == [(2,)]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (lambda t, p: t * p, "it is 75 at layer 0, position 15, tiles 5; expected 0 + 1 * position"),
        (lambda t, p: t + max(p, 18), "it is 20 at layer 0, position 19, tiles 1; expected 18 + 1 * tiles"),
    ],
)
def test_fields_that_positions_bend_are_errors(field: Callable[[int, int], int], message: str) -> None:
    with pytest.raises(GraphError) as caught:
        encode(_walked(field), set(), set())
    assert str(caught.value).endswith(message)


def _accelerator(config: CompileConfig) -> Program:
    """y = x + down(up(x)), with up as a second output: two matmuls, a bias, a residual sum."""
    rng = np.random.default_rng(0)
    up = Linear(rng.normal(size=(72, 40)).astype(np.float32), rng.normal(size=72).astype(np.float32))
    down = Linear(rng.normal(size=(40, 72)).astype(np.float32))
    network = LogicalGraph(
        (Input("x", 40),),
        (
            Operation("up", up, ("x",)),
            Operation("down", down, ("up",)),
            Operation("y", Binary("add"), ("x", "down")),
        ),
        ("y", "up"),
    )
    network = network.quantised(config.numbers(False))
    return finished(whole(network, config), network, config.sizing)[0]


@pytest.fixture(
    scope="module",
    params=[
        CompileConfig(max_tokens=7, token_lanes=1, channels=8),
        CompileConfig(max_tokens=8, token_lanes=2, channels=2, weights="w8"),
        CompileConfig(max_tokens=3, token_lanes=4, channels=16, multipliers=4096),
    ],
    ids=["seven tiles", "four tiles", "one tile"],
)
def program(request: pytest.FixtureRequest) -> Program:
    return _accelerator(request.param)


def _first(graph: Graph) -> set[str]:
    return {tensor.node for tensor in graph.tensors if tensor.role == "constant"}


def test_the_table_sends_what_every_run_describes(program: Program) -> None:
    """Wired and sent fields together are `describe` of every node, for every number of tiles."""
    stores = {tensor.node for tensor in program.graph.tensors if tensor.role == "output"}
    encoding = encode(program, stores, _first(program.graph))
    names = {target: name for name, target in encoding.targets.items()}
    assert sorted(names) == list(range(len(program.graph.nodes)))
    for tiles in range(1, program.max_tiles + 1):
        graph, told = program.at(tiles), set()
        for descriptor, words in encoding.table.expand(position=0, tiles=tiles):
            name = names[descriptor.target]
            node = graph.node(name)
            sent = dict(zip(encoding.varying[name], words, strict=True))
            assert not set(sent) & set(encoding.constants[name])
            assert {**encoding.constants[name], **sent} == dict(node.params.describe(node.bounds[0]))
            assert descriptor.awaited == (name in stores)
            told.add(name)
        assert told == {node.name for node in program.graph.nodes}
        assert len(encoding.table.expand(position=0, tiles=tiles)) == len(told)


def test_inputs_then_loads_that_run_ahead_are_told_first(program: Program) -> None:
    """Of those that run ahead the ones last that share a channel with an input."""
    first = _first(program.graph)
    encoding = encode(program, set(), first)
    names = {target: name for name, target in encoding.targets.items()}
    order = [names[d.target] for d in encoding.table.sections[0].descriptors]
    inputs = {tensor.node: tensor.channel for tensor in program.graph.tensors if tensor.role == "input"}
    shared = {t.node for t in program.graph.tensors if t.node in first and t.channel in inputs.values()}
    assert shared < first
    parts = [set(inputs), first - shared, shared]
    for part in parts:
        assert {order.pop(0) for _ in part} == part
    rest = [node.name for node in program.graph.nodes if not any(node.name in part for part in parts)]
    stores = {t.node for t in program.graph.tensors if t.channel in inputs.values()}
    assert order == sorted(rest, key=lambda name: name in stores)


def test_only_runs_of_several_lengths_vary(program: Program) -> None:
    encoding = encode(program, set(), set())
    varying = {name for name, fields in encoding.varying.items() if fields}
    if program.max_tiles == 1:
        assert not varying
    else:
        assert {"load_x", "store_y", "quantise_x", "y"} <= varying
        assert not varying & _first(program.graph)  # constants are read once, whatever the tokens


def test_a_wrong_run_between_is_noticed(program: Program) -> None:
    """A graph whose second run is that of the first has fields that are not affine."""
    if program.max_tiles < 3:
        return
    broken = replace(program, smaller=lambda tiles, _: program.at(1 if tiles == 2 else tiles))
    with pytest.raises(GraphError, match="is not affine in layer, position and tiles"):
        encode(broken, set(), set())
