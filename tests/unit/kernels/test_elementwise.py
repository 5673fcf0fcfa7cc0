"""Elementwise kernels: RTL equal to golden under stalls, promises measured, golden near float64."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch

from streamgen.gateware.arith import F24
from streamgen.gateware.functions import FUNCTIONS
from streamgen.itensor import ITensor
from streamgen.kernels.elementwise import (
    BINARY_OPERATIONS,
    SCALAR_FUNCTIONS,
    BinaryParams,
    ScalarParams,
    UnaryParams,
)
from streamgen.numbers import formats
from streamgen.testing.bench import Stalls
from streamgen.testing.kernel import check_golden, check_promises
from tests.shared.spellings import torch_values

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


def drawn(name: str, lanes: int, seed: int) -> list[ITensor]:
    """Four itensors of 4 to 48 tokens, one of them of 4, in any order, row by row and column by column."""
    rng = np.random.default_rng([seed, lanes, *name.encode()])
    lengths = rng.permutation([4, *4 * rng.integers(1, 13, 3)])
    return [(rows, columns)[rng.integers(2)](int(tokens), lanes) for tokens in lengths]


# Wide components take long to build: all stalls at once there.
STALLS = {1: [(0.0, 0.0), (0.4, 0.4)], 3: [(0.5, 0.0), (0.0, 0.5), (0.3, 0.8)], 32: [(0.3, 0.3)]}

WIDE = ("relu", "silu", "multiply", "silu_multiply", "scale")


def by_lanes(names: Iterable[str]) -> list[Any]:
    """(name, lanes) for every name with few lanes, for some with many."""
    pairs = [(name, lanes) for name in names for lanes in (1, 3, 32) if lanes < 32 or name in WIDE]
    return [pytest.param(name, lanes, id=f"{name}-{lanes}") for name, lanes in pairs]


CONSTANTS = (3.0, 0.1, 50.0, 2.0**-126, 2.0**126)


@pytest.mark.parametrize(("function", "lanes"), by_lanes(FUNCTIONS))
def test_unary_matches_golden(function: str, lanes: int, seed: int) -> None:
    params = UnaryParams(function=function, lanes=lanes, max_tokens=100)
    cases = []
    for number, itensor in enumerate(drawn(function, lanes, seed)):
        cases.append(({"itensor": itensor}, {"i": values(itensor.shape, number)}))
    for sources, sinks in STALLS[lanes]:
        check_golden(params, cases, Stalls(seed=lanes, sources=sources, sinks=sinks))


@pytest.mark.parametrize(("operation", "lanes"), by_lanes(BINARY_OPERATIONS))
def test_binary_matches_golden(operation: str, lanes: int, seed: int) -> None:
    params = BinaryParams(operation=operation, lanes=lanes, max_tokens=100)
    cases = []
    for number, itensor in enumerate(drawn(operation, lanes, seed)):
        a, b = values(itensor.shape, number), values(itensor.shape, number + 10)
        cases.append(({"itensor": itensor}, {"i_a": a, "i_b": b}))
    for sources, sinks in STALLS[lanes]:
        check_golden(params, cases, Stalls(seed=lanes, sources=sources, sinks=sinks))


@pytest.mark.parametrize(("function", "lanes"), by_lanes(SCALAR_FUNCTIONS))
def test_scalar_matches_golden(function: str, lanes: int, seed: int) -> None:
    """Each descriptor brings another constant, also the shortest ones back to back."""
    params = ScalarParams(function=function, lanes=lanes, max_tokens=100)
    cases = []
    shortest = [rows(tokens, lanes, row=1) for tokens in (1, 1, 2)]
    for number, itensor in enumerate([*shortest, *drawn(function, lanes, seed)]):
        bounds = {"itensor": itensor, "constant": CONSTANTS[number % len(CONSTANTS)]}
        cases.append((bounds, {"i": values(itensor.shape, number)}))
    for sources, sinks in [(0.0, 0.0), *STALLS[lanes]]:
        check_golden(params, cases, Stalls(seed=lanes, sources=sources, sinks=sinks))


@pytest.mark.parametrize("function", SCALAR_FUNCTIONS)
def test_rows_are_counted(function: str) -> None:
    """Descriptors of several rows, each with another constant, back to back; promises hold for them too."""
    params = ScalarParams(function=function, lanes=2, max_tokens=5, max_rows=7)
    cases = []
    for number, (count, length) in enumerate([(1, 1), (7, 1), (1, 5), (3, 2), (7, 5), (2, 1), (1, 1)]):
        itensor = rows(count * length, 2, row=length)
        bounds = {"itensor": itensor, "constant": CONSTANTS[number % len(CONSTANTS)], "rows": count}
        cases.append((bounds, {"i": values(itensor.shape, number)}))
    for sources, sinks in [(0.0, 0.0), (0.3, 0.3)]:
        check_golden(params, cases, Stalls(seed=3, sources=sources, sinks=sinks))
    for bounds, arrays in cases[:5]:
        check_promises(params, bounds, arrays)


def test_rows_whose_last_token_is_not_full() -> None:
    """Descriptors say elements; there are as many tokens as hold them."""
    params = ScalarParams(function="soft_cap", lanes=4, max_tokens=5, max_rows=7)
    cases = []
    for number, (count, length) in enumerate([(3, 1), (2, 4), (7, 5), (1, 19), (2, 17)]):
        itensor = rows(count * -(-length // 4), 4, row=-(-length // 4))
        bounds = {"itensor": itensor, "constant": 30.0, "rows": count, "length": length}
        assert params.describe(bounds)["length"] == length
        cases.append((bounds, {"i": values(itensor.shape, number)}))
    check_golden(params, cases, Stalls(seed=4, sources=0.3, sinks=0.3))
    with pytest.raises(ValueError, match="length is 21; a row has 5 tokens of 4 elements"):
        params.describe({**cases[-1][0], "length": 21})
    with pytest.raises(ValueError, match="lanes is 3; with several rows it must be a power of two"):
        ScalarParams(function="soft_cap", lanes=3, max_tokens=5, max_rows=7)


def test_rows_must_fit() -> None:
    params = ScalarParams(function="scale", lanes=2, max_tokens=5, max_rows=3)
    for count, message in ((4, "rows is 4; 1 to max_rows, 3"), (3, "8 tokens, which are no 3 rows")):
        bounds = {"itensor": rows(8, 2, row=1), "constant": 1.0, "rows": count}
        with pytest.raises(ValueError, match=message):
            params.describe(bounds)


def test_negative_scale() -> None:
    params = ScalarParams(function="scale", lanes=1, max_tokens=13)
    itensor = rows(13, 1, row=1)
    for constant in (-2.5, 0.0, -0.0):
        bounds = {"itensor": itensor, "constant": constant}
        check_golden(params, [(bounds, {"i": formats.round_f24(SPECIAL[:, None])})] * 2)
        with np.errstate(invalid="ignore"):
            expected = formats.round_f24(formats.round_f24(SPECIAL[:, None]).astype(np.float64) * constant)
        np.testing.assert_array_equal(
            params.golden(bounds, {"i": formats.round_f24(SPECIAL[:, None])})["o"], expected
        )


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


@pytest.mark.parametrize("tokens", [1, 2, 64])
@pytest.mark.parametrize("name", [*FUNCTIONS, *BINARY_OPERATIONS, *SCALAR_FUNCTIONS])
def test_cost_and_curves_are_measured(name: str, tokens: int) -> None:
    itensor = rows(tokens, 2, row=1)
    a, b = values(itensor.shape, 5), values(itensor.shape, 6)
    if name in SCALAR_FUNCTIONS:
        scalar = ScalarParams(function=name, lanes=2, max_tokens=64)
        check_promises(scalar, {"itensor": itensor, "constant": 30.0}, {"i": a})
    elif name in FUNCTIONS:
        check_promises(UnaryParams(function=name, lanes=2, max_tokens=64), {"itensor": itensor}, {"i": a})
    else:
        params = BinaryParams(operation=name, lanes=2, max_tokens=64)
        check_promises(params, {"itensor": itensor}, {"i_a": a, "i_b": b})


ULP = 2.0**-16  # of f24, half a unit of the last place of 1: one rounding
TABLE = 2.0**-14  # relative error of tanh
LEAST = 2.0**-126  # what flushing may cost


def finite(count: int, seed: int) -> np.ndarray:
    """Rows of one element, from 2^-20 to 2^10 in size, both signs."""
    rng = np.random.default_rng(seed)
    return formats.round_f24(rng.normal(size=(count, 1)) * np.exp2(rng.integers(-20, 9, (count, 1))))


def torch64(function: Callable[..., torch.Tensor], *operands: np.ndarray) -> np.ndarray:
    """The function in float64."""
    result: Any = function(*(torch.from_numpy(x.astype(np.float64)) for x in operands))
    return result.numpy()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_near_torch(name: str) -> None:
    a = finite(4000, 1)
    bounds = {"itensor": rows(4000, 1)}
    params = UnaryParams(function=name, lanes=1, max_tokens=4000)
    a = a.reshape(bounds["itensor"].shape)
    exact = torch_values(FUNCTIONS[name], a)
    found = params.golden(bounds, {"i": a})["o"]
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
    assert np.isposinf(found[exact >= 2.0**128]).all()
    inside = np.abs(exact) < 2.0**128 * (1 - 2.0**-16)
    assert inside.sum() > 500
    error = np.abs(found[inside] - exact[inside])
    assert (error <= FUNCTIONS[name].error.of(F24, a[inside], exact[inside]) + LEAST).all()


@pytest.mark.parametrize("name", [name for name, function in FUNCTIONS.items() if function.gates])
def test_gated_products_are_near_torch_and_equal_two_kernels(name: str) -> None:
    """The error of the function times b, then a rounding of the product."""
    bounds = {"itensor": rows(4000, 1)}
    a, b = (finite(4000, seed).reshape(bounds["itensor"].shape) for seed in (2, 3))
    gated = BinaryParams(operation=f"{name}_multiply", lanes=1, max_tokens=4000)
    found = gated.golden(bounds, {"i_a": a, "i_b": b})["o"]
    gate = torch_values(FUNCTIONS[name], a)
    exact = gate * b
    before = (FUNCTIONS[name].error.of(F24, a, gate) + LEAST) * np.abs(b)
    assert (np.abs(found - exact) <= before + ULP * (np.abs(exact) + before) + LEAST).all()
    gate = UnaryParams(function=name, lanes=1, max_tokens=4000).golden(bounds, {"i": a})["o"]
    product = BinaryParams(operation="multiply", lanes=1, max_tokens=4000)
    np.testing.assert_array_equal(found, product.golden(bounds, {"i_a": gate, "i_b": b})["o"])


@pytest.mark.parametrize("cap", [30.0, 50.0, 0.7])
def test_soft_cap_is_near_torch(cap: float) -> None:
    """1/c, c and x/c are rounded: tanh(y(1 + e)) differs by |y·tanh'(y)·e| <= |tanh(y)·e|; then the table,
    c and the product."""
    bounds = {"itensor": rows(4000, 1), "constant": cap}
    a = finite(4000, 4).reshape(bounds["itensor"].shape)
    found = ScalarParams(function="soft_cap", lanes=1, max_tokens=4000).golden(bounds, {"i": a})["o"]
    exact = torch64(lambda x: cap * torch.tanh(x / cap), a)
    assert (np.abs(found - exact) <= (3 * ULP + TABLE + 2 * ULP) * 1.001 * np.abs(exact) + LEAST).all()
    assert (np.abs(found) <= formats.round_f24(np.array(cap))).all()


def test_soft_cap_of_extremes() -> None:
    """The cap itself for what is far above it, NaN for NaN."""
    params = ScalarParams(function="soft_cap", lanes=1, max_tokens=13)
    bounds = {"itensor": rows(13, 1, row=1), "constant": 30}
    found = params.golden(bounds, {"i": formats.round_f24(SPECIAL[:, None])})["o"][:, 0]
    np.testing.assert_array_equal(found[:5], [0, 0, 30, -30, np.nan])
    np.testing.assert_array_equal(found[9:11], [30, -30])


def test_bad_params() -> None:
    cases = [
        (
            lambda: UnaryParams(function="cube", lanes=1, max_tokens=1),
            f"function is 'cube'; one of {', '.join(FUNCTIONS)} is needed",
        ),
        (
            lambda: BinaryParams(operation="mul", lanes=1, max_tokens=1),
            f"operation is 'mul'; one of {', '.join(BINARY_OPERATIONS)} is needed",
        ),
        (
            lambda: ScalarParams(function="add", lanes=1, max_tokens=1),
            f"function is 'add'; one of {', '.join(SCALAR_FUNCTIONS)} is needed",
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


@pytest.mark.parametrize(
    ("function", "constant", "message"),
    [
        ("scale", np.inf, "constant is inf; a finite number of f24 is needed"),
        ("scale", np.nan, "constant is nan; a finite number of f24 is needed"),
        ("scale", 3.4028e38, "constant is 3.4028e+38; a finite number of f24 is needed"),
        ("soft_cap", 0, "constant is 0.0; soft_cap takes 2^-126 to 2^126"),
        ("soft_cap", -30, "constant is -30.0; soft_cap takes 2^-126 to 2^126"),
        ("soft_cap", 2.0**127, "constant is 1.7014118346046923e+38; soft_cap takes 2^-126 to 2^126"),
    ],
)
def test_bad_constants(function: str, constant: float, message: str) -> None:
    params = ScalarParams(function=function, lanes=4, max_tokens=8)
    with pytest.raises(ValueError) as raised:
        params.describe({"itensor": rows(8, 4), "constant": constant})
    assert str(raised.value) == message
