"""Operations, each by itself: what it means against torch, its bits against its kernel, what it refuses."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from streamgen.base.errors import GraphError
from streamgen.gateware.functions import FUNCTIONS
from streamgen.gateware.pointwise import Formula
from streamgen.itensor import ITensor
from streamgen.kernels.attention.rope import RopeParams
from streamgen.kernels.attention.rope_tables import rotation_table
from streamgen.kernels.elementwise import BinaryParams, ScalarParams, UnaryParams
from streamgen.kernels.norm.norm import NormParams
from streamgen.kernels.top_k import TopKParams
from streamgen.model.graph.interpret import exact, reference
from streamgen.model.graph.logical import Input, LogicalGraph, Operation, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations import (
    BINARY_OPERATIONS,
    Attention,
    Binary,
    Cache,
    Constant,
    Embedding,
    Expression,
    LastRow,
    Linear,
    Norm,
    Rotary,
    Scalar,
    TopK,
    Unary,
)
from streamgen.numbers.formats import round_f24
from streamgen.numbers.quantisation import GroupGrid, Numbers, quantise
from tests.shared.spellings import torch_values

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)
T = 6


def rows(features: int, seed: int = 0) -> np.ndarray:
    """f24 values [T, features]."""
    return round_f24(np.random.default_rng([features, seed]).normal(size=(T, features)))


def of(interpreter: Any, op: Operator, *inputs: np.ndarray, **choice: Any) -> Any:
    """What one operation computes: an array, or several."""
    names = tuple(f"x{i}" for i in range(len(inputs)))
    values = tuple(Input(n, x.shape[1]) for n, x in zip(names, inputs, strict=True))
    operation = Operation("y", op, names)
    graph = LogicalGraph(values, (operation,), operation.values)
    outputs, _ = interpreter(graph)(dict(zip(names, inputs, strict=True)), **choice)
    found = list(outputs.values())
    return found[0] if len(found) == 1 else found


def torch_of(function: Any, *inputs: np.ndarray) -> np.ndarray:
    return function(*(torch.from_numpy(x.astype(np.float64)) for x in inputs)).numpy()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions(function: str) -> None:
    """And the gated product, which rounds once; without overflow anywhere."""
    x, b = round_f24(rows(64) * 3), rows(64, 1)
    x[0, :4] = [-1000, 1000, 0, -30]
    with np.errstate(all="raise", under="ignore"):
        found = of(reference, Unary(function), x)
    np.testing.assert_allclose(found, torch_values(FUNCTIONS[function], x), rtol=1e-12, atol=1e-12)
    gated = of(reference, Binary(f"{function}_mul"), x, b)
    np.testing.assert_allclose(gated, torch_values(FUNCTIONS[function], x) * b, atol=1e-9)
    kernel = UnaryParams(function=function, lanes=1, max_tokens=1)
    np.testing.assert_array_equal(of(exact, Unary(function), x), kernel.golden({}, {"i": x})["o"])
    near = of(exact, Binary(f"{function}_mul"), x, b)
    held = np.where(np.abs(gated) >= 2.0**128, np.copysign(np.inf, gated), gated)
    np.testing.assert_allclose(near, held, rtol=2.0**-13, atol=2.0**-13)


GATED = [f"{name}_mul" for name, function in FUNCTIONS.items() if function.gates]


@pytest.mark.parametrize("operation", ["add", "mul", *GATED])
def test_binary_is_the_kernel(operation: str) -> None:
    a, b = rows(40), rows(40, 1)
    kernel = BinaryParams(operation=Binary(operation).kernel, lanes=1, max_tokens=1)
    order = ITensor((1, 1), "f24", (T, 40), (1, 1), ((0,), (1,)))
    expected = kernel.golden({"itensor": order}, {"i_a": a, "i_b": b})["o"]
    np.testing.assert_array_equal(of(exact, Binary(operation), a, b), expected)
    torch_function = {"add": torch.add, "mul": torch.mul}.get(operation)
    if torch_function is not None:
        np.testing.assert_array_equal(of(reference, Binary(operation), a, b), torch_of(torch_function, a, b))


@pytest.mark.parametrize("constant", [0.75, 30.0])
def test_scalar(constant: float) -> None:
    x = rows(33) * 40
    for function, by_hand in (
        ("scale", lambda x: x * constant),
        ("soft_cap", lambda x: constant * torch.tanh(x / constant)),
        ("maximum", lambda x: x.clamp(min=constant)),
        ("minimum", lambda x: x.clamp(max=constant)),
        ("leaky", lambda x: torch.nn.functional.leaky_relu(x, constant)),
        ("threshold", lambda x: torch.nn.functional.threshold(x, constant, 0.0)),
        ("hardshrink", lambda x: torch.nn.functional.hardshrink(x, constant)),
    ):
        op = Scalar(function, np.float64(constant))
        np.testing.assert_allclose(of(reference, op, x), torch_of(by_hand, x), rtol=1e-13)
        kernel = ScalarParams(function=function, lanes=1, max_tokens=1)
        expected = kernel.golden({"constant": constant}, {"i": x})["o"]
        np.testing.assert_array_equal(of(exact, op, x), expected)


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize(("bias", "plus_one"), [(False, True), (True, False)])
def test_norm(kind: str, heads: int, bias: bool, plus_one: bool) -> None:
    """Of a whole row, and of each head by itself."""
    d = 24
    rng = np.random.default_rng(3)
    weight, shift = rng.normal(size=(2, d)).astype(np.float32)
    op = Norm(kind, weight, 1e-3, shift if bias else None, plus_one, heads)
    x = rows(d * heads)

    def by_torch(x: torch.Tensor) -> torch.Tensor:
        pieces, factor = x.reshape(T, heads, d), torch.from_numpy(weight).double() + plus_one
        if kind == "rms":
            y = functional.rms_norm(pieces, (d,), factor, 1e-3)
        else:
            y = functional.layer_norm(pieces, (d,), factor, eps=1e-3)
        return (y + (torch.from_numpy(shift) if bias else 0)).reshape(x.shape)

    np.testing.assert_allclose(of(reference, op, x), torch_of(by_torch, x), rtol=1e-12, atol=1e-12)
    kernel = NormParams(kind=kind, lanes=4, max_k=d, max_rows=99, bias=bias, plus_one=plus_one)
    inputs = {"i": x.reshape(-1, d), **op.constants()}
    expected = kernel.golden({"t": T * heads, "k": d, "valid_k": d, "epsilon": 1e-3}, inputs)["o"]
    np.testing.assert_array_equal(of(exact, op, x), expected.reshape(x.shape))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotated", [4, 8])
def test_rotary(interleaved: bool, rotated: int) -> None:
    """Pairs are complex numbers that turn; what does not rotate passes."""
    heads, d, position = 3, 10, 7
    frequencies = 0.9 / np.arange(1, rotated // 2 + 1)
    op = Rotary(heads, d, tuple(frequencies), interleaved)
    x = rows(heads * d)
    pieces = x.reshape(T, heads, d).astype(np.float64)
    turning = pieces[..., :rotated].reshape(T, heads, *((-1, 2) if interleaved else (2, -1)))
    pairs = turning if interleaved else turning.swapaxes(2, 3)
    angles = (position + np.arange(T))[:, None, None] * frequencies
    z = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles)
    turned = np.stack([z.real, z.imag], axis=3 if interleaved else 2).reshape(T, heads, rotated)
    expected = np.concatenate([turned, pieces[..., rotated:]], axis=2).reshape(T, -1)
    np.testing.assert_allclose(of(reference, op, x, position=position), expected, atol=1e-12)
    kernel = RopeParams(lanes=2, dims=d, rotated=rotated, interleaved=interleaved, max_heads=99)
    table = rotation_table(np.arange(position, position + T), frequencies)
    wanted = kernel.golden({"rows": T, "heads": heads}, {"i": x, "i_table": table})["o"]
    np.testing.assert_array_equal(of(exact, op, x, position=position), wanted)


@pytest.mark.parametrize("k", [1, 3])
def test_top_k(k: int) -> None:
    """The first of equal ones; NaN is the greatest."""
    x = np.round(rows(9) * 2)
    x[1, 5] = x[2, 4] = np.nan
    values, indices = of(reference, TopK(k), x)
    expected = torch.from_numpy(x).sort(dim=1, descending=True, stable=True)
    np.testing.assert_array_equal(indices, expected.indices[:, :k])
    np.testing.assert_array_equal(values, expected.values[:, :k])
    kernel = TopKParams(lanes=3, max_length=9, max_k=4)
    wanted = kernel.golden({"rows": T, "length": 9, "k": k}, {"i": x})
    values, indices = of(exact, TopK(k), x)
    np.testing.assert_array_equal(values, wanted["o_values"])
    np.testing.assert_array_equal(indices, wanted["o_indices"])


ATTENTIONS: list[dict[str, Any]] = [
    {},
    {"window": 3},
    {"causal": False},
    {"causal": False, "window": 3},
    {"soft_cap": 1.5},
    {"soft_cap": 0.5, "window": 2},
]


def attention_inputs() -> tuple[np.ndarray, ...]:
    return rows(4 * 8), rows(2 * 8, 1), rows(2 * 8, 2)


@pytest.mark.parametrize("choice", ATTENTIONS)
def test_attention(choice: dict[str, Any]) -> None:
    """Against torch's, with a mask; a soft-cap, which torch has not, by its formula."""
    op = Attention(4, 2, 8, 0.3, **choice)
    q, k, v = (torch.from_numpy(x.astype(np.float64)) for x in attention_inputs())
    q, k, v = q.reshape(T, 4, 8).transpose(0, 1), *(x.reshape(T, 2, 8).transpose(0, 1) for x in (k, v))
    k, v = k.repeat_interleave(2, dim=0), v.repeat_interleave(2, dim=0)
    behind = torch.arange(T)[:, None] - torch.arange(T)
    seen = torch.ones(T, T, dtype=torch.bool) if not choice.get("causal", True) else behind >= 0
    seen &= behind.abs() < choice.get("window", T)
    if (cap := choice.get("soft_cap")) is None:
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=0.3)
    else:
        scores = cap * torch.tanh(0.3 * q @ k.transpose(1, 2) / cap)
        y = torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=2) @ v
    expected = y.transpose(0, 1).reshape(T, -1).numpy()
    np.testing.assert_allclose(of(reference, op, *attention_inputs()), expected, rtol=1e-12, atol=1e-12)
    # q, k and v of 8 bits, each off by 2^-8 of the greatest of its head; scores of a few units
    found = of(exact, op, *attention_inputs())
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("choice", [c for c in ATTENTIONS if c.get("causal", True)])
@pytest.mark.parametrize("interpreter", [reference, exact])
def test_attention_over_a_cache(interpreter: Any, choice: dict[str, Any]) -> None:
    """Pass by pass it is what it is over the rows of one pass."""
    whole = of(interpreter, Attention(4, 2, 8, 0.3, **choice), *attention_inputs())
    values = tuple(Input(name, x.shape[1]) for name, x in zip("qkv", attention_inputs(), strict=True))
    graph = LogicalGraph(
        values,
        (
            Operation("keys", Cache(2, 8), ("k",)),
            Operation("values", Cache(2, 8), ("v",)),
            Operation("y", Attention(4, 2, 8, 0.3, **choice), ("q", "keys", "values")),
        ),
        ("y",),
        context=T,
    )
    run, state, found = interpreter(graph), None, []
    for part in (slice(0, 1), slice(1, 4), slice(4, T)):
        given = {name: x[part] for name, x in zip("qkv", attention_inputs(), strict=True)}
        outputs, state = run(given, position=part.start, state=state)
        found.append(outputs["y"])
    np.testing.assert_allclose(np.concatenate(found), whole, rtol=1e-12 if interpreter is reference else 0)


