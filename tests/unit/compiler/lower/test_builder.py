"""Graphs by hand: what the builder makes, and what it refuses, by the whole message."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import streamgen
from streamgen.base.errors import GraphError
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.lower import GraphBuilder, finish
from streamgen.itensor import ITensor
from streamgen.kernels.elementwise import BinaryParams, UnaryParams
from streamgen.model import golden
from streamgen.model.graph import Port
from streamgen.platform.boards import Channel
from streamgen.platform.boards.cards import U55C
from streamgen.platform.dma import LoadParams, StoreParams

TILES = ITensor((1, 4), "f24", (3, 2), (1, 4), ((0,), (1,)))
RELU = UnaryParams(function="relu", lanes=4, max_tokens=6)
ADD = BinaryParams(operation="add", lanes=4, max_tokens=6)
BOUNDS = {"itensor": TILES}


def test_a_graph_by_hand_runs() -> None:
    b = GraphBuilder("by_hand")
    x = b.load("x", TILES, shape=(3, 7), channel=0)
    c = b.load("c", TILES, shape=(3, 8), channel=0, data=np.ones((3, 8), np.float32))
    y = b.kernel("y", ADD, BOUNDS, i_a=x, i_b=c)
    b.store("sum", y["o"], shape=(3, 7), channel=1)
    b.store("double", b.kernel("twice", ADD, BOUNDS, i_a=y["o"], i_b=y["o"])["o"], shape=(3, 8), channel=0)
    program, _ = finish(lambda *_: b.build(), 1, 1)
    assert [(t.name, t.role, t.node, t.shape, t.channel) for t in program.graph.tensors] == [
        ("x", "input", "load_x", (3, 7), 0),
        ("c", "constant", "load_c", (3, 8), 0),
        ("sum", "output", "store_sum", (3, 7), 1),
        ("double", "output", "store_double", (3, 8), 0),
    ]
    x = np.arange(24, dtype=np.float32).reshape(3, 8)
    outputs, _ = golden.run(program.graph, {"x": x})
    np.testing.assert_array_equal(outputs["sum"], x + 1)
    np.testing.assert_array_equal(outputs["double"], 2 * x + 2)


def _load(**changes: object) -> Callable[[GraphBuilder], object]:
    arguments = {"name": "x", "itensor": TILES, "shape": (3, 8), "channel": 0, **changes}
    return lambda b: b.load(arguments.pop("name"), arguments.pop("itensor"), **arguments)  # type: ignore[arg-type]


def test_a_graph_by_hand_is_put_on_the_board_of_its_configuration() -> None:
    """Loads and stores promise cycles of the memory that the design meets, not of the default board."""
    b = GraphBuilder("placed")
    x = b.load("x", TILES, shape=(3, 8), channel=0)
    b.store("y", b.kernel("relu", RELU, BOUNDS, i=x)["o"], shape=(3, 8), channel=1)
    slow = replace(U55C, hbm=replace(U55C.hbm, latency=140))
    config = CompileConfig(name="placed", board=slow, clock_mhz=200)
    params = [node.params for node in streamgen.assemble(b.build(), config).graph.nodes]
    channels = [Channel(p.rate, p.latency) for p in params if isinstance(p, LoadParams | StoreParams)]
    assert channels == 2 * [slow.channel(200)]
    assert slow.channel(200) != U55C.channel()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (_load(name="a b"), "'load_a b' is not a name; letters, digits and _ are allowed"),
        (_load(name="é"), "'load_é' is not a name; letters, digits and _ are allowed"),
        (_load(name="there"), "graph 'g' already has a node 'load_there'"),
        (_load(shape=(3, 9)), "tensor 'x' has shape (3, 9); its stream covers (3, 8)"),
        (_load(shape=(3,)), "tensor 'x' has shape (3,); its stream covers (3, 8)"),
        (_load(shape=(0, 8)), "tensor 'x' has shape (0, 8); its stream covers (3, 8)"),
        (
            _load(shape=(3, 7), data=np.zeros((3, 7), np.float32)),
            "constant 'x' has data of shape (3, 7); its stream covers (3, 8)",
        ),
        (
            lambda b: b.kernel("y", RELU, BOUNDS, i_a=Port("load_there", "o")),
            "kernel 'y' has inputs ['i'], got ['i_a']",
        ),
        (
            lambda b: b.store("y", Port("nobody", "o"), shape=(3, 8), channel=0),
            "graph 'g' has no node 'nobody'",
        ),
        (
            lambda b: b.store("y", Port("load_there", "o_x"), shape=(3, 8), channel=0),
            "node 'load_there' has no output 'o_x'; it has o",
        ),
    ],
)
def test_refused(call: Callable[[GraphBuilder], object], message: str) -> None:
    b = GraphBuilder("g")
    b.load("there", TILES, shape=(3, 8), channel=0)
    with pytest.raises(GraphError) as caught:
        call(b)
    assert str(caught.value) == message
