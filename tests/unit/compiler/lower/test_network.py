"""Networks through quantise, explore, lower and finish, held to what they compute without any hardware.

`networks.exact` knows the numbers and no tiles, columns, padding or converters: every bit must agree, for
every number of tokens. Against the float64 reference the error is bounded by what quantisation and
rounding allow, carried through the graph operation by operation (`_Bounds`); nothing is tuned.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from streamgen.base.errors import GraphError
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.emit.images import write_constants
from streamgen.gateware.arith import F24
from streamgen.gateware.functions import FUNCTIONS
from streamgen.model.frontend import default_checkpoint, load_feed_forward
from streamgen.model.graph import verify
from streamgen.model.graph.interpret import reference
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.graph.run import Run
from streamgen.model.operations import Binary, Constant, Linear, Scalar, Unary
from streamgen.numbers.formats import round_f24
from streamgen.numbers.quantisation import QuantisedWeight
from tests.shared.campaigns import sampled
from tests.unit.compiler.lower.networks import (
    Compiled,
    bits,
    exact,
    linear,
    network,
    random_inputs,
    random_network,
    run,
)

ULP = 2.0**-16  # of f24: half a unit in the last place, relative
TINY = 2.0**-126  # what is smaller becomes zero


def _config(rng: np.random.Generator, **changes: object) -> CompileConfig:
    fields = {
        "max_tokens": int(rng.integers(1, 10)),
        "multipliers": 8192,
        "channels": int(rng.integers(1, 33)),
        "weights": str(rng.choice(["w4", "w8"])),
        "group": int(rng.choice([32, 64, 128])),
        "scale_bits": int(rng.integers(8, 17)),
        "minimum": bool(rng.integers(2)),
        "token_lanes": [None, 1, 2, 4, 8][rng.integers(5)],
        "sizing": str(rng.choice(["conservative", "normal"])),
    }
    return CompileConfig(**{**fields, **changes})


def _factors(graph: LogicalGraph, rng: np.random.Generator) -> dict[str, tuple[int, int]]:
    """Columns and lanes that the explorer might not take; tiles often hold all rows."""
    return {
        operation.name: (int(rng.choice([1, 1, 2, 4, 16])), int(rng.choice([1, 2, 4, 8])))
        for operation in graph.operations
        if isinstance(operation.op, Linear)
    }


def _check_exact(compiled: Compiled, rng: np.random.Generator) -> None:
    """All numbers of tokens, each in a run of its own, give the bits of the independent computation."""
    graph, program = compiled.graph, compiled.program
    for tiles in range(1, program.max_tiles + 1):
        verify(compiled.at(tiles))
    with tempfile.TemporaryDirectory() as folder:
        write_constants(program.graph, Path(folder))  # every constant can be stored in its format
    arrays = random_inputs(graph, compiled.config.size("max_tokens"), rng)
    expected = exact(graph, compiled.weights, arrays)
    for tokens in range(1, compiled.config.size("max_tokens") + 1):
        outputs = run(compiled, arrays, tokens)
        assert set(outputs) == set(graph.outputs)
        for name, output in outputs.items():
            assert bits(output) == bits(expected[name][:tokens]), name


@pytest.mark.parametrize("seed", range(10))
def test_random_networks_are_exact(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_network(rng)
    factors = _factors(graph, rng) if rng.random() < 0.7 else None
    _check_exact(Compiled(graph, _config(rng), factors), rng)


@pytest.mark.slow
@pytest.mark.parametrize("seed", sampled(range(100, 300), range(100, 140)))
def test_many_random_networks_are_exact(seed: int) -> None:
    test_random_networks_are_exact(seed)


def _mlp(rng: np.random.Generator, *sizes: int, bias: bool) -> LogicalGraph:
    operations = {}
    last = "x"
    for i, (k, n) in enumerate(pairwise(sizes)):
        operations[f"l{i}"] = (linear(rng, n, k, bias), last)
        operations[f"s{i}"] = (Unary("silu"), f"l{i}")
        last = f"s{i}"
    return network({"x": sizes[0]}, operations, last)


def _residual(rng: np.random.Generator, k: int, n: int) -> LogicalGraph:
    operations = {
        "up": (linear(rng, n, k), "x"),
        "act": (Unary("relu"), "up"),
        "down": (linear(rng, k, n, bias=True), "act"),
        "y": (Binary("add"), "x", "down"),
    }
    return network({"x": k}, operations, "y")


def _twice(rng: np.random.Generator) -> LogicalGraph:
    """An input that is both operands, a matmul's result that is, an output that is read on."""
    operations = {
        "double": (Binary("add"), "x", "x"),
        "y": (linear(rng, 9, 7), "double"),
        "square": (Binary("mul"), "y", "y"),
        "z": (linear(rng, 7, 9), "square"),
        "sum": (Binary("add"), "double", "z"),
    }
    return network({"x": 7}, operations, "square", "sum", "double")