def test_linear() -> None:
    """A quantised weight means what its integers stand for."""
    rng = np.random.default_rng(1)
    weight, bias = rng.normal(size=(5, 40)).astype(np.float32), rng.normal(size=5).astype(np.float32)
    x = rows(40)
    expected = torch_of(functional.linear, x, weight, bias)
    np.testing.assert_allclose(of(reference, Linear(weight, bias), x), expected, rtol=1e-12, atol=1e-12)
    quantised = Linear(weight, bias).quantised(Numbers(weights="w8"), "y")
    near = quantise(weight, form="w8").dequantise()
    expected = torch_of(functional.linear, x, near, bias)
    np.testing.assert_allclose(of(reference, quantised, x), expected, rtol=1e-12, atol=1e-12)
    assert quantised.quantised(Numbers(weights="w4"), "y") is quantised
    with pytest.raises(GraphError, match=r"^linear\[40 -> 5\] is not quantised$"):
        of(exact, Linear(weight), x)


def test_embedding_and_last_row() -> None:
    table = np.random.default_rng(1).normal(size=(7, 3)).astype(np.float32)
    graph = LogicalGraph(
        (Input("ids", 1, "ids"),),
        (Operation("e", Embedding(table), ("ids",)), Operation("y", LastRow(), ("e",))),
        ("e", "y"),
    )
    ids = np.array([3, 0, 6])
    for interpreter, rounded in ((reference, table.astype(np.float64)), (exact, round_f24(table))):
        for every_row in (False, True):
            found, _ = interpreter(graph)({"ids": ids}, every_row=every_row)
            np.testing.assert_array_equal(found["e"], rounded[ids])
            np.testing.assert_array_equal(found["y"], rounded[ids] if every_row else rounded[ids[-1:]])


