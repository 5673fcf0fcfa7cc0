"""Functions of one variable: bounds, RTL == golden.

The slow tests go over every value of float16 and over samples of wider formats, the campaign over every value
of the formats of up to 24 bits.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from sim.unit_simulator import UnitSimulator
from streamgen.gateware.arith import (
    BFLOAT16,
    F24,
    FLOAT16,
    FLOAT32,
    ExpParams,
    Float,
    NetworkParams,
    ReciprocalParams,
    SaturatingParams,
)
from streamgen.gateware.functions import FUNCTIONS, ErrorBound
from tests.shared.campaigns import sampled
from tests.shared.spellings import torch_values
from tests.unit.gateware.arith.arith_unit import LIMITS, assert_same_bits, random_bits, run_unit, special_bits

# Params of the unit of a format, the function in float64, the bound.
Case = tuple[Callable[[Float], Any], Callable[[np.ndarray], np.ndarray], ErrorBound]
CASES: dict[str, Case] = {
    **{name: (f.unit, f.reference, f.error) for name, f in FUNCTIONS.items()},
}
MONOTONE = ("exp", "exp2", "reciprocal", "rsqrt", "tanh", "erf", "sigmoid", "relu")
NARROW = [F24, FLOAT16, BFLOAT16]


def check_bound(name: str, form: Float, x: np.ndarray) -> np.ndarray:
    """Golden within its bound; returns it. Its part of the result is at most 2^-14 for f24 and wider formats,
    2^-13 for several units one after another.

    Results below the least normal number are zero or that number, above the greatest it or infinite.
    """
    make, function, error = CASES[name]
    several = isinstance(make(form), NetworkParams)  # units, whose roundings add up
    assert error.relative + 2.0**-form.precision < 2.0 ** (-13 if several else -14) or form.precision < 16
    with np.errstate(all="ignore"):
        y, golden = function(x), make(form).golden(x)
        bound = error.of(form, x, y)
        least, greatest = 2.0 ** (1 - form.bias), (2 - 2.0**-form.fraction_bits) * 2.0**form.bias
        finite, difference = np.isfinite(x), np.abs(golden - y)
        beneath, above = finite & (np.abs(y) - bound < least), finite & (np.abs(y) > greatest)
        overflown = np.isinf(golden) & (np.abs(y) + bound > greatest)  # the rounded one is, and near
        inside = finite & ~beneath & ~above & ~np.isnan(y) & ~overflown
        share = np.where(inside, difference / bound, 0.0)
        signed = (beneath | above) & (np.abs(y) > error.operand * np.abs(x))
    assert (difference[beneath] <= bound[beneath] + least).all()
    with np.errstate(over="ignore"):
        assert (np.abs(golden[above]) >= greatest - 2 * error.relative * greatest).all()
    assert (np.signbit(golden) == np.signbit(y))[signed].all()
    worst = int(np.argmax(share))
    assert share[worst] < 1, f"{name}({x[worst]!r}): {share[worst]:.3f} of its bound"
    if not error.relative and not error.operand:
        np.testing.assert_array_equal(golden, form.round(y))
    return golden


def sample(form: Float, count: int, seed: int) -> np.ndarray:
    """Bits: special values, patterns of all kinds, sizes around 1, and values around k and k·ln2, where the
    exponentials' steps and the ends of the range lie."""
    rng = np.random.default_rng(seed)
    sizes = rng.normal(size=count) * np.exp2(rng.integers(-12, 7, count))
    near = 1 + rng.normal(size=count) * 2.0**-form.precision
    whole = rng.integers(-150, 150, count) * rng.choice([1, math.log(2)], count) * near
    parts = [special_bits(form), random_bits(form, count, seed), form.encode(sizes), form.encode(whole)]
    return np.concatenate(parts)


def chunks(form: Float) -> list[np.ndarray]:
    """All bits of a format, a part at a time."""
    size = min(1 << form.bits, 1 << 21)
    return [np.arange(first, first + size) for first in range(0, 1 << form.bits, size)]


def check_rtl(run: Any, params: Any, bits: np.ndarray, stalls: float) -> None:
    form = params.form
    assert_same_bits(form, run({"i": bits}, stalls), form.encode(params.golden(form.decode(bits))), bits)


@pytest.mark.parametrize("name", CASES)
def test_bound(name: str) -> None:
    for form in (F24, FLOAT32, FLOAT16):
        check_bound(name, form, form.decode(sample(form, 20_000, 1)))