def _constants(rng: np.random.Generator) -> LogicalGraph:
    """Constants in both places, in both orders of tiles, and one that two operations read."""
    operations = {
        "c": (Constant(rng.normal(size=40).astype(np.float32)),),
        "d": (Constant(rng.normal(size=40).astype(np.float32)),),
        "a": (Binary("mul"), "c", "x"),
        "l": (linear(rng, 40, 40, bias=True), "a"),
        "b": (Binary("add"), "l", "c"),
        "y": (Binary("mul"), "d", "b"),
    }
    return network({"x": 40}, operations, "y")


def _several(rng: np.random.Generator) -> LogicalGraph:
    """Two inputs of different sizes, three outputs, matmuls of two levels that meet."""
    operations = {
        "a": (linear(rng, 33, 5), "x"),
        "b": (linear(rng, 33, 64), "y"),
        "s": (Binary("add"), "a", "b"),
        "t": (linear(rng, 33, 33), "s"),
        "u": (Binary("mul"), "t", "b"),
        "v": (Unary("sigmoid"), "y"),
    }
    return network({"x": 5, "y": 64}, operations, "u", "v", "s")


def _padding(rng: np.random.Generator) -> LogicalGraph:
    """The padding of a sigmoid is 1/2, far above its values: the matmul behind it must not see it."""
    operations = {
        "c": (Constant(np.full(40, -12, np.float32)),),
        "low": (Binary("add"), "x", "c"),
        "s": (Unary("sigmoid"), "low"),
        "y": (linear(rng, 5, 40), "s"),
    }
    return network({"x": 40}, operations, "y")


def _functions(rng: np.random.Generator) -> LogicalGraph:
    operations = {
        "a": (Unary("gelu"), "x"),
        "b": (Unary("gelu_tanh"), "x"),
        "c": (Binary("add"), "a", "b"),
        "y": (Unary("tanh"), "c"),
    }
    return network({"x": 17}, operations, "y")


def _scalars(rng: np.random.Generator) -> LogicalGraph:
    """A difference, of values in both orders of tiles."""
    operations = {
        "l": (linear(rng, 40, 40), "x"),
        "minus": (Scalar("scale", -1.0), "l"),
        "d": (Binary("add"), "x", "minus"),
        "s": (Scalar("scale", 0.3), "x"),
        "y": (Binary("mul"), "d", "s"),
    }
    return network({"x": 40}, operations, "y", "s")


NETWORKS = {
    "scalars": _scalars,
    "odd sizes": lambda rng: _mlp(rng, 7, 13, 5, bias=True),
    "one feature": lambda rng: _mlp(rng, 1, 1, 1, bias=True),
    "long rows": lambda rng: _mlp(rng, 161, 3, bias=False),
    "many rows": lambda rng: _mlp(rng, 3, 161, bias=False),
    "residual": lambda rng: _residual(rng, 33, 65),
    "twice": _twice,
    "constants": _constants,
    "several": _several,
    "padding": _padding,
    "functions": _functions,
    "no matmul": lambda rng: network({"x": 17}, {"y": (Unary("silu"), "x")}, "y"),
}


@pytest.mark.parametrize("max_tokens", [1, 5])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_exact(name: str, max_tokens: int) -> None:
    rng = np.random.default_rng(max_tokens)
    config = CompileConfig(max_tokens=max_tokens, channels=8, weights="w8" if max_tokens == 1 else "w4")
    _check_exact(Compiled(NETWORKS[name](rng), config), rng)