def test_table_of_eight_bits() -> None:
    """Where it is asked for, and where the table would be too large: code * scale, rounded once."""
    table = np.random.default_rng(1).normal(size=(7, 48)).astype(np.float32)
    op = Embedding(table)
    for numbers in (Numbers(), Numbers(by_layer={"*": "w4"}), Numbers(table_bytes=table.nbytes)):
        assert op.quantised(numbers, "embedding") is op
    kept = Numbers(table_bytes=8, by_layer={"embedding": "f24"})
    assert op.quantised(kept, "embedding") is op
    for numbers in (Numbers(by_layer={"embedding": "w8"}), Numbers(table_bytes=table.nbytes - 1)):
        small = op.quantised(numbers, "embedding")
        assert str(small) == "embedding[7 x 48, w8]" and small.quantised(numbers, "embedding") is small
        graph = LogicalGraph((Input("ids", 1, "ids"),), (Operation("e", small, ("ids",)),), ("e",))
        ids = np.array([6, 0, 6])
        meant = quantise(table, form="w8").dequantise()
        np.testing.assert_array_equal(reference(graph)({"ids": ids})[0]["e"], meant[ids])
        np.testing.assert_array_equal(exact(graph)({"ids": ids})[0]["e"], round_f24(meant)[ids])
        assert np.abs(meant - table).max() <= np.abs(table).max() / 253


