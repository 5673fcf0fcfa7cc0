"""streamgen.model.graph.logical: graphs say what they compute, and refuse what makes no sense."""

import numpy as np
import pytest

from streamgen.base.errors import GraphError
from streamgen.model.graph.interpret import exact, reference
from streamgen.model.graph.logical import Input, LogicalGraph, Operation, Repeat
from streamgen.model.operations import Binary, Constant, LastRow, Linear, Scalar, TopK, Unary
from streamgen.numbers.quantisation import Numbers
from tests.shared.decoders import random_decoder, tiny_decoder

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)
X = Input("x", 3)
LAYER = Operation("y", Linear(WEIGHT, np.ones(4, np.float32)), ("x",), "mlp.up (Linear), model.py:7")


def test_reference_and_text() -> None:
    graph = LogicalGraph(
        (X, Input("gate", 4)),
        (
            LAYER,
            Operation("half", Constant(np.full(4, 0.5, np.float32)), ()),
            Operation("product", Binary("mul"), ("y", "half")),
            Operation("total", Binary("add"), ("product", "gate")),
            Operation("out", Unary("silu"), ("total",)),
        ),
        ("out", "half"),
    )
    x, gate = np.array([[1.0, -2, 3], [0, 0, 0]]), np.array([[-30.0, 0, 1, 2], [-800, 800, 0, 1]])
    total = (x @ WEIGHT.T + 1) / 2 + gate
    outputs, state = reference(graph)({"x": x, "gate": gate})
    out, half = outputs["out"], outputs["half"]
    assert not state and set(outputs) == {"out", "half"}
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


@pytest.mark.parametrize(
    ("inputs", "operations", "outputs", "message"),
    [
        ((X,), (), ("x",), "no operation computes the output 'x'"),
        ((X,), (LAYER,), (), "the outputs are (); one or more different names are needed"),
        ((X,), (LAYER,), ("y", "y"), "the outputs are ('y', 'y'); one or more different names are needed"),
        ((X,), (LAYER,), ("z",), "no operation computes the output 'z'"),
        ((X, Input("w", 2)), (LAYER,), ("y",), "nothing uses 'w'"),
        ((X, X), (LAYER,), ("y",), "the name 'x' is given twice"),
        (
            (X, Input("a.b", 2)),
            (LAYER,),
            ("y",),
            "'a.b' is not a name; a name has letters, digits and _, and no digit first",
        ),
        ((X, Input("z", 0)), (LAYER,), ("y",), "'z' has 0 features; at least 1 is needed"),
        (
            (),
            (LAYER,),
            ("y",),
            "'y' (mlp.up (Linear), model.py:7) uses 'x', which is not defined before it",
        ),
        (
            (Input("x", 5),),
            (LAYER,),
            ("y",),
            "'y' (mlp.up (Linear), model.py:7): a Linear of weight [4, 3] takes 3 features; it is given 5",
        ),
        (
            (X, Input("z", 4)),
            (Operation("y", Binary("add"), ("x", "z")),),
            ("y",),
            "'y': add takes two values with the same number of features, not (3, 4)",
        ),
        ((X,), (Operation("y", Binary("add"), ("x",)),), ("y",), "'y': add takes 2 values"),
    ],
)
def test_bad_graphs(inputs, operations, outputs, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        LogicalGraph(inputs, operations, outputs)
    assert str(caught.value) == message


def test_a_negative_context() -> None:
    with pytest.raises(GraphError) as caught:
        LogicalGraph((X,), (LAYER,), ("y",), context=-1)
    assert str(caught.value) == "the context is -1 positions; 0 or more are needed"


@pytest.mark.parametrize("interpret", [reference, exact])
def test_bad_inputs(interpret) -> None:
    """Of any interpreter; the whole message."""
    run = interpret(random_decoder().quantised(Numbers()))
    _, state = run({"ids": np.arange(3)})
    for inputs, choice, kind, message in (
        ({}, {}, ValueError, "inputs are ['ids'], got []"),
        ({"x": np.arange(3)}, {}, ValueError, "inputs are ['ids'], got ['x']"),
        ({"ids": []}, {}, ValueError, "the inputs hold no tokens; at least one is needed"),
        ({"ids": [[1, 2]]}, {}, ValueError, "input 'ids' has shape [1, 2]; [1] is needed"),
        ({"ids": [1.0]}, {}, TypeError, "ids are float64; integers are needed"),
        ({"ids": [1, 70]}, {}, ValueError, "ids[1] is 70; ids are 0 to 69"),
        ({"ids": [-1]}, {}, ValueError, "ids[0] is -1; ids are 0 to 69"),
        (
            {"ids": [1] * 62},
            {"position": 3, "state": state},
            ValueError,
            "3 tokens and 62 more are 65; the context is 64",
        ),
        (
            {"ids": [1]},
            {"position": 4, "state": state},
            ValueError,
            "the state of layers[0].keys holds 3 positions; 4 are needed",
        ),
    ):
        with pytest.raises(kind) as caught:
            run(inputs, **choice)
        assert str(caught.value) == message


def test_bad_arrays() -> None:
    run = reference(LogicalGraph((X,), (LAYER,), ("y",)))
    with pytest.raises(ValueError, match=r"^input 'x' has shape \[2, 4\]; \[2, 3\] is needed$"):
        run({"x": np.zeros((2, 4))})


@pytest.mark.parametrize("interpret", [reference, exact])
@pytest.mark.parametrize("split", [(1,) * 9, (4, 5), (7, 1, 1)])
def test_any_split_into_passes(interpret, split: tuple[int, ...]) -> None:
    """Same results, and a state that is given stays as it is: a pass may be run again."""
    run = interpret(random_decoder(windows=(None, 3)).quantised(Numbers(weights="w8")))
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if interpret is reference else {"rtol": 0, "atol": 0}
    ids = np.random.default_rng(3).integers(0, 70, 9)
    whole, final = run({"ids": ids}, every_row=True)
    state, parts, start = None, [], 0
    for count in split:
        given = {"ids": ids[start : start + count]}
        again, _ = run(given, position=start, state=state)
        outputs, state = run(given, position=start, state=state, every_row=True)
        np.testing.assert_allclose(again["logits"], outputs["logits"][-1:], **tolerance)
        start += count
        parts.append(outputs["logits"])
    kept = {f"layers[{layer}].{name}" for layer in (0, 1) for name in ("keys", "values")}
    assert state.keys() == final.keys() == kept
    np.testing.assert_allclose(np.concatenate(parts), whole["logits"], **tolerance)


def test_only_what_is_wanted_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object) -> None:
        raise AssertionError("it is not needed")

    monkeypatch.setattr(TopK, "reference", never)
    outputs, _ = reference(random_decoder())({"ids": [1, 2]}, outputs=("logits",))
    assert outputs.keys() == {"logits"} and outputs["logits"].shape == (1, 70)


