"""ScaledInteger: golden against rational arithmetic, RTL against golden."""

from fractions import Fraction

import numpy as np
import pytest

from streamgen.gateware.arith import BFLOAT16, F24, FLOAT16, ScaledIntegerParams
from tests.unit.gateware.arith.arith_unit import assert_same_bits, round_exactly, run_unit

UNITS = [
    ScaledIntegerParams(width=54, form=F24),
    ScaledIntegerParams(width=64, form=F24, exponent_bits=10),
    ScaledIntegerParams(width=37, form=F24, exponent_bits=17),
    ScaledIntegerParams(width=8, form=F24, exponent_bits=9),
    ScaledIntegerParams(width=40, form=FLOAT16, exponent_bits=8),
    ScaledIntegerParams(width=20, form=BFLOAT16, exponent_bits=2),
]
IDS = [f"{p.width}-{p.form.bits}-{p.exponent_bits}" for p in UNITS]


def _operands(params: ScaledIntegerParams, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Integers of all sizes, ties and extremes; exponents of all sizes, half with results at the limits."""
    rng = np.random.default_rng(seed)
    width, form = params.width, params.form
    wide = rng.integers(-(2**63), 2**63 - 1, count, dtype=np.int64, endpoint=True)
    i = wide >> rng.integers(64 - width, 64, count)
    # Of `precision` bits and a half, at any size.
    size = rng.integers(0, max(1, width - form.precision - 2), count // 4)
    ties = (rng.integers(1 << form.precision, 1 << form.precision + 1, count // 4) | 1) << size
    i[: count // 4] = np.where(ties < 2 ** (width - 1), ties, -1)
    i[-4:] = [0, 0, 2 ** (width - 1) - 1, -(2 ** (width - 1))]
    reach = 1 << params.exponent_bits - 1
    exponent = rng.integers(-reach, reach, count)
    at_limit = rng.choice([form.bias + 1, 1 - form.bias], count) - np.frexp(i.astype(np.float64))[1]
    at_limit += rng.integers(-1, 3, count)
    exponent = np.where(rng.random(count) < 0.5, at_limit, exponent)
    exponent[-2:] = 0
    return i, np.clip(exponent, -reach, reach - 1)


@pytest.mark.parametrize("params", UNITS, ids=IDS)
def test_golden_is_correctly_rounded(params: ScaledIntegerParams) -> None:
    i, exponent = _operands(params, 400, 1)
    near = np.abs(exponent) < 1000
    i, exponent = i[near], exponent[near]
    pairs = zip(i.tolist(), exponent.tolist(), strict=True)
    expected = [round_exactly(n * Fraction(2) ** e, params.form) for n, e in pairs]
    np.testing.assert_array_equal(params.golden(i, exponent, np.zeros(len(i), bool)), expected)


def test_golden_of_special_values() -> None:
    params = ScaledIntegerParams(width=54, form=F24)
    i = np.array([0, 0, 1, -1, 5, 0, 1])
    exponent = np.array([-32768, 32767, 32767, 32767, -32768, 3, 3])
    found = params.golden(i, exponent, np.array([0, 0, 0, 0, 0, 1, 1], bool))
    np.testing.assert_array_equal(found, [0, 0, np.inf, -np.inf, 0, np.nan, np.nan])


def _check(params: ScaledIntegerParams, count: int, stalls: float = 0.0) -> None:
    i, exponent = _operands(params, count, 2)
    nan = np.random.default_rng(3).random(count) < 0.05
    actual = run_unit(params, {"i": i, "exponent": exponent, "nan": nan}, stalls)
    expected = params.form.encode(params.golden(i, exponent, nan))
    assert_same_bits(params.form, actual, expected, i, exponent, nan)


@pytest.mark.parametrize("params", UNITS, ids=IDS)
def test_rtl_matches_golden(params: ScaledIntegerParams) -> None:
    _check(params, 200)


def test_keeps_its_state_when_not_enabled() -> None:
    _check(UNITS[0], 200, stalls=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("params", UNITS[:3], ids=IDS[:3])
def test_rtl_sweep(params: ScaledIntegerParams) -> None:
    _check(params, 20_000)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 1}, "width is 1; 2 to 64 bits are allowed"),
        ({"width": 65}, "width is 65; 2 to 64 bits are allowed"),
        ({"exponent_bits": 1}, "exponent_bits is 1; 2 to 32 bits are allowed"),
        ({"exponent_bits": 33}, "exponent_bits is 33; 2 to 32 bits are allowed"),
    ],
)
def test_bad_params(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        ScaledIntegerParams(**{"width": 48, "form": F24, "exponent_bits": 16} | change)
    assert str(caught.value) == message