def test_a_matmul_has_the_format_that_is_asked_for() -> None:
    """Layers named by the user come first, then the user's format for all, then the checkpoint's."""
    weight = np.random.default_rng(1).normal(size=(5, 64)).astype(np.float32)
    grid = GroupGrid(np.ones((5, 64), np.uint8), np.ones((5, 2), np.float32), np.zeros((5, 2), np.float32))
    for op, own in (
        (Linear(weight), "w4"),
        (Linear(weight, asked="w8"), "w8"),
        (Linear(weight, asked="w4"), "w4"),
        (Linear(weight, grid=grid), "w4"),
    ):
        assert op.form() == Linear(weight).form()
        for numbers, form in (
            (Numbers(), own),
            (Numbers(weights="w4"), "w4"),
            (Numbers(weights="w8"), "w8"),
            (Numbers(weights="w4", by_layer={"y": "w8"}), "w8"),
            (Numbers(by_layer={"*": "f24", "y": "w4"}), "w4"),
        ):
            found = op.quantised(numbers, "y").integers
            assert found.format == form and op.quantised(numbers, "y").wanted is None
            assert (op.grid is not None and form == "w4") == np.array_equal(found.codes, np.full((5, 64), -7))


@pytest.mark.parametrize(
    "op",
    [
        *map(Unary, FUNCTIONS),
        *map(Binary, BINARY_OPERATIONS),
        *(Scalar(function, np.float64(2.0)) for function in ("scale", "soft_cap")),
        Linear(np.ones((4, 16), np.float32), np.ones(4, np.float32)),
        Linear(quantise(np.ones((4, 16), np.float32), form="w8")),
        Norm("layer", np.ones(8, np.float32), np.float64(1e-5), np.ones(8, np.float32), True, 2),
        Rotary(2, 8, (1.0, 0.5)),
        Cache(2, 8),
        Attention(2, 2, 8, np.float64(0.5), soft_cap=2.0),
        Constant(np.ones(16, np.float32)),
        LastRow(),
    ],
    ids=str,
)
def test_the_dtype_of_a_run_is_kept(op: Operator) -> None:
    for dtype in (np.float32, np.float64):
        inputs = [rows(16).astype(dtype)] * op.arity
        assert op.reference(Run(T, dtype=dtype), *inputs).dtype == dtype


