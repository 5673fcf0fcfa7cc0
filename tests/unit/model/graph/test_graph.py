"""Graphs: printing, every law of the verifier by its whole message, the golden runner, storage."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sim.memory import MEMORY
from streamgen.artifact.packing import MemoryLayout
from streamgen.base.errors import GraphError
from streamgen.itensor import ITensor
from streamgen.kernels.moves.concat import ConcatParams
from streamgen.kernels.moves.fork import ForkParams
from streamgen.model import golden
from streamgen.model.graph import Edge, Graph, Node, Port, Program, Tensor, verify
from streamgen.model.graph.storage import load_program, save_program
from streamgen.platform.dma import LoadParams

ROWS = ITensor((1, 1), "i8", (4, 3), (1, 1), ((0,), (1,)))
COLUMNS = ITensor((1, 1), "i8", (3, 4), (1, 1), ((1,), (0,)))


def _fork(itensor: ITensor = ROWS) -> Node:
    return Node("copy", ForkParams(token_bits=8, ways=2, max_tokens=12), ({"itensor": itensor},))


def _concat(itensor: ITensor = ROWS) -> Node:
    params = ConcatParams(ways=2, dtype="i8", element_shape=(1, 1), max_tokens=12)
    return Node("pair", params, ({"itensor": itensor},))


def _source(itensor: ITensor = ROWS) -> Node:
    params = LoadParams(layout=MemoryLayout.of(itensor), max_tokens=12, **MEMORY)
    return Node("source", params, ({"itensor": itensor, "offset": 0},))


EDGES = (
    Edge(Port("copy", "o_0"), Port("pair", "i_0")),
    Edge(Port("copy", "o_1"), Port("pair", "i_1"), depth=5),
)


def _graph(**changes) -> Graph:
    graph = Graph("g", (_fork(), _concat()), EDGES, ())
    return replace(graph, **changes)


def _open(graph: Graph) -> str:
    """The message of the verifier."""
    with pytest.raises(GraphError) as caught:
        verify(graph)
    return str(caught.value)


def test_prints_a_line_a_node_with_itensors_on_the_edges() -> None:
    text = str(_graph(tensors=(Tensor("x", "input", "copy", (4, 3), 7),)))
    assert text == (
        "graph g (1 phase)\n"
        "  input x[4x3] on channel 7 by copy\n"
        "  copy = Fork()\n"
        f"    .o_0 -> pair.i_0: {ROWS}\n"
        f"    .o_1 -> pair.i_1: {ROWS}, depth 5\n"
        "  pair = Concat(i_0=copy.o_0, i_1=copy.o_1)"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": ()}, "graph 'g': has no nodes"),
        ({"nodes": (_fork(), _fork(), _concat())}, "graph 'g': 2 nodes are called 'copy'"),
        (
            {"tensors": (Tensor("x", "input", "copy", (1,), 0), Tensor("x", "output", "pair", (1,), 0))},
            "graph 'g': 2 tensors are called 'x'",
        ),
        (
            {"tensors": (Tensor("x", "input", "nobody", (1,), 0),)},
            "graph 'g': tensor 'x' names no node: 'nobody'",
        ),
        (
            {"nodes": (_concat(), _fork())},
            "graph 'g': edge copy.o_0 -> pair.i_0 runs against the order of the nodes",
        ),
        ({"edges": (*EDGES, EDGES[0])}, "graph 'g': port copy.i has 0 edges; exactly one is allowed"),
        (
            {"edges": (EDGES[0], replace(EDGES[1], depth=0))},
            "graph 'g': edge copy.o_1 -> pair.i_1 has depth 0; at least 1 is needed",
        ),
        (
            {"edges": (Edge(Port("copy", "o_7"), Port("pair", "i_0")),)},
            "graph 'g': edge copy.o_7 -> pair.i_0: 'copy' has no output port 'o_7', only o_0, o_1",
        ),
        (
            {"edges": (Edge(Port("ghost", "o"), Port("pair", "i_0")),)},
            "graph 'g': edge ghost.o -> pair.i_0 names no node: 'ghost'",
        ),
        (
            {"nodes": (_fork(), _concat(COLUMNS))},
            f"graph 'g': edge copy.o_0 -> pair.i_0, phase 0: "
            f"the producer sends {ROWS}, the consumer wants {COLUMNS}",
        ),
        (
            {"nodes": (replace(_fork(), bounds=({"itensor": ROWS}, None)), _concat())},
            "graph 'g': node 'pair' has 1 phases, the graph 2",
        ),
        (
            {"nodes": (replace(_fork(), bounds=(None,)), _concat())},
            "graph 'g': edge copy.o_0 -> pair.i_0: 'copy' has no output port 'o_0', only ",
        ),
    ],
)
def test_every_law_is_checked(changes, message: str) -> None:
    assert _open(_graph(**changes)) == message


def test_bounds_that_the_hardware_cannot_run_are_named() -> None:
    long = ITensor((1, 1), "i8", (100, 3), (1, 1), ((0,), (1,)))
    assert _open(_graph(nodes=(_fork(long), _concat(long)))).startswith(
        "graph 'g': node 'copy' cannot run phase 0: "
    )


def test_an_object_that_is_no_kernel_is_refused() -> None:
    node = Node("copy", object(), ({},))  # type: ignore[arg-type]
    assert _open(_graph(nodes=(node,))) == (
        "graph 'g': node 'copy': object has no inputs, outputs, descriptor_fields, describe, golden, cost, "
        "curves, build"
    )


def test_pending_converters_relax_the_order_only() -> None:
    graph = _graph(
        nodes=(
            _source(),
            _fork(COLUMNS),
            _concat(COLUMNS),
            Node("sink", ForkParams(token_bits=8, ways=1, max_tokens=12), ({"itensor": ROWS},)),
        ),
        edges=(Edge(Port("source", "o"), Port("copy", "i")), *EDGES),
    )
    with pytest.raises(GraphError, match=r"port pair\.o has 0 edges"):
        verify(graph, converters_pending=True)


def _closed() -> Graph:
    """source -> copy -> pair, the source's data a constant."""
    data = np.arange(12, dtype=np.int8).reshape(4, 3)
    return Graph(
        "g",
        (_source(), _fork(), _concat()),
        (Edge(Port("source", "o"), Port("copy", "i")), *EDGES),
        (Tensor("x", "constant", "source", (4, 3), 0, data),),
    )


