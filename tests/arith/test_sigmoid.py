"""Sigmoid, SiLU, ReLU and their tables: bounds against float64, RTL against golden."""

from typing import Any

import numpy as np
import pytest
from arith_unit import assert_same_bits, random_bits, run_unit, special_bits

from streamgen.arith import BFLOAT16, F24, FLOAT16, FLOAT32, Float, ReluParams, SigmoidParams
from streamgen.arith.tables import EXP2, EXP2_BITS, RECIPROCAL, RECIPROCAL_BITS, TABLE_BITS

# Relative errors of e and 1 / (1 + e), in units of 2^-16, and where they come from:
#   2^g: table 0.25 (at most h²/8·ln2² = 2^-18) and entry rounding 0.06, half a unit of 2^-16 cut: 0.5
#   t: cut 0.7·2^-20 (0.04); log2(e) to 2^-26 times t <= 2^7.5, times ln 2 (0.03)
#   reciprocal: h²/16·2 = 2^-17 near e = 0, where inner entries are lowered: 0.5, twice that in the first
#   segment, whose left entry is exact: at most 1.0
#   s cut to 2^-24 of 1/2 (0.01); the result rounded to 16 bits: 0.5
# Together below 2.4·2^-16, hence 2^-14 = 4·2^-16 with room.
BOUND = 2.4 * 2.0**-16


def reference(params: SigmoidParams, x: np.ndarray) -> np.ndarray:
    """float64 sigmoid or silu."""
    with np.errstate(over="ignore", invalid="ignore"):
        sigmoid = np.where(x < 0, np.exp(-np.abs(x)), 1.0) / (1 + np.exp(-np.abs(x)))
        return x * sigmoid if params.times_x else sigmoid


def greatest_error(params: SigmoidParams, x: np.ndarray) -> float:
    """The greatest relative error where the exact result is a normal number of the format."""
    y, expected = params.golden(x), reference(params, x)
    form = params.form
    inside = np.isfinite(expected) & (np.abs(expected) >= 2.0 ** (1 - form.bias) * (1 + BOUND))
    return float(np.max(np.abs(y[inside] / expected[inside] - 1), initial=0.0))


FUNCTIONS = [pytest.param(False, id="sigmoid"), pytest.param(True, id="silu")]


@pytest.mark.parametrize("times_x", FUNCTIONS)
def test_golden_is_near_float64(times_x: bool) -> None:
    params = SigmoidParams(form=F24, times_x=times_x)
    x = F24.decode(np.arange(0, 1 << 24, 37))
    assert greatest_error(params, x) < BOUND
    fine = SigmoidParams(form=FLOAT32, times_x=times_x)
    assert greatest_error(fine, FLOAT32.decode(np.arange(0, 1 << 32, 9973))) < BOUND


@pytest.mark.slow
@pytest.mark.parametrize("times_x", FUNCTIONS)
def test_golden_is_near_float64_everywhere(times_x: bool) -> None:
    params = SigmoidParams(form=F24, times_x=times_x)
    for first in range(0, 1 << 24, 1 << 20):
        assert greatest_error(params, F24.decode(np.arange(first, first + (1 << 20)))) < BOUND


@pytest.mark.slow
@pytest.mark.parametrize("form", [F24, FLOAT16, BFLOAT16])
def test_sigmoid_never_falls(form: Float) -> None:
    params = SigmoidParams(form=form)
    half = np.arange((1 << (form.bits - 1)) - (1 << form.fraction_bits) + 1)  # 0 … infinity
    rising = np.concatenate(
        [params.golden(form.decode(half | 1 << (form.bits - 1)))[::-1], params.golden(form.decode(half))]
    )
    assert (np.diff(rising) >= 0).all()


@pytest.mark.parametrize("form", [Float(3, 2), FLOAT16, F24, FLOAT32])
def test_special_values(form: Float) -> None:
    inf, nan = np.inf, np.nan
    least = 2.0 ** (1 - form.bias)
    x = np.array([0.0, -0.0, inf, -inf, nan, least, -least])
    sigmoid = SigmoidParams(form=form).golden(x)
    silu = SigmoidParams(form=form, times_x=True).golden(x)
    np.testing.assert_array_equal(sigmoid[:5], [0.5, 0.5, 1.0, 0.0, nan])
    np.testing.assert_array_equal(silu[:5], [0.0, -0.0, inf, nan, nan])
    assert list(np.signbit(silu[:2])) == [False, True]
    assert not np.signbit(sigmoid[:4]).any()
    if form.bits >= 16:  # half of the least number is below the range
        np.testing.assert_array_equal(sigmoid[5:], [0.5, 0.5])
        np.testing.assert_array_equal(silu[5:], [0.0, -0.0])


