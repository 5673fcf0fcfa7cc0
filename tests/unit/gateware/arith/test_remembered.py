"""Goldens that take another way where it is faster: the same bits."""

import numpy as np
import pytest

from streamgen.gateware.arith import BFLOAT16, F24, FLOAT32, ExpParams, ScaleAccumulatorParams
from streamgen.gateware.arith.format import round_magnitude
from streamgen.gateware.arith.remembered import remembered
from streamgen.gateware.functions.sigmoid import SigmoidParams
from streamgen.numbers.formats import E_NOT_FINITE
from tests.unit.gateware.arith.arith_unit import random_bits, special_bits


@pytest.mark.parametrize("form", [F24, BFLOAT16])
@pytest.mark.parametrize("unit", [ExpParams, SigmoidParams])
def test_remembers_what_golden_gives(form: object, unit: type) -> None:
    """While nothing is known, while it is being learned, and after."""
    params = unit(form=form)
    memory = type(remembered(params))(params)  # of its own, empty
    for seed in range(6):
        bits = random_bits(params.form, 30_000, seed, spread=1 if seed < 5 else None)
        values = params.form.decode(np.concatenate([bits, special_bits(params.form)]))
        for shape in ((-1,), (2, -1)):
            found, expected = memory(values.reshape(shape)), params.golden(values.reshape(shape))
            assert found.dtype == np.float64
            assert np.array_equal(found.view(np.int64), expected.view(np.int64))
    assert memory(np.array(1.0)) == params.golden(np.array(1.0))
    assert memory._known.sum() >= 4


def test_wide_formats_are_not_remembered() -> None:
    params = ExpParams(form=FLOAT32)
    assert remembered(params) == params.golden
    narrow = ExpParams(form=F24)
    assert remembered(narrow) is remembered(ExpParams(form=F24))


def test_small_magnitudes_round_like_great_ones() -> None:
    """A magnitude of 2^63 or more beside them makes all take the way of integers."""
    rng = np.random.default_rng(0)
    small = np.concatenate(
        [rng.integers(0, 1 << 52, 20_000) >> rng.integers(0, 52, 20_000), np.arange(300), [(1 << 52) - 1]]
    ).astype(np.uint64)
    for precision in (3, 8, 16, 24):
        found = round_magnitude(small, precision)
        expected = round_magnitude(np.append(small, np.uint64(1 << 63)), precision)
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype == np.int64
            assert np.array_equal(a, b[:-1])


def test_small_accumulators_scale_like_great_ones() -> None:
    rng = np.random.default_rng(1)
    params = ScaleAccumulatorParams(width=64, form=F24)
    acc = rng.integers(-(1 << 52), 1 << 52, 20_000) >> rng.integers(0, 53, 20_000)
    acc[:100] = 0
    bits = np.concatenate([random_bits(F24, 19_972, 2), special_bits(F24)])
    scale = F24.decode(rng.permutation(bits))
    exponent = rng.integers(-400, 400, 20_000)
    exponent[rng.random(20_000) < 0.05] = E_NOT_FINITE
    exponent[rng.random(20_000) < 0.05] = -(1 << 15)
    exponent[rng.random(20_000) < 0.05] = E_NOT_FINITE - 1
    found = params.golden(acc, scale, exponent)
    expected = params.golden(np.append(acc, 1 << 60), np.append(scale, 1), np.append(exponent, 0))[:-1]
    assert np.array_equal(found.view(np.int64), expected.view(np.int64))
    in_floats = params.golden(acc.astype(np.float64), scale, exponent)
    assert np.array_equal(found.view(np.int64), in_floats.view(np.int64))
