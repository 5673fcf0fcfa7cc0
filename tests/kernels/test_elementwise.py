"""Elementwise kernels: RTL equal to golden under stalls, promises measured, golden near float64."""

import numpy as np
import pytest

from sim.bench import Stalls
from sim.kernel import check_golden, check_promises
from streamgen import formats
from streamgen.itensor import ITensor
from streamgen.kernels.elementwise import BINARY_OPERATIONS, UNARY_FUNCTIONS, BinaryParams, UnaryParams

SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0**-126, -(2.0**-126), 3.4e38, -3.4e38, 88.5, -90.0],
    np.float32,
)


def rows(tokens: int, lanes: int, row: int = 4) -> ITensor:
    """Row-major tokens (1, lanes), `row` of them a row."""
    return ITensor((1, lanes), "f24", (tokens // row, row), (1, lanes), ((0,), (1,)))


def columns(tokens: int, lanes: int, row: int = 4) -> ITensor:
    """The same tokens column by column."""
    return ITensor((1, lanes), "f24", (row, tokens // row), (lanes, 1), ((1,), (0,)))


def values(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Numbers of all sizes, most of them between -100 and 100, with special ones among them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) * np.exp2(rng.integers(-12, 7, shape))
    wild = rng.normal(size=shape) * np.exp2(rng.integers(-130, 127, shape))
    x = np.where(rng.random(shape) < 0.2, wild, x)
    return formats.round_f24(np.where(rng.random(shape) < 0.1, rng.choice(SPECIAL, shape), x))


# Wide components take long to build: all stalls at once there.
STALLS = {1: [(0.0, 0.0), (0.4, 0.4)], 3: [(0.5, 0.0), (0.0, 0.5), (0.3, 0.8)], 16: [(0.3, 0.3)]}

UNARY = [pytest.param(function, id=function) for function in UNARY_FUNCTIONS]
BINARY = [pytest.param(operation, id=operation) for operation in BINARY_OPERATIONS]


@pytest.mark.parametrize("lanes", [1, 3, 16])
@pytest.mark.parametrize("function", UNARY)
def test_unary_matches_golden(function: str, lanes: int) -> None:
    params = UnaryParams(function=function, lanes=lanes, max_tokens=100)
    cases = []
    for seed, tokens in enumerate([4, 60, 8, 24]):
        itensor = (rows, columns)[seed % 2](tokens, lanes)
        cases.append(({"itensor": itensor}, {"i": values(itensor.shape, seed)}))
    for sources, sinks in STALLS[lanes]:
        check_golden(params, cases, Stalls(seed=lanes, sources=sources, sinks=sinks))


@pytest.mark.parametrize("lanes", [1, 3, 16])
@pytest.mark.parametrize("operation", BINARY)
def test_binary_matches_golden(operation: str, lanes: int) -> None:
    params = BinaryParams(operation=operation, lanes=lanes, max_tokens=100)
    cases = []
    for seed, tokens in enumerate([4, 60, 8, 24]):
        itensor = (rows, columns)[seed % 2](tokens, lanes)
        a, b = values(itensor.shape, seed), values(itensor.shape, seed + 10)
        cases.append(({"itensor": itensor}, {"i_a": a, "i_b": b}))
    for sources, sinks in STALLS[lanes]:
        check_golden(params, cases, Stalls(seed=lanes, sources=sources, sinks=sinks))


def test_one_row_meets_many() -> None:
    itensor = rows(12, 2)
    row = ITensor((1, 2), "f24", (3, 4), (1, 2), ((), (1,)))
    a, b = values((3, 8), 1), values((1, 8), 2)
    params = BinaryParams(operation="add", lanes=2, max_tokens=12)
    bounds = {"itensor": itensor, "b": row}
    check_golden(params, [(bounds, {"i_a": a, "i_b": b})] * 2, Stalls(seed=3, sources=0.3, sinks=0.3))
    with np.errstate(invalid="ignore"):
        expected = formats.round_f24(a.astype(np.float64) + b)
    np.testing.assert_array_equal(params.golden(bounds, {"i_a": a, "i_b": b})["o"], expected)


@pytest.mark.parametrize("tokens", [1, 2, 17, 64])
@pytest.mark.parametrize("name", [*UNARY_FUNCTIONS, *BINARY_OPERATIONS])
def test_cost_and_curves_are_measured(name: str, tokens: int) -> None:
    itensor = rows(tokens, 2, row=1)
    a, b = values(itensor.shape, 5), values(itensor.shape, 6)
    if name in UNARY_FUNCTIONS:
        check_promises(UnaryParams(function=name, lanes=2, max_tokens=64), {"itensor": itensor}, {"i": a})
    else:
        params = BinaryParams(operation=name, lanes=2, max_tokens=64)
        check_promises(params, {"itensor": itensor}, {"i_a": a, "i_b": b})


def test_bad_params() -> None:
    cases = [
        (
            lambda: UnaryParams(function="cube", lanes=1, max_tokens=1),
            "function is 'cube'; one of relu, sigmoid, silu is needed",
        ),
        (
            lambda: BinaryParams(operation="mul", lanes=1, max_tokens=1),
            "operation is 'mul'; one of add, multiply is needed",
        ),
        (lambda: UnaryParams(function="relu", lanes=0, max_tokens=1), "lanes is 0; at least 1 is needed"),
        (
            lambda: UnaryParams(function="relu", lanes=1, max_tokens=0),
            "max_tokens is 0; 1 to 2^32 - 1 are allowed",
        ),
    ]
    for make, message in cases:
        with pytest.raises(ValueError) as raised:
            make()
        assert str(raised.value) == message


def test_bad_bounds() -> None:
    unary = UnaryParams(function="silu", lanes=4, max_tokens=8)
    binary = BinaryParams(operation="add", lanes=4, max_tokens=8)
    with pytest.raises(
        ValueError, match=r"^itensor must have tokens of 4 elements of f24; it is itensor<1x2xf24"
    ):
        unary.inputs({"itensor": rows(8, 2)})
    wrong = ITensor((1, 4), "f32", (8,), (1,), ((0,), ()))
    with pytest.raises(
        ValueError, match=r"^itensor must have tokens of 4 elements of f24; it is itensor<1x4xf32"
    ):
        unary.outputs({"itensor": wrong})
    with pytest.raises(ValueError, match=r"^itensor has 12 tokens; max_tokens is 8$"):
        unary.describe({"itensor": rows(12, 4)})
    with pytest.raises(ValueError, match=r"^b must have as many tokens as itensor, 8; it has 4$"):
        binary.inputs({"itensor": rows(8, 4), "b": rows(4, 4)})