def test_silu_outlives_sigmoid() -> None:
    x = np.array([-90.0, -1e30])
    assert SigmoidParams(form=F24).golden(x).tolist() == [0.0, 0.0]
    silu = SigmoidParams(form=F24, times_x=True).golden(x)
    assert abs(silu[0] / (-90 * np.exp(-90.0)) - 1) < BOUND
    assert silu[1] == 0 and np.signbit(silu[1])


def test_tables_keep_their_bounds() -> None:
    x = np.arange(1 << TABLE_BITS)
    fraction = x / 2.0**TABLE_BITS
    power, reciprocal = EXP2.golden(x), RECIPROCAL.golden(x)
    # h²/8·ln2² where one entry is not lowered, entries rounded; half a unit cut, one of nearly 2 at the end
    relative = power / 2.0**EXP2_BITS / np.exp2(fraction) - 1
    assert np.abs(relative).max() < 2.0**-18 + 2.0**-20 + 2.0**-17
    # the first segment's left entry is exact: all of h²/8·2/2 there; cut to 2^-22
    assert np.abs(reciprocal / 2.0**RECIPROCAL_BITS - 1 / (1 + fraction)).max() < 2.0**-16
    assert (np.diff(power) >= 0).all() and power[0] == 1 << EXP2_BITS and power[-1] < 2 << EXP2_BITS
    assert (np.diff(reciprocal) <= 0).all() and reciprocal[0] == 1 << RECIPROCAL_BITS
    assert reciprocal[-1] == 1 << (RECIPROCAL_BITS - 1)


def operands(form: Float, count: int, seed: int) -> np.ndarray:
    """Special values, patterns of all kinds, and values around the borders of steps and of the range."""
    rng = np.random.default_rng(seed)
    sizes = rng.normal(size=count) * np.exp2(rng.integers(-12, 7, count))
    whole = np.log(2) * rng.integers(-140, 140, count) * (1 + rng.normal(size=count) * 2.0**-form.precision)
    return np.concatenate(
        [special_bits(form), random_bits(form, count // 3, seed), form.encode(sizes), form.encode(whole)]
    )


def check_rtl(params: Any, count: int, stalls: float = 0.0) -> None:
    form = params.form
    x = operands(form, count, 7)
    assert_same_bits(form, run_unit(params, {"i": x}, stalls), form.encode(params.golden(form.decode(x))), x)


RTL = [
    pytest.param(function, form, id=f"{name}-{form.exponent_bits}-{form.fraction_bits}")
    for name, function in {
        "sigmoid": lambda form: SigmoidParams(form=form),
        "silu": lambda form: SigmoidParams(form=form, times_x=True),
        "relu": lambda form: ReluParams(form=form),
    }.items()
    for form in (Float(3, 2), FLOAT16, F24, FLOAT32)
]


@pytest.mark.parametrize(("make", "form"), RTL)
def test_rtl_matches_golden(make: Any, form: Float) -> None:
    check_rtl(make(form), 300)


@pytest.mark.parametrize("make", [RTL[2].values[0], RTL[6].values[0], RTL[10].values[0]])
def test_rtl_keeps_its_state_when_not_enabled(make: Any) -> None:
    check_rtl(make(F24), 80, stalls=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("times_x", FUNCTIONS)
def test_rtl_sweep(times_x: bool) -> None:
    check_rtl(SigmoidParams(form=F24, times_x=times_x), 12_000)


def test_relu() -> None:
    x = np.array([3.0, -3.0, 0.0, -0.0, np.inf, -np.inf, np.nan])
    y = ReluParams(form=F24).golden(x)
    np.testing.assert_array_equal(y, [3.0, 0.0, 0.0, 0.0, np.inf, 0.0, np.nan])
    assert not np.signbit(y[:6]).any()