def test_special_values() -> None:
    inf, nan = np.inf, np.nan
    x = np.array([0.0, -0.0, inf, -inf, nan])
    for name, expected in {
        "exp": [1, 1, inf, 0, nan],
        "exp2": [1, 1, inf, 0, nan],
        "reciprocal": [inf, -inf, 0, -0.0, nan],
        "rsqrt": [inf, -inf, 0, nan, nan],
        "erf": [0, -0.0, 1, -1, nan],
    }.items():
        for form in (Float(3, 2), F24, FLOAT32):
            same_values(CASES[name][0](form).golden(x), np.array(expected))


def same_values(found: np.ndarray, expected: np.ndarray, zeros: bool = True) -> None:
    """Equal, NaN where there is NaN, and signs alike; zeros: those of zeros too."""
    np.testing.assert_array_equal(found, expected)
    signed = ~np.isnan(expected) & (zeros | (expected != 0))
    np.testing.assert_array_equal(np.signbit(found[signed]), np.signbit(expected[signed]))


@pytest.mark.parametrize("form", [Float(3, 2), FLOAT16, F24, FLOAT32])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_are_those_of_torch(name: str, form: Float) -> None:
    """Zeros, infinities, NaN, rounded to the format; relu(-0) is +0 and logsigmoid(inf) -0 only here."""
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan])
    expected = form.round(torch_values(FUNCTIONS[name], x))
    found = FUNCTIONS[name].unit(form).golden(x)
    near = np.isfinite(expected) & np.isfinite(found) & (expected != 0)  # such as an angle at infinity
    near[near] = np.abs(found[near] / expected[near] - 1) <= FUNCTIONS[name].error.relative
    same_values(np.where(near, expected, found), expected, zeros=name not in ("relu", "logsigmoid"))


@pytest.mark.parametrize("form", [Float(3, 2), F24, FLOAT32])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_subnormals_count_as_zeros(name: str, form: Float) -> None:
    bits = np.array([0, 1, (1 << form.fraction_bits) - 1])
    x = np.concatenate([bits, bits | 1 << (form.bits - 1)])
    found = run_unit(FUNCTIONS[name].unit(form), {"i": x})
    assert (found[:3] == found[0]).all() and (found[3:] == found[3]).all()


def test_exact_values() -> None:
    powers = np.arange(-126.0, 127.0)
    np.testing.assert_array_equal(ExpParams(form=F24, base_two=True).golden(powers), np.exp2(powers))
    np.testing.assert_array_equal(ReciprocalParams(form=F24).golden(np.exp2(powers)), np.exp2(-powers))
    even = np.exp2(powers[::2])
    np.testing.assert_array_equal(
        ReciprocalParams(form=F24, root=True).golden(even), np.exp2(-powers[::2] / 2)
    )


def test_bad_function() -> None:
    with pytest.raises(ValueError, match=r"^function is 'sin'; tanh and erf are allowed$"):
        SaturatingParams(form=F24, function="sin")


@pytest.mark.parametrize("form", [F24, *LIMITS])
@pytest.mark.parametrize("name", CASES)
def test_rtl_matches_golden(name: str, form: Float) -> None:
    params = CASES[name][0](form)
    check_rtl(partial(run_unit, params), params, sample(form, 80 if form == F24 else 30, 5), 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("form", sampled(NARROW, [FLOAT16]))
@pytest.mark.parametrize("name", CASES)
def test_every_value(name: str, form: Float) -> None:
    """Bounds, RTL, and those that are monotone over the negative and over the positive values."""
    params = CASES[name][0](form)
    simulator = UnitSimulator(params)
    parts = []
    for bits in chunks(form):
        parts.append(check_bound(name, form, form.decode(bits)))
        assert_same_bits(form, simulator.run({"i": bits}), form.encode(parts[-1]), bits)
    if name not in MONOTONE:
        return
    every = np.concatenate(parts)  # by pattern
    # Finite values in rising order, zero once; 1/x on either side of it.
    finite = slice(1 << form.fraction_bits, ((1 << form.exponent_bits) - 1) << form.fraction_bits)
    below, above = every[1 << (form.bits - 1) :][finite][::-1], every[finite]
    for golden in (below, above):
        known = golden[~np.isnan(golden)]
        falls = name in ("reciprocal", "rsqrt")
        assert (np.less_equal if falls else np.greater_equal)(known[1:], known[:-1]).all()
    if name in ("exp", "exp2", "sigmoid"):
        assert below[-1] <= every[0] <= above[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form"), sampled(product(CASES, (F24, FLOAT32)), [*product(CASES, [F24]), ("exp", FLOAT32)])
)
def test_sweep(name: str, form: Float) -> None:
    bits = sample(form, 500_000, 11)
    params = CASES[name][0](form)
    check_bound(name, form, form.decode(bits))
    check_rtl(UnitSimulator(params).run, params, bits, 0.1)