def _layer(op: Unary | Scalar) -> LogicalGraph:
    return LogicalGraph((X,), (Operation("y", op, ("x",)),), ("y",))


@pytest.mark.parametrize(
    ("ops", "period"),
    [
        ((Unary("relu"),) * 4, 1),
        ((Unary("relu"), Unary("silu")) * 2, 2),
        ((Unary("relu"), Unary("silu"), Unary("relu")), 3),
        ((Scalar("scale", 1.0), Scalar("scale", 2.0)) * 3, 2),
        ((Unary("relu"), Unary("silu"), Unary("relu"), Unary("silu"), Unary("relu")), 2),
    ],
)
def test_period(ops, period: int) -> None:
    found = Repeat(tuple(map(_layer, ops)))
    assert (found.period, found.walks) == (period, len(ops) // period)
    assert found.rest == found.layers[len(ops) - len(ops) % period :]
    graph = LogicalGraph((X,), (Operation("all", found, ("x",)),), ("all",))
    x = np.linspace(-2, 2, 6).reshape(2, 3)
    expected = x
    for op in ops:
        expected = reference(_layer(op))({"x": expected})[0]["y"]
    np.testing.assert_array_equal(reference(graph)({"x": x})[0]["all"], expected)
    assert str(graph).count("(x)") == 1 + period


def test_forms() -> None:
    """Alike are layers of other constants; not of other shapes, numbers, grids or choices."""

    def period(**changes: object) -> int:
        return random_decoder(layers=4, **changes).by_name["layers"].op.period

    assert period() == 1
    assert period(windows=(None, 4)) == 2
    assert period(windows=(None, 4, 4)) == 4
    mixed = {"layers[[]0].*": "w8", "layers[[]2].*": "w8"}
    for numbers, count in ((Numbers(), 1), (Numbers(by_layer=mixed), 2)):
        quantised = random_decoder(layers=4).quantised(numbers)
        assert quantised.by_name["layers"].op.period == count


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Repeat(()), "a repetition needs at least one layer"),
        (
            lambda: Repeat((LogicalGraph((X,), (LAYER,), ("y",)),)),
            "layers[0] gives tokens x 4 for 'x'; the next one takes tokens x 3",
        ),
        (
            lambda: Repeat((LogicalGraph((X,), (LAYER, Operation("z", Unary("relu"), ("x",))), ("y", "z")),)),
            "layers[0] has 1 inputs and 2 outputs",
        ),
        (
            lambda: LogicalGraph(
                (Input("x", 4),),
                (Operation("all", Repeat((_layer(Unary("relu")),)), ("x",)),),
                ("all",),
            ),
            "'all': layers take tokens x 3 as 'x'; they are given tokens x 4",
        ),
        (
            lambda: LogicalGraph(
                (X,),
                (Operation("last", LastRow(), ("x",)), Operation("y", Binary("add"), ("x", "last"))),
                ("y",),
            ),
            "'y': add takes two values of the same rows, not tokens x 3 and one x 3",
        ),
    ],
)
def test_bad_structure(make, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        make()
    assert str(caught.value) == message


def test_paths() -> None:
    graph = tiny_decoder()
    paths = [path for path, _ in graph.walk()]
    assert paths[:3] == ["embedding", "layers[0].attention_norm", "layers[0].q"] and paths[-1] == "best"
    assert graph.op("layers[1].q") is graph.by_name["layers"].op.layers[1].op("q")
    with pytest.raises(
        GraphError, match=r"^there is no operation 'layers\[2\].q'; there are embedding, layers\["
    ):
        graph.op("layers[2].q")
    changed = graph.map(lambda path, o: Unary("relu") if path == "layers[0].feed_forward_norm" else o.op)
    assert str(changed.op("layers[0].feed_forward_norm")) == "relu"
    assert changed.op("layers[1].feed_forward_norm") is graph.op("layers[1].feed_forward_norm")
