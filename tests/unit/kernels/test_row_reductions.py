"""Sums, sums of squares and maxima of rows: rtl == golden, golden near float64, promises, resources."""

import re
from typing import Any

import numpy as np
import pytest

from streamgen.gateware.arith import F24
from streamgen.kernels.row_reductions import FUNCTIONS, RowReductionsParams
from streamgen.numbers.formats import round_f24
from streamgen.testing.bench import Stalls
from streamgen.testing.conformance import ASPECTS, check
from streamgen.testing.kernel import Case, check_golden, check_promises

LARGEST = float(round_f24(np.array(3.4e38)))
NORMAL = 2.0**-126
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, LARGEST, -LARGEST, NORMAL, -NORMAL, 1.0])
SIZES = [(1, 7), (3, 12), (8, 64)]


def params_of(function: str, lanes: int, length: int) -> RowReductionsParams:
    return RowReductionsParams(function=function, lanes=lanes, max_length=length, max_rows=40)  # type: ignore[arg-type]


def case(params: RowReductionsParams, rows: int, length: int, pieces: int, seed: int) -> Case:
    """Rows of numbers of all sizes, of special values, of zeros, of equal values."""
    bounds = {"rows": rows, "length": length, "pieces": pieces}
    rng = np.random.default_rng(seed)
    shape = rows, length
    kinds = [
        rng.normal(size=shape),
        rng.normal(size=shape) * np.exp2(rng.integers(-120, 120, shape)),
        rng.choice(SPECIAL, shape),
        rng.choice([0.0, -0.0], shape),
        np.broadcast_to(rng.normal(size=(rows, 1)), shape),
        -np.abs(rng.normal(size=shape)),
    ]
    x = np.choose(rng.integers(0, len(kinds), (rows, 1)), kinds)
    return bounds, {"i": round_f24(x).reshape(rows // pieces, pieces * length)}


def cases_of(params: RowReductionsParams) -> list[Case]:
    lanes, most = params.lanes, params.max_length
    sizes = [(1, most, 1), (40, lanes, 1), (6, most, 3), (12, lanes, 12), (3, most // 2 // lanes * lanes, 1)]
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
    for rows, size, pieces in ((1, length, 1), (6, length, 2), (40, lanes, 1)):
        check_promises(params, *case(params, rows, size, pieces, 0))


@pytest.mark.slow
@pytest.mark.parametrize("aspect", ASPECTS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_conforms(function: str, aspect: str) -> None:
    for lanes, length in ((1, 7), (4, 32)):
        params = params_of(function, lanes, length)
        check(params, cases_of(params)[:4], refused=[{"rows": 0, "length": lanes}], aspects=[aspect])


def test_golden_is_near_float64() -> None:
    """A sum keeps 40 bits of each term below the greatest, and is rounded once to f24."""
    rng = np.random.default_rng(3)
    x = round_f24(rng.normal(size=(50, 96)))
    wanted = {
        "sum": x.sum(1, dtype=np.float64),
        "squares": (x.astype(np.float64) ** 2).sum(1),
        "max": x.max(1),
    }
    for function, exact in wanted.items():
        params = RowReductionsParams(function=function, lanes=1, max_length=96, max_rows=50)  # type: ignore[arg-type]
        found = params.golden({"rows": 50, "length": 96}, {"i": x})["o"][:, 0]
        np.testing.assert_allclose(found, exact, rtol=2.0**-F24.precision, atol=96 * 2.0**-36)


def test_golden_of_extremes() -> None:
    rows = [
        [np.nan, 1, 2],
        [np.inf, 1, 2],
        [-np.inf, 1, 2],
        [-0.0, -0.0, -0.0],
        [LARGEST, LARGEST, 1],
        [1, -1, 0],
    ]
    x = round_f24(np.array(rows))
    found = {
        function: params_of(function, 1, 3).golden({"rows": 6, "length": 3}, {"i": x})["o"][:, 0]
        for function in FUNCTIONS
    }
    np.testing.assert_array_equal(found["sum"], [np.nan, np.nan, np.nan, 0, np.inf, 0])
    np.testing.assert_array_equal(found["squares"], [np.nan, np.nan, np.nan, 0, np.inf, 2])
    np.testing.assert_array_equal(found["max"], [np.nan, np.inf, 2, 0, np.float32(LARGEST), 1])
    assert not np.signbit(found["max"][3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"function": "product"}, "RowReductions.function is 'product'; 'sum', 'squares', 'max' are allowed"),
        ({"lanes": 0}, "RowReductions.lanes is 0; 1 to 32 are allowed"),
        ({"max_length": 6}, "RowReductions.max_length is 6; a multiple of lanes = 4 up to 65536 is needed"),
        ({"max_rows": 0}, "RowReductions.max_rows is 0; 1 to 2^32 - 1 are allowed"),
    ],
)
def test_bad_params(change: dict[str, Any], message: str) -> None:
    good = {"function": "sum", "lanes": 4, "max_length": 8, "max_rows": 3}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        RowReductionsParams(**{**good, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "RowReductions: rows is 0; it must be 1 to 40"),
        ({"rows": 41}, "RowReductions: rows is 41; it must be 1 to 40"),
        ({"length": 6}, "RowReductions: length is 6; it must be a multiple of 4 up to 8"),
        ({"length": 12}, "RowReductions: length is 12; it must be a multiple of 4 up to 8"),
        ({"pieces": 4}, "RowReductions: pieces is 4; it must be a divisor of rows = 6"),
    ],
)
def test_bad_bounds(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        params_of("sum", 4, 8).describe({"rows": 6, "length": 8, "pieces": 2, **change})
