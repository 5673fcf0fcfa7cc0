"""Special values of sigmoid and SiLU, their tables; ReLU. Bounds and RTL of sigmoid: test_functions."""

import numpy as np
import pytest
from arith_unit import LIMITS, assert_same_bits, random_bits, run_unit, special_bits

from streamgen.gateware.arith import BFLOAT16, F24, FLOAT16, FLOAT32, Float, ReluParams, SigmoidParams
from streamgen.gateware.arith.tables import EXP2, EXP2_BITS, RECIPROCAL, RECIPROCAL_BITS, TABLE_BITS

# Derived and held to over the formats in test_functions.
BOUND = 2.4 * 2.0**-16


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


@pytest.mark.parametrize("form", [*LIMITS, FLOAT16, BFLOAT16, F24, FLOAT32])
def test_rtl_of_relu_matches_golden(form: Float) -> None:
    params, x = ReluParams(form=form), np.concatenate([special_bits(form), random_bits(form, 100, 7)])
    expected = form.encode(params.golden(form.decode(x)))
    assert_same_bits(form, run_unit(params, {"i": x}, 0.3), expected, x)


def test_relu() -> None:
    x = np.array([3.0, -3.0, 0.0, -0.0, np.inf, -np.inf, np.nan])
    y = ReluParams(form=F24).golden(x)
    np.testing.assert_array_equal(y, [3.0, 0.0, 0.0, 0.0, np.inf, 0.0, np.nan])
    assert not np.signbit(y[:6]).any()
