"""streamgen.graph.ops: logical graphs say what they compute, and refuse what makes no sense."""

import numpy as np
import pytest

from streamgen.errors import GraphError
from streamgen.graph.ops import Binary, Constant, Linear, LogicalGraph, Operation, Unary, Value
from streamgen.quantisation import GroupGrid

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)
X = Value("x", 3)
LAYER = Operation("y", Linear(WEIGHT, np.ones(4, np.float32)), ("x",), 4, "mlp.up (Linear), model.py:7")


def test_reference_and_text() -> None:
    graph = LogicalGraph(
        (X, Value("gate", 4)),
        (
            LAYER,
            Operation("half", Constant(np.full(4, 0.5, np.float32)), (), 4),
            Operation("product", Binary("mul"), ("y", "half"), 4),
            Operation("total", Binary("add"), ("product", "gate"), 4),
            Operation("out", Unary("silu"), ("total",), 4),
        ),
        ("out", "half"),
    )
    x, gate = np.array([[1.0, -2, 3], [0, 0, 0]]), np.array([[-30.0, 0, 1, 2], [-800, 800, 0, 1]])
    total = (x @ WEIGHT.T + 1) / 2 + gate
    out, half = graph.reference(x, gate)
    assert np.allclose(out, total * 0.5 * (1 + np.tanh(total / 2)), rtol=1e-12, atol=1e-10)
    assert np.array_equal(half, np.full((2, 4), 0.5))
    assert str(graph).splitlines() == [
        "inputs x: 3, gate: 4",
        "y: 4 = linear[3 -> 4, bias](x)  # mlp.up (Linear), model.py:7",
        "half: 4 = constant[4]()",
        "product: 4 = mul(y, half)",
        "total: 4 = add(product, gate)",
        "out: 4 = silu(total)",
        "outputs out, half",
    ]


@pytest.mark.parametrize("x", [-1000.0, -1.5, 0.0, 2.0, 1000.0])
def test_functions_do_not_overflow(x: float) -> None:
    value = np.array([x])
    with np.errstate(all="raise", under="ignore"):
        assert Unary("relu").reference(value) == max(x, 0)
        sigmoid = 0.5 * (1 + np.tanh(x / 2))
        assert np.allclose(Unary("sigmoid").reference(value), sigmoid, rtol=1e-12, atol=1e-10)
        assert np.allclose(Unary("silu").reference(value), x * sigmoid, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize(
    ("inputs", "operations", "outputs", "message"),
    [
        ((X,), (), ("x",), "no operation computes the output 'x'"),
        ((X,), (LAYER,), (), "the outputs are (); one or more different names are needed"),
        ((X,), (LAYER,), ("y", "y"), "the outputs are ('y', 'y'); one or more different names are needed"),
        ((X,), (LAYER,), ("z",), "no operation computes the output 'z'"),
        ((X, Value("w", 2)), (LAYER,), ("y",), "nothing uses 'w'"),
        ((X, X), (LAYER,), ("y",), "the name 'x' is given twice"),
        ((X, Value("a.b", 2)), (LAYER,), ("y",), "'a.b' is not a name: letters, digits and _ make one"),
        ((X, Value("z", 0)), (LAYER,), ("y",), "'z' has 0 features; at least 1 is needed"),
        (
            (),
            (LAYER,),
            ("y",),
            "'y' (mlp.up (Linear), model.py:7) uses 'x', which is not defined before it",
        ),
        (
            (Value("x", 5),),
            (LAYER,),
            ("y",),
            "'y' (mlp.up (Linear), model.py:7): a Linear of weight [4, 3] takes 3 features, it is given 5",
        ),
        (
            (X, Value("z", 4)),
            (Operation("y", Binary("add"), ("x", "z"), 4),),
            ("y",),
            "'y': add takes two values of the same features, not (3, 4)",
        ),
        ((X,), (Operation("y", Binary("add"), ("x",), 3),), ("y",), "'y': add takes 2 values"),
        ((X,), (Operation("y", Unary("relu"), ("x",), 4),), ("y",), "'y' has 3 features, 4 are stated"),
    ],
)
def test_bad_graphs(inputs, operations, outputs, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        LogicalGraph(inputs, operations, outputs)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Unary("sin"),
            "there is no unary function 'sin'; relu, sigmoid, silu, tanh, gelu, gelu_tanh",
        ),
        (lambda: Binary("div"), "there is no binary operation 'div'; add, mul"),
        (lambda: Linear(WEIGHT[0]), "the weight of a Linear has shape [3]; [N, K] is needed"),
        (lambda: Linear(WEIGHT, WEIGHT[0]), "a Linear has weight [4, 3] and bias [3]; [4] is needed"),
        (
            lambda: Linear(
                WEIGHT, None, GroupGrid(np.zeros((4, 4), np.uint8), *[np.zeros((4, 1), np.float32)] * 2)
            ),
            "a Linear has weight [4, 3] and a grid of [4, 4]",
        ),
        (lambda: Constant(WEIGHT), "a constant has shape [4, 3]; [features] is needed"),
    ],
)
def test_bad_operations(make, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        make()
    assert str(caught.value) == message


def test_bad_arrays() -> None:
    graph = LogicalGraph((X,), (LAYER,), ("y",))
    with pytest.raises(ValueError, match="the graph has 1 inputs, 2 arrays are given"):
        graph.reference(np.zeros((2, 3)), np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"input 'x' has shape \[2, 4\]; \[2, 3\] is needed"):
        graph.reference(np.zeros((2, 4)))
