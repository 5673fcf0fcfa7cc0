"""Add and Multiply: golden against rational arithmetic, RTL against golden; sweeps are in test_rounded."""

from fractions import Fraction

import numpy as np
import pytest

from streamgen.gateware.arith import BFLOAT16, F24, FLOAT16, FLOAT32, AddParams, Float, MultiplyParams
from tests.unit.gateware.arith.arith_unit import (
    assert_same_bits,
    pairs,
    random_bits,
    round_exactly,
    run_unit,
    special_bits,
    ties_and_borders,
)

UNITS = [AddParams, MultiplyParams]
TINY = Float(3, 2)


def exact(unit: type, form: Float, a: float, b: float) -> float:
    """The result for finite operands, by rational arithmetic; signs of zero results are not told."""
    x, y = Fraction(a), Fraction(b)
    return round_exactly(x + y if unit is AddParams else x * y, form)


def operands(form: Float, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Special values with each other, ties and borders, random ones: far apart, near, equal but for a bit."""
    special = pairs(special_bits(form), special_bits(form))
    directed = ties_and_borders(form)
    wild = random_bits(form, count, seed), random_bits(form, count, seed + 1)
    near = random_bits(form, count, seed + 2, spread=2), random_bits(form, count, seed + 3, spread=2)
    first = random_bits(form, count // 4, seed + 4)
    rng = np.random.default_rng(seed)
    twin = first ^ (1 << (form.bits - 1)) ^ (1 << rng.integers(0, 4, len(first)))
    parts = [special, directed, wild, near, (first, twin)]
    return np.concatenate([a for a, _ in parts]), np.concatenate([b for _, b in parts])


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("form", [TINY, FLOAT16, BFLOAT16, F24, FLOAT32])
def test_golden_is_correctly_rounded(unit: type, form: Float) -> None:
    a, b = (form.decode(bits) for bits in operands(form, 500, 1))
    finite = np.isfinite(a) & np.isfinite(b)
    a, b = a[finite], b[finite]
    golden = unit(form=form).golden(a, b)
    expected = [exact(unit, form, float(x), float(y)) for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(golden, expected)


def test_golden_of_special_values() -> None:
    inf, nan = np.inf, np.nan
    a = np.array([inf, inf, -inf, nan, 1.0, 0.0, -0.0, 0.0, 5.0, -5.0])
    b = np.array([1.0, -inf, -inf, 1.0, nan, -0.0, -0.0, inf, -5.0, 0.0])
    total = AddParams(form=F24).golden(a, b)
    product = MultiplyParams(form=F24).golden(a, b)
    np.testing.assert_array_equal(total, [inf, nan, -inf, nan, nan, 0.0, -0.0, inf, 0.0, -5.0])
    np.testing.assert_array_equal(product, [inf, -inf, inf, nan, nan, -0.0, 0.0, nan, -25.0, -0.0])
    assert list(np.signbit(total[5:9])) == [False, True, False, False]
    assert list(np.signbit(product[5:7])) == [True, False]
    assert np.signbit(product[9])


@pytest.mark.parametrize("unit", UNITS)
def test_rtl_of_every_pair_of_a_small_format(unit: type) -> None:
    patterns = np.arange(1 << TINY.bits)
    a, b = pairs(patterns, patterns)
    params = unit(form=TINY)
    expected = TINY.encode(params.golden(TINY.decode(a), TINY.decode(b)))
    assert_same_bits(TINY, run_unit(params, {"a": a, "b": b}), expected, a, b)


def check_rtl(unit: type, form: Float, a: np.ndarray, b: np.ndarray, stalls: float = 0.0) -> None:
    params = unit(form=form)
    expected = form.encode(params.golden(form.decode(a), form.decode(b)))
    assert_same_bits(form, run_unit(params, {"a": a, "b": b}, stalls), expected, a, b)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("form", [FLOAT16, BFLOAT16, F24, FLOAT32])
def test_rtl_matches_golden(unit: type, form: Float) -> None:
    check_rtl(unit, form, *operands(form, 300, 5))


@pytest.mark.parametrize("unit", UNITS)
def test_rtl_keeps_its_state_when_not_enabled(unit: type) -> None:
    a, b = random_bits(F24, 300, 1, spread=4), random_bits(F24, 300, 2, spread=4)
    check_rtl(unit, F24, a, b, stalls=0.5)