X = Shape(3)


@pytest.mark.parametrize(
    ("op", "shapes", "message"),
    [
        (Linear(WEIGHT), (Shape(5),), "a Linear of weight [4, 3] takes 3 features; it is given 5"),
        (
            Binary("mul"),
            (X, Shape(4)),
            "mul takes two values with the same number of features, not (3, 4)",
        ),
        (
            Binary("add"),
            (X, Shape(3, "positions")),
            "add takes two values of the same rows, not tokens x 3 and positions x 3",
        ),
        (Norm("rms", WEIGHT[0], 1e-5, heads=2), (X,), "a norm of 6 features is given 3"),
        (Rotary(2, 4, (1.0,)), (X,), "2 heads of 4 rotate, 8 features; 3 are given"),
        (Cache(2, 4), (X,), "a cache of 2 heads of 4 takes 8 features a token, not tokens x 3"),
        (
            Cache(1, 3),
            (Shape(3, "positions"),),
            "a cache of 1 heads of 3 takes 3 features a token, not positions x 3",
        ),
        (Embedding(WEIGHT), (X,), "an embedding takes ids; it is given tokens x 3"),
        (LastRow(), (Shape(3, "one"),), "the last row is taken of tokens, not of one x 3"),
        (TopK(4), (X,), "the 4 greatest of 3 features do not exist"),
        (
            Attention(2, 1, 3, 1.0),
            (Shape(6), Shape(3), Shape(6)),
            "v has 6 features; 1 heads of 3 need 3",
        ),
        (
            Attention(1, 1, 3, 1.0, causal=False, window=4),
            (X, Shape(3, "positions"), Shape(3, "positions")),
            "a window of 4 positions on both sides reads later tokens, which no cache holds; causal "
            "attention is needed over a cache",
        ),
        (
            Attention(1, 1, 3, 1.0),
            (X, Shape(3, "positions"), X),
            "attention takes tokens and positions; it is given tokens x 3, positions x 3 and tokens x 3",
        ),
        (
            Expression(Formula(values=2, steps=(("divide", (0, 1)),))),
            (Shape(3), Shape(4)),
            "an expression takes values with the same number of features, not tokens x 3, tokens x 4",
        ),
        (
            Expression(Formula(values=2, steps=(("divide", (0, 1)),))),
            (Shape(3), Shape(3, "positions")),
            "an expression takes values of the same rows, not tokens x 3, positions x 3",
        ),
    ],
)
def test_shape_laws(op: Operator, shapes: tuple[Shape, ...], message: str) -> None:
    with pytest.raises(GraphError) as caught:
        op.shapes(*shapes)
    assert str(caught.value) == message


