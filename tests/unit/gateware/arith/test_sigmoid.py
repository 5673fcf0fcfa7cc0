"""Sigmoid and SiLU near zero and far from it, their tables. Bounds and RTL: test_functions."""

import numpy as np
import pytest

from streamgen.gateware.arith import F24, FLOAT16, FLOAT32, Float
from streamgen.gateware.arith.tables import EXP2, EXP2_BITS, RECIPROCAL, RECIPROCAL_BITS, TABLE_BITS
from streamgen.gateware.functions.sigmoid import SigmoidParams

# Derived and held to over the formats in test_functions.
BOUND = 2.4 * 2.0**-16


@pytest.mark.parametrize("form", [FLOAT16, F24, FLOAT32])
def test_half_of_the_least_number_is_below_the_range(form: Float) -> None:
    x = np.array([1, -1]) * 2.0 ** (1 - form.bias)
    np.testing.assert_array_equal(SigmoidParams(form=form).golden(x), [0.5, 0.5])
    np.testing.assert_array_equal(SigmoidParams(form=form, times_x=True).golden(x), [0.0, -0.0])


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