@pytest.mark.parametrize("token_lanes", [1, 2, 8])
@pytest.mark.parametrize("factors", [(1, 1), (1, 8), (4, 8), pytest.param((16, 4), marks=pytest.mark.slow)])
def test_one_tile_of_rows(factors: tuple[int, int], token_lanes: int) -> None:
    """Where one tile, or few, hold all rows, converters may share the loops of the tokens."""
    rng = np.random.default_rng(factors[0])
    config = CompileConfig(max_tokens=9, token_lanes=token_lanes, channels=32)
    columns, lanes = factors
    graph = _residual(rng, 32, 20)
    _check_exact(Compiled(graph, config, {"up": factors, "down": (lanes, columns)}), rng)


def test_names_of_operations_may_look_like_parts_of_others() -> None:
    rng = np.random.default_rng(0)
    operations = {
        "load_x": (linear(rng, 8, 8, bias=True), "x"),
        "load_x_bias": (Unary("relu"), "load_x"),
        "quantise_x": (Binary("add"), "load_x", "load_x_bias"),
        "store_y": (Binary("mul"), "quantise_x", "x"),
        "load_x_column0": (Constant(np.ones(8, np.float32)),),
        "load_x_column0_weights": (Binary("add"), "store_y", "load_x_column0"),
        "y": (linear(rng, 8, 8), "load_x_column0_weights"),
    }
    graph = network({"x": 8}, operations, "y", "load_x_column0_weights", "load_x")
    compiled = Compiled(graph, CompileConfig(max_tokens=2, channels=4))
    tensors = {tensor.name: tensor.role for tensor in compiled.program.graph.tensors}
    assert {name for name, role in tensors.items() if role != "constant"} == {"x", *graph.outputs}
    _check_exact(compiled, rng)


def test_names_of_values_may_be_those_of_other_buffers() -> None:
    rng = np.random.default_rng(0)
    operations = {
        "status": (linear(rng, 8, 8), "position"),
        "weights_0": (Binary("add"), "status", "table"),
        "tiles_1": (Unary("relu"), "status"),
        "tiles": (Binary("mul"), "tiles_1", "weights_0"),
    }
    graph = network({"position": 8, "table": 8}, operations, "tiles", "weights_0", "status")
    compiled = Compiled(graph, CompileConfig(max_tokens=2, channels=4))
    names = [tensor.name for tensor in compiled.program.graph.tensors if tensor.role != "constant"]
    assert names == ["position_1", "table_1", "tiles_2", "weights_0_1", "status_1"]
    for name in ("load_position_1", "store_tiles_2", "weights_0", "tiles_1"):
        assert name in compiled.program.graph.by_name


@pytest.mark.parametrize(
    ("operations", "outputs", "message"),
    [
        (
            {"c": (Constant(np.ones(4, np.float32)),), "y": (Binary("add"), "x", "c")},
            ("y", "c"),
            "output 'c' is a constant; an output must be computed",
        ),
        (
            {
                "c": (Constant(np.ones(4, np.float32)),),
                "d": (Unary("relu"), "c"),
                "y": (Binary("add"), "x", "d"),
            },
            ("y",),
            "operation 'd' has only constant inputs; compute its result before compiling",
        ),
    ],
)
def test_constants_that_nothing_computes(operations: dict, outputs: tuple[str, ...], message: str) -> None:
    with pytest.raises(GraphError) as caught:
        Compiled(network({"x": 4}, operations, *outputs), CompileConfig())
    assert str(caught.value) == message


@dataclass(frozen=True)
class _Bounds:
    """float64 values of the reference and how far the hardware's may be from them, element by element."""

    value: np.ndarray
    error: np.ndarray

    @property
    def greatest(self) -> np.ndarray:
        return np.abs(self.value) + self.error

    def rounded(self) -> "_Bounds":
        """After one rounding to f24, which flushes what is tiny."""
        return _Bounds(self.value, self.error + self.greatest * ULP + TINY)