GRID = GroupGrid(np.zeros((4, 4), np.uint8), *[np.zeros((4, 1), np.float32)] * 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Unary("cube"),
            f"there is no unary function 'cube'; {', '.join(FUNCTIONS)}",
        ),
        (
            lambda: Binary("div"),
            f"there is no binary operation 'div'; {', '.join(BINARY_OPERATIONS)}",
        ),
        (
            lambda: Scalar("power", 2.0),
            "there is no scalar function 'power'; it must be 'scale', 'soft_cap', 'maximum', 'minimum', "
            "'leaky', 'threshold' or 'hardshrink'",
        ),
        (lambda: Scalar("scale", math.inf), "the constant of scale is inf; a finite f24 is needed"),
        (lambda: Scalar("scale", 1e39), "the constant of scale is 1e+39; a finite f24 is needed"),
        (lambda: Scalar("soft_cap", 0.0), "the constant of soft_cap is 0.0; 2^-126 to 2^126 are allowed"),
        (lambda: Linear(WEIGHT[0]), "the weight of a Linear has shape [3]; [N, K] is needed"),
        (lambda: Linear(WEIGHT, WEIGHT[0]), "a Linear has weight [4, 3] and bias [3]; [4] is needed"),
        (lambda: Linear(WEIGHT, None, GRID), "a Linear has weight [4, 3] and a grid of [4, 4]"),
        (lambda: Constant(WEIGHT), "a constant has shape [4, 3]; [features] is needed"),
        (lambda: Embedding(WEIGHT[0]), "the table of Embedding has shape [3]; [rows, features] is needed"),
        (lambda: TopK(0), "k of a top-k is 0; at least 1 is needed"),
        (
            lambda: Norm("l2", WEIGHT[0], 1e-5),
            "there is no norm of kind 'l2'; 'rms' and 'layer' are known",
        ),
        (lambda: Norm("rms", WEIGHT, 1e-5), "the weight of a norm has shape [4, 3]; [features] is needed"),
        (
            lambda: Norm("layer", WEIGHT[0], 1e-5, WEIGHT[0][:2]),
            "a norm has weight [3] and bias [2]; both must be [features]",
        ),
        (
            lambda: Norm("rms", WEIGHT[0], -1.0),
            "the epsilon of a norm is -1.0; it must be finite, 0 or more",
        ),
        (lambda: Norm("rms", WEIGHT[0], 1.0, heads=0), "heads of a norm is 0; at least 1 is needed"),
        (lambda: Rotary(1, 4, ()), "rotary frequencies must all be finite, one or more"),
        (lambda: Rotary(1, 4, (1.0, math.nan)), "rotary frequencies must all be finite, one or more"),
        (lambda: Rotary(1, 4, (1.0,) * 3), "6 dimensions rotate; a head has 4"),
        (lambda: Rotary(0, 4, (1.0,)), "heads of a rotation is 0; at least 1 is needed"),
        (lambda: Cache(1, 0), "head_dim of a cache is 0; at least 1 is needed"),
        (lambda: Attention(4, 0, 8, 1.0), "kv_heads of an attention is 0; at least 1 is needed"),
        (lambda: Attention(4, 3, 8, 1.0), "4 query heads cannot share 3 key heads evenly"),
        (
            lambda: Attention(1, 1, 8, 1.0, window=0),
            "the window of an attention is 0 positions; at least 1 is needed",
        ),
        (
            lambda: Attention(1, 1, 8, 1.0, soft_cap=0.0),
            "the soft-cap of an attention is 0.0; it must be above 0",
        ),
        (lambda: Attention(1, 1, 8, math.nan), "the scale of an attention is nan; it must be finite"),
    ],
)
def test_bad_operations(make: Any, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        make()
    assert str(caught.value) == message