def test_golden_runs_every_kernel() -> None:
    outputs, values = golden.run(_closed(), {})
    assert outputs == {}
    data = np.arange(12, dtype=np.int8).reshape(4, 3)
    assert np.array_equal(values[Port("pair", "o")], np.repeat(data, 2, axis=1))


def test_golden_refuses_wrong_inputs() -> None:
    with pytest.raises(ValueError, match=r"^inputs are \[\], got \['y'\]$"):
        golden.run(_closed(), {"y": np.zeros(1)})
    graph = replace(_closed(), tensors=(Tensor("x", "input", "source", (4, 3), 0),))
    with pytest.raises(ValueError, match=r"^tensor 'x' has shape \(3, 4\); \(4, 3\) is needed$"):
        golden.run(graph, {"x": np.zeros((3, 4), np.int8)})


def test_programs_survive_storage(tmp_path) -> None:
    save_program(Program(_closed()), tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(GraphError, match=r"port pair\.o has 0 edges"):  # what is read is verified
        load_program(tmp_path)
    save_program(Program(_closed()), tmp_path)
    assert files == {path.name: path.read_bytes() for path in tmp_path.iterdir()}, "same program, same bytes"


def test_corrupt_storage_is_named(tmp_path) -> None:
    with pytest.raises(GraphError, match="holds no readable program"):
        load_program(tmp_path)
    save_program(Program(_closed()), tmp_path)
    (tmp_path / "constants.npz").write_bytes(b"PK\x03\x04 truncated")
    with pytest.raises(GraphError, match="holds no readable program"):
        load_program(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"), [("name", -1), ("buffer", 0), ("phase", "0"), ("channel", None), ("node", ["x"])]
)
def test_tensors_of_other_types_are_named(tmp_path, field: str, value: object) -> None:
    tensor = Tensor("x", "input", "source", (4, 3), 0)
    save_program(Program(replace(_closed(), tensors=(tensor,))), tmp_path)
    document = json.loads((tmp_path / "graph.json").read_text())
    document["tensors"][0][field] = value
    (tmp_path / "graph.json").write_text(json.dumps(document))
    with pytest.raises(GraphError, match=rf"graph\.json: {field} of a tensor: expected \w+, not "):
        load_program(tmp_path)


def test_tiles_out_of_range() -> None:
    with pytest.raises(ValueError, match=r"^tiles is 2; 1 to 1 are allowed$"):
        Program(_closed()).at(2)
