"""Reduced pieces of rows in a graph, and on hardware."""

import numpy as np
import pytest

import streamgen
from streamgen.base.errors import GraphError
from streamgen.kernels.row_reductions import FUNCTIONS
from streamgen.model.graph.interpret import exact, reference
from streamgen.model.graph.logical import Input, LogicalGraph, Operation
from streamgen.model.operations import Reduce, Unary


def graph_of(function: str, features: int, length: int) -> LogicalGraph:
    operations = Operation("y", Reduce(function, length), ("x",)), Operation("z", Unary("relu"), ("y",))  # type: ignore[arg-type]
    return LogicalGraph((Input("x", features),), operations, ("z",))


@pytest.mark.parametrize(
    ("function", "wanted"), [("sum", [[6, 0]]), ("squares", [[14, 38]]), ("max", [[3, 0]])]
)
def test_reduced(function: str, wanted: list[list[float]]) -> None:
    graph, x = graph_of(function, 6, 3), np.array([[1.0, 2.0, 3.0, -2.0, -3.0, -5.0]])
    assert reference(graph)({"x": x})[0]["z"].tolist() == wanted
    assert exact(graph)({"x": x})[0]["z"].tolist() == wanted


def test_refused() -> None:
    with pytest.raises(GraphError, match="there is no reduction 'product'; sum, squares, max"):
        Reduce("product", 3)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="pieces of 0 features are reduced; 1 to 65536 are allowed"):
        Reduce("sum", 0)
    with pytest.raises(GraphError, match=r"sum\[4\] is given tokens x 6"):
        graph_of("sum", 6, 4)


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(("features", "length"), [(24, 6), (21, 7), (16, 16)])
def test_on_hardware(function: str, features: int, length: int) -> None:
    accelerator = streamgen.compile(graph_of(function, features, length))
    x = np.random.default_rng(0).normal(size=(5, features)).astype(np.float32)
    assert np.array_equal(accelerator.run(x), accelerator.golden(x))
