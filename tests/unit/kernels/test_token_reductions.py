"""Sums, means, maxima and minima over rows: rtl == golden, golden near float64, promises, resources."""

import re
from typing import Any

import numpy as np
import pytest

from streamgen.gateware.arith import F24
from streamgen.kernels.token_reductions import FUNCTIONS, TokenReductionsParams
from streamgen.numbers.formats import round_f24
from streamgen.testing.bench import Stalls
from streamgen.testing.conformance import ASPECTS, check
from streamgen.testing.kernel import Case, check_golden, check_promises

LARGEST = float(round_f24(np.array(3.4e38)))
NORMAL = 2.0**-126
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, LARGEST, -LARGEST, NORMAL, -NORMAL, 1.0])
SIZES = [(1, 7), (3, 12), (8, 64)]


def params_of(function: str, lanes: int, length: int) -> TokenReductionsParams:
    return TokenReductionsParams(function=function, lanes=lanes, max_length=length, max_rows=40)  # type: ignore[arg-type]


def case(params: TokenReductionsParams, rows: int, length: int, seed: int) -> Case:
    """Features of numbers of all sizes, of special values, of zeros, of equal values."""
    rng = np.random.default_rng(seed)
    shape = rows, length
    kinds = [
        rng.normal(size=shape),
        rng.normal(size=shape) * np.exp2(rng.integers(-120, 120, shape)),
        rng.choice(SPECIAL, shape),
        rng.choice([0.0, -0.0], shape),
        np.broadcast_to(rng.normal(size=(1, length)), shape),
        rng.choice([LARGEST, NORMAL, -NORMAL, 1.0], shape),
    ]
    x = np.choose(rng.integers(0, len(kinds), (1, length)), kinds)
    return {"rows": rows, "length": length}, {"i": round_f24(x)}


def cases_of(params: TokenReductionsParams) -> list[Case]:
    lanes, most = params.lanes, params.max_length
    sizes = [(1, most), (40, lanes), (6, most), (2, most), (3, most // 2 // lanes * lanes)]
    return [case(params, *size, seed) for seed, size in enumerate(sizes)]


@pytest.mark.parametrize(("lanes", "length"), SIZES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_matches_golden(function: str, lanes: int, length: int) -> None:
    """Descriptors back to back, all stalls, and a reset in the middle of some."""
    params = params_of(function, lanes, length)
    for seed, (sources, sinks) in enumerate([(0, 0), (0.5, 0), (0, 0.5), (0.8, 0.9)]):
        check_golden(params, cases_of(params), Stalls(seed=seed, sources=sources, sinks=sinks))
    for cycle in (3, 40):
        check_golden(params, cases_of(params), Stalls(seed=1, sinks=0.3), reset_at=cycle)


@pytest.mark.parametrize(("lanes", "length"), SIZES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_promises(function: str, lanes: int, length: int) -> None:
    params = params_of(function, lanes, length)
    for rows, size in ((1, length), (6, length), (40, lanes), (1, lanes)):
        check_promises(params, *case(params, rows, size, 0))


@pytest.mark.slow
@pytest.mark.parametrize("aspect", ASPECTS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_conforms(function: str, aspect: str) -> None:
    for lanes, length in ((1, 7), (4, 96)):
        params = params_of(function, lanes, length)
        check(params, cases_of(params)[:4], refused=[{"rows": 0, "length": lanes}], aspects=[aspect])


def test_golden_is_near_float64() -> None:
    """A sum of n rows is rounded n times to float32 and once to f24; a mean twice more, with its factor."""
    rng = np.random.default_rng(3)
    x = round_f24(rng.normal(size=(96, 50)))
    sums = np.abs(x).sum(0, dtype=np.float64)
    wanted = {"sum": x.sum(0, dtype=np.float64), "mean": x.mean(0, dtype=np.float64)}
    for function, exact in (wanted | {"max": x.max(0), "min": x.min(0)}).items():
        params = TokenReductionsParams(function=function, lanes=1, max_length=50, max_rows=96)  # type: ignore[arg-type]
        found = params.golden({"rows": 96, "length": 50}, {"i": x})["o"][0]
        if function in ("max", "min"):
            np.testing.assert_array_equal(found, exact)
            continue
        size = np.abs(exact)
        roundings = {"sum": 1, "mean": 3}[function] * 2.0**-F24.precision * size
        added = 96 * 2.0**-24 * sums / (96 if function == "mean" else 1)
        assert (np.abs(found - exact) <= roundings + added).all()


def test_golden_of_extremes() -> None:
    columns = [
        [np.nan, 1, 2],
        [np.inf, 1, 2],
        [np.inf, -np.inf, 2],
        [-0.0, -0.0, -0.0],
        [LARGEST, LARGEST, 1],
        [1, -1, 0],
    ]
    x = round_f24(np.array(columns).T)
    found = {
        function: params_of(function, 1, 6).golden({"rows": 3, "length": 6}, {"i": x})["o"][0]
        for function in FUNCTIONS
    }
    np.testing.assert_array_equal(found["sum"], [np.nan, np.inf, np.nan, 0, np.inf, 0])
    np.testing.assert_array_equal(found["mean"], [np.nan, np.inf, np.nan, 0, np.inf, 0])
    np.testing.assert_array_equal(found["max"], [np.nan, np.inf, np.inf, 0, np.float32(LARGEST), 1])
    np.testing.assert_array_equal(found["min"], [np.nan, 1, -np.inf, 0, 1, -1])
    assert not np.signbit(found["sum"][3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"function": "product"},
            "TokenReductions.function is 'product'; 'sum', 'mean', 'max', 'min' are allowed",
        ),
        ({"lanes": 0}, "TokenReductions.lanes is 0; 1 to 32 are allowed"),
        ({"max_length": 6}, "TokenReductions.max_length is 6; a multiple of lanes = 4 up to 65536 is needed"),
        ({"max_rows": 0}, "TokenReductions.max_rows is 0; 1 to 2^32 - 1 are allowed"),
    ],
)
def test_bad_params(change: dict[str, Any], message: str) -> None:
    good = {"function": "sum", "lanes": 4, "max_length": 8, "max_rows": 3}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        TokenReductionsParams(**{**good, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "TokenReductions: rows is 0; it must be 1 to 40"),
        ({"rows": 41}, "TokenReductions: rows is 41; it must be 1 to 40"),
        ({"length": 6}, "TokenReductions: length is 6; it must be a multiple of 4 up to 8"),
        ({"length": 12}, "TokenReductions: length is 12; it must be a multiple of 4 up to 8"),
    ],
)
def test_bad_bounds(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        params_of("sum", 4, 8).describe({"rows": 6, "length": 8, **change})