def _quantised(x: _Bounds) -> np.ndarray:
    """Error of the codes of x: half a step of each group, more where codes are clamped or groups dropped.

    With m = 2^b * (1 + s / 4 + ...) the greatest magnitude that a group may have, its step is
    (5 + s) * 2^(b - 9) or less, and what is divided by it is off by 2^-15. Values above 127.5 steps become
    127. A group may be dropped if its exponent may be 16 below the row's; all of it then lies below
    2^(b - 15) of that one.
    """
    T, K = x.value.shape
    pad = ((0, 0), (0, -K % 32))
    greatest = np.pad(x.greatest, pad).reshape(T, -1, 32)
    least = np.pad(np.maximum(np.abs(x.value) - x.error, 0), pad).reshape(T, -1, 32)

    def exponent(m: np.ndarray) -> np.ndarray:
        return np.where(m > 0, np.floor(np.log2(np.where(m > 0, m, 1))), -1000)

    largest = greatest.max(axis=2)
    top = exponent(largest)
    step = ((5 + np.floor((largest / np.exp2(top) - 1) * 4)) * np.exp2(top - 9))[:, :, None]
    error = np.maximum(
        step * (0.5 + 127 * 2.0**-15), np.where(greatest > 127.5 * step, greatest - 127 * step, 0)
    )
    row = top.max(axis=1)[:, None]
    droppable = (row - exponent(least.max(axis=2)) > 15)[:, :, None]
    dropped = np.minimum(greatest, np.exp2(row - 15)[:, :, None])
    error = np.where(droppable, np.maximum(error, dropped), error)
    return error.reshape(T, -1)[:, :K]


def _weight_error(weight: QuantisedWeight, scale_bits: int) -> np.ndarray:
    """Bound of |weight - quantised weight|, [N, K].

    w8: half a step r, and 127 steps of a rounded r. w4: half a step scale * r; half an r for the rounded
    minimum and for each of 8 codes under a rounded scale; both saturate by what r was rounded.
    """
    r = np.abs(weight.row_scale.astype(np.float64))[:, None]
    if weight.scale is None:
        return np.broadcast_to(r * (0.5 + 127 * ULP), weight.codes.shape)
    top = 2 ** (scale_bits - 1) - 1
    per_group = r * (np.abs(weight.scale) / 2 + 0.5 + 8 * 0.5 + 9 * top * ULP)
    return per_group.repeat(weight.group, axis=1)[:, : weight.codes.shape[1]]


def _matmul(op: Linear, weight: QuantisedWeight, scale_bits: int, x: _Bounds) -> _Bounds:
    """|W' x' - W x| <= |W'| |x' - x| + |W' - W| |x|, then a rounding of the sum and one by the row scale."""
    value = x.value @ op.weight.astype(np.float64).T
    used = np.abs(weight.dequantise())
    error = (x.error + _quantised(x)) @ used.T + np.abs(x.value) @ _weight_error(weight, scale_bits).T
    return _Bounds(value, error).rounded().rounded()


def _unary(name: str, x: _Bounds) -> _Bounds:
    """The error of x times the Lipschitz constant, and what the function promises."""
    function = FUNCTIONS[name]
    steps = np.linspace(-20, 20, 40_001)
    slope = np.abs(np.diff(function.reference(steps)) / np.diff(steps)).max() * 1.001
    moved = _Bounds(Unary(name).reference(Run(len(x.value)), x.value), slope * x.error)
    promised = function.error.of(F24, x.greatest, moved.greatest)
    return _Bounds(moved.value, moved.error + promised + TINY)


def _binary(operation: str, a: _Bounds, b: _Bounds) -> _Bounds:
    if operation == "add":
        return _Bounds(a.value + b.value, a.error + b.error).rounded()
    error = np.abs(a.value) * b.error + np.abs(b.value) * a.error + a.error * b.error
    return _Bounds(a.value * b.value, error).rounded()


