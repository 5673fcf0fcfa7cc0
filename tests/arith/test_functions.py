"""exp, exp2, 1/x, 1/sqrt(x), tanh, erf, sigmoid, SiLU, GELU: bounds, monotone, special values, RTL == golden.

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
from arith_unit import LIMITS, assert_same_bits, random_bits, run_unit, special_bits

from sim.unit_simulator import UnitSimulator
from streamgen.gateware.arith import (
    BFLOAT16,
    F24,
    FLOAT16,
    FLOAT32,
    ExpParams,
    Float,
    GeluParams,
    ReciprocalParams,
    SaturatingParams,
    SigmoidParams,
)
from tests.campaigns import sampled

# What the tables add to the rounding to the format, in units of 2^-16:
#   exp, exp2   2^g: lines 0.25, entries 0.06, half a unit of 2^-16 cut 0.5; t cut, log2(e): 0.1
#   1/x         lines h²/8·2 at the left end, half of it after the entries are lowered, all of it in the
#               first line, whose left end is exact: 1.0
#   1/sqrt(x)   lines h²/8·3/4, twice in the first: 0.4
#   tanh, erf   lines h²/16·f''/f with h = 2^-6 at x = 1: 0.84 and 0.99; entries and cut 2^-19 of 0.76: 0.3
#   sigmoid,    upwards: 2^g by lines and entries 0.31, t 0.07, 1/(1 + e) in its first line, whose left end is
#   silu        exact, 1.0; downwards: the same entries, half a unit cut 0.5, other lines, lowered, 0.5: 1.4
TABLES = {"exp": 0.95, "exp2": 0.95, "reciprocal": 1.0, "root": 0.5, "tanh": 1.2, "erf": 1.3}
TABLES |= {"sigmoid": 1.4, "silu": 1.4}


def sigmoid(x: np.ndarray) -> np.ndarray:
    """float64, without loss on either side."""
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1 + e)


FUNCTIONS: dict[str, tuple[Callable[[Float], Any], Callable[[np.ndarray], np.ndarray]]] = {
    "exp": (lambda form: ExpParams(form=form), np.exp),
    "exp2": (lambda form: ExpParams(form=form, base_two=True), np.exp2),
    "reciprocal": (lambda form: ReciprocalParams(form=form), lambda x: 1 / x),
    "root": (lambda form: ReciprocalParams(form=form, root=True), lambda x: 1 / np.sqrt(x)),
    "tanh": (lambda form: SaturatingParams(form=form, function="tanh"), np.tanh),
    "erf": (
        lambda form: SaturatingParams(form=form, function="erf"),
        np.vectorize(math.erf, otypes=[np.float64]),
    ),
    "sigmoid": (lambda form: SigmoidParams(form=form), sigmoid),
    "silu": (lambda form: SigmoidParams(form=form, times_x=True), lambda x: x * sigmoid(x)),
}
NARROW = [F24, FLOAT16, BFLOAT16]
erf = FUNCTIONS["erf"][1]


def gelu(x: np.ndarray, tanh: bool) -> np.ndarray:
    """float64 GELU, as torch defines it."""
    if tanh:
        return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x * 0.5 * (1 + erf(x / math.sqrt(2)))


def check_bound(name: str, form: Float, x: np.ndarray) -> np.ndarray:
    """Golden within its bound, which is at most 2^-14 for f24 and wider formats; returns it.

    Results below the least normal number are zero or that number, above the greatest it or infinite.
    """
    make, function = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        y, golden = function(x), make(form).golden(x)
        bound = TABLES[name] * 2.0**-16 + 2.0**-form.precision * 1.001
        assert bound < 2.0**-14 or form.precision < 16
        least, greatest = 2.0 ** (1 - form.bias), (2 - 2.0**-form.fraction_bits) * 2.0**form.bias
        inside = np.isfinite(x) & (np.abs(y) >= least * (1 + bound)) & (np.abs(y) <= greatest)
        error = np.where(inside, np.abs(golden / y - 1), 0.0)
        beneath, above = np.isfinite(x) & (np.abs(y) < least), np.isfinite(x) & (np.abs(y) > greatest)
    assert (np.abs(golden[beneath]) <= least).all()
    assert (np.abs(golden[above]) >= greatest).all()
    assert (np.signbit(golden) == np.signbit(y))[beneath | above].all()
    worst = int(np.argmax(error))
    assert error[worst] < bound, f"{name}({x[worst]!r}): {error[worst] * 2**16:.3f}·2^-16"
    return golden


def check_gelu(form: Float, tanh: bool, x: np.ndarray) -> np.ndarray:
    golden = GeluParams(form=form, tanh=tanh).golden(x)
    finite = np.isfinite(x)
    x, found = x[finite], golden[finite]
    # f: 1.3·2^-16 of its value (as tanh), of which half counts, and 2^-20 cut; least normal number
    bound = (
        2.0**-17 * np.abs(x) + 2.0**-form.precision * 1.001 * np.abs(gelu(x, tanh)) + 2.0 ** (1 - form.bias)
    )
    error = np.abs(found - gelu(x, tanh)) / bound
    worst = int(np.argmax(error))
    assert error[worst] < 1, f"gelu({x[worst]!r}): {error[worst]:.3f} of the bound"
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


def unit(name: str, form: Float) -> Any:
    """The params of a function, GELU among them."""
    return FUNCTIONS[name][0](form) if name in FUNCTIONS else GeluParams(form=form, tanh=name == "gelu_tanh")


def chunks(form: Float) -> list[np.ndarray]:
    """All bits of a format, a part at a time."""
    size = min(1 << form.bits, 1 << 21)
    return [np.arange(first, first + size) for first in range(0, 1 << form.bits, size)]


def check_rtl(run: Any, params: Any, bits: np.ndarray, stalls: float) -> None:
    form = params.form
    assert_same_bits(form, run({"i": bits}, stalls), form.encode(params.golden(form.decode(bits))), bits)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bound(name: str) -> None:
    for form in (F24, FLOAT32, FLOAT16):
        check_bound(name, form, form.decode(sample(form, 20_000, 1)))


@pytest.mark.parametrize("tanh", [False, True])
def test_bound_of_gelu(tanh: bool) -> None:
    for form in (F24, FLOAT32, FLOAT16):
        check_gelu(form, tanh, form.decode(sample(form, 20_000, 1)))


def test_special_values() -> None:
    inf, nan = np.inf, np.nan
    x = np.array([0.0, -0.0, inf, -inf, nan])
    for name, expected in {
        "exp": [1, 1, inf, 0, nan],
        "exp2": [1, 1, inf, 0, nan],
        "reciprocal": [inf, -inf, 0, -0.0, nan],
        "root": [inf, -inf, 0, nan, nan],
        "tanh": [0, -0.0, 1, -1, nan],
        "erf": [0, -0.0, 1, -1, nan],
        "sigmoid": [0.5, 0.5, 1, 0, nan],
        "silu": [0, -0.0, inf, nan, nan],
    }.items():
        for form in (Float(3, 2), F24, FLOAT32):
            golden = FUNCTIONS[name][0](form).golden(x)
            np.testing.assert_array_equal(golden, expected, name)
            np.testing.assert_array_equal(
                np.signbit(golden)[:4], np.signbit(expected)[:4] & ~np.isnan(expected[:4])
            )
    for tanh in (False, True):
        golden = GeluParams(form=F24, tanh=tanh).golden(x)
        np.testing.assert_array_equal(golden, [0, 0, inf, nan, nan])
        assert np.signbit(golden[:2]).tolist() == [False, True]


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
@pytest.mark.parametrize("name", [*FUNCTIONS, "gelu", "gelu_tanh"])
def test_rtl_matches_golden(name: str, form: Float) -> None:
    params = unit(name, form)
    check_rtl(partial(run_unit, params), params, sample(form, 80 if form == F24 else 30, 5), 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("form", sampled(NARROW, [FLOAT16]))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_value(name: str, form: Float) -> None:
    """Bounds, RTL, and monotone over the negative and over the positive values (but SiLU, which turns)."""
    params = FUNCTIONS[name][0](form)
    simulator = UnitSimulator(params)
    parts = []
    for bits in chunks(form):
        parts.append(check_bound(name, form, form.decode(bits)))
        assert_same_bits(form, simulator.run({"i": bits}), form.encode(parts[-1]), bits)
    if name == "silu":
        return
    every = np.concatenate(parts)  # by pattern
    # Finite values in rising order, zero once; 1/x on either side of it.
    finite = slice(1 << form.fraction_bits, ((1 << form.exponent_bits) - 1) << form.fraction_bits)
    below, above = every[1 << (form.bits - 1) :][finite][::-1], every[finite]
    for golden in (below, above):
        known = golden[~np.isnan(golden)]
        falls = name in ("reciprocal", "root")
        assert (np.less_equal if falls else np.greater_equal)(known[1:], known[:-1]).all()
    if name in ("exp", "exp2", "sigmoid"):
        assert below[-1] <= every[0] <= above[0]


@pytest.mark.slow
@pytest.mark.parametrize("form", sampled(NARROW, [FLOAT16]))
@pytest.mark.parametrize("tanh", [False, True])
def test_every_value_of_gelu(tanh: bool, form: Float) -> None:
    simulator = UnitSimulator(GeluParams(form=form, tanh=tanh))
    for bits in chunks(form):
        golden = check_gelu(form, tanh, form.decode(bits))
        assert_same_bits(form, simulator.run({"i": bits}), form.encode(golden), bits)


UNITS = [*FUNCTIONS, "gelu", "gelu_tanh"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form"), sampled(product(UNITS, (F24, FLOAT32)), [*product(UNITS, [F24]), ("exp", FLOAT32)])
)
def test_sweep(name: str, form: Float) -> None:
    bits = sample(form, 500_000, 11)
    params = unit(name, form)
    if name in FUNCTIONS:
        check_bound(name, form, form.decode(bits))
    else:
        check_gelu(form, params.tanh, form.decode(bits))
    check_rtl(UnitSimulator(params).run, params, bits, 0.1)
