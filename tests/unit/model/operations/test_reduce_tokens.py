"""Reductions over tokens, and rows of single tokens, in a graph and on hardware."""

import numpy as np
import pytest

import streamgen
from streamgen.base.errors import GraphError
from streamgen.kernels.token_reductions import FUNCTIONS
from streamgen.model.graph.interpret import exact, reference
from streamgen.model.graph.logical import Input, LogicalGraph, Operation
from streamgen.model.operations import Linear, ReduceTokens, TokenRow, Unary

X = np.array([[1.0, -2.0], [3.0, -3.0], [2.0, -4.0], [2.0, 1.0]])


def graph_of(*ops: ReduceTokens | TokenRow, features: int) -> LogicalGraph:
    """Each of the operations, with a Linear and a function behind it."""
    weight = np.random.default_rng(7).normal(size=(6, features)).astype(np.float32)
    operations = []
    for k, op in enumerate(ops):
        operations += [
            Operation(f"y{k}", op, ("x",)),
            Operation(f"w{k}", Linear(weight), (f"y{k}",)),
            Operation(f"z{k}", Unary("tanh"), (f"w{k}",)),
        ]
    return LogicalGraph((Input("x", features),), tuple(operations), tuple(f"z{k}" for k in range(len(ops))))


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        (ReduceTokens("sum"), [[8, -8]]),
        (ReduceTokens("mean"), [[2, -2]]),
        (ReduceTokens("max"), [[3, 1]]),
        (ReduceTokens("min"), [[1, -4]]),
        (TokenRow("first"), [[1, -2]]),
        (TokenRow("last"), [[2, 1]]),
    ],
)
def test_reduced(op: ReduceTokens | TokenRow, wanted: list[list[float]]) -> None:
    operations = (Operation("y", op, ("x",)),)
    graph = LogicalGraph((Input("x", 2),), operations, ("y",))
    assert reference(graph)({"x": X})[0]["y"].tolist() == wanted
    assert exact(graph)({"x": X})[0]["y"].tolist() == wanted
    assert graph.mixes_tokens


def test_refused() -> None:
    with pytest.raises(GraphError, match="there is no reduction 'product' of tokens; sum, mean, max, min"):
        ReduceTokens("product")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="the row of the 'second' token is wanted; first and last"):
        TokenRow("second")  # type: ignore[arg-type]
    twice = (Operation("y", ReduceTokens("sum"), ("x",)), Operation("z", TokenRow("last"), ("y",)))
    with pytest.raises(GraphError, match="last_token is given one x 6"):
        LogicalGraph((Input("x", 6),), twice, ("z",))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["shared", "spatial"])
@pytest.mark.parametrize("features", [24, 21])
def test_on_hardware(features: int, policy: str) -> None:
    """One row for sequences of different lengths, and for several of them."""
    ops = (*map(ReduceTokens, FUNCTIONS), TokenRow("first"), TokenRow("last"))
    config = streamgen.CompileConfig(name="pooled", max_tokens=7, policy=policy)
    accelerator = streamgen.compile(graph_of(*ops, features=features), None, config)
    for shape in ((7,), (1,), (2, 5)):
        x = np.random.default_rng(0).normal(size=(*shape, features)).astype(np.float32)
        for found, golden in zip(accelerator.run(x), accelerator.golden(x), strict=True):
            assert found.shape[:-1] in (shape[:-1], (*shape[:-1], 1))
            assert np.array_equal(found, golden)