def _bounds(
    graph: LogicalGraph,
    weights: Mapping[str, QuantisedWeight],
    scale_bits: int,
    arrays: Mapping[str, np.ndarray],
) -> dict[str, _Bounds]:
    values = {name: _Bounds(x.astype(np.float64), np.zeros(x.shape)) for name, x in arrays.items()}
    for operation in graph.operations:
        op, operands = operation.op, [values[name] for name in operation.inputs]
        if isinstance(op, Constant):
            exactly = op.reference(Run(1))
            result = _Bounds(exactly, np.zeros(exactly.shape)).rounded()
        elif isinstance(op, Linear):
            result = _matmul(op, weights[operation.name], scale_bits, operands[0])
            if op.bias is not None:
                bias = op.bias.astype(np.float64)[None]
                result = _binary("add", result, _Bounds(bias, np.zeros(bias.shape)).rounded())
        elif isinstance(op, Scalar):
            constant = np.full((1, 1), op.constant)
            result = _binary("mul", operands[0], _Bounds(constant, np.zeros((1, 1))).rounded())
        elif isinstance(op, Binary):
            result = _binary(op.operation, *operands)
        else:
            result = _unary(op.function, operands[0])
        values[operation.name] = result
    return values


def _check_bounded(compiled: Compiled, arrays: Mapping[str, np.ndarray]) -> dict[str, _Bounds]:
    graph, tokens = compiled.graph, len(next(iter(arrays.values())))
    bounds = _bounds(graph, compiled.weights, compiled.config.scale_bits, arrays)
    outputs = run(compiled, arrays, tokens)
    wanted, _ = reference(graph)(arrays)
    for name, expected in wanted.items():
        np.testing.assert_allclose(bounds[name].value, expected, rtol=1e-9, atol=1e-12)
        assert (np.abs(outputs[name] - expected) <= bounds[name].error).all(), name
    return bounds


@pytest.mark.parametrize("weights", ["w4", "w8"])
@pytest.mark.parametrize("name", NETWORKS)
def test_error_against_float64_is_bounded(name: str, weights: str) -> None:
    rng = np.random.default_rng(7)
    graph = NETWORKS[name](rng)
    config = _config(rng, weights=weights, max_tokens=4)
    arrays = {v.name: round_f24(rng.normal(size=(4, v.features))) for v in graph.inputs}
    _check_bounded(Compiled(graph, config), arrays)


@pytest.mark.parametrize(("weights", "typical"), [("w4", 2.0**-2), ("w8", 2.0**-4)])
def test_bounds_mean_something(weights: str, typical: float) -> None:
    """On one matmul they lie below a share of |W| |x|, and a group of weights left out breaks them."""
    rng = np.random.default_rng(5)
    op = Linear(rng.normal(size=(48, 96)).astype(np.float32))
    graph = network({"x": 96}, {"y": (op, "x")}, "y")
    compiled = Compiled(graph, CompileConfig(weights=weights, max_tokens=8))
    arrays = {"x": round_f24(rng.normal(size=(8, 96)))}
    bound = _check_bounded(compiled, arrays)["y"]
    assert bound.error.mean() < typical * (np.abs(arrays["x"]) @ np.abs(op.weight).T).mean()
    without = arrays["x"].copy()
    without[:, 32:64] = 0
    assert not (np.abs(bound.value - reference(graph)({"x": without})[0]["y"]) <= bound.error).all()


@pytest.fixture(scope="module")
def feed_forward() -> LogicalGraph:
    """Layer 0 of SmolLM2-135M-Instruct with its own 4-bit weights."""
    module = load_feed_forward(default_checkpoint(), 0)

    def part(name: str) -> Linear:
        layer = getattr(module, name)
        return Linear(layer.weight.numpy(), grid=layer.weight_grid)

    operations = {
        "gate": (part("gate"), "x"),
        "up": (part("up"), "x"),
        "act": (Unary("silu"), "gate"),
        "product": (Binary("mul"), "act", "up"),
        "down": (part("down"), "product"),
    }
    return network({"x": 576}, operations, "down")


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["w4", "w8"])
def test_feed_forward_of_a_real_model(feed_forward: LogicalGraph, weights: str) -> None:
    """One token and sixteen: exact, and within the bounds of the reference."""
    config = CompileConfig(max_tokens=16, multipliers=1536, channels=8, weights=weights)
    compiled = Compiled(feed_forward, config)
    arrays = {"x": round_f24(np.random.default_rng(0).normal(size=(16, 576)))}
    expected = exact(feed_forward, compiled.weights, arrays)["down"]
    for tokens in (1, 16):
        assert bits(run(compiled, arrays, tokens)["down"]) == bits(expected[:tokens])
    _check_bounded(compiled, arrays)
