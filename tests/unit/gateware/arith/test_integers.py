"""IntToFloat and ScaleAccumulator: golden against rational arithmetic, RTL against golden."""

from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from sim.unit_simulator import UnitSimulator
from streamgen.gateware.arith import (
    BFLOAT16,
    F24,
    FLOAT16,
    FLOAT32,
    Float,
    IntToFloatParams,
    ScaleAccumulatorParams,
)
from streamgen.numbers.formats import E_NOT_FINITE
from tests.shared.campaigns import sampled
from tests.unit.gateware.arith.arith_unit import (
    LIMITS,
    assert_same_bits,
    random_bits,
    round_exactly,
    run_unit,
    special_bits,
)


def integers(width: int, precision: int, count: int, seed: int) -> np.ndarray:
    """int64 of `width` bits: extremes, ties and their neighbours at every size, random ones of every size."""
    rng = np.random.default_rng(seed)
    wide = rng.integers(-(2**63), 2**63 - 1, count, dtype=np.int64, endpoint=True)
    numbers = [int(v) for v in wide >> rng.integers(64 - width, 64, count)]
    numbers += [0, 1, -1, 2 ** (width - 1) - 1, -(2 ** (width - 1))]
    for size in range(precision + 1, width):
        tie = 1 << (size - precision - 1)
        for kept in ((1 << precision) - 1, (1 << (precision - 1)), (1 << (precision - 1)) + 1):
            value = (kept << (size - precision)) + tie
            numbers += [value, -value, value - 1, 1 - value, value + 1]
    return np.array([n for n in numbers if -(2 ** (width - 1)) <= n < 2 ** (width - 1)], np.int64)


WIDTHS = [(8, F24), (20, FLOAT16), (48, F24), (64, F24), (64, BFLOAT16), (64, FLOAT32), (2, F24)]


@pytest.mark.parametrize(("width", "form"), WIDTHS)
def test_int_to_float_golden_is_correctly_rounded(width: int, form: Float) -> None:
    values = integers(width, form.precision, 500, 1)
    golden = IntToFloatParams(width=width, form=form).golden(values)
    np.testing.assert_array_equal(golden, [round_exactly(Fraction(int(v)), form) for v in values])


@pytest.mark.parametrize(("width", "form"), [*WIDTHS, *((12, form) for form in LIMITS)])
def test_int_to_float_rtl_matches_golden(width: int, form: Float) -> None:
    """The sweeps are in test_rounded."""
    values = integers(width, form.precision, 200, 2)
    params = IntToFloatParams(width=width, form=form)
    actual = run_unit(params, {"i": values}, 0.3)
    assert_same_bits(form, actual, form.encode(params.golden(values)), values)


def scale_operands(
    params: ScaleAccumulatorParams, count: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Accumulators, bits of scales, exponents: special, extreme, results at both ends of the range."""
    form, width = params.form, params.width
    rng = np.random.default_rng(seed)
    acc = np.resize(rng.permutation(integers(width, form.precision, count, seed)), count)
    scale = random_bits(form, count, seed, spread=min(20, form.bias - 1))
    reach = 1 << (params.exponent_bits - 1)
    exponent = rng.integers(max(-60, -reach), min(60, reach), count)
    quarter = count // 4
    scale[:quarter] = np.resize(special_bits(form), quarter)
    acc[: quarter // 2 : 3] = 0
    exponent[quarter : quarter + 40] = rng.choice([-reach, reach - 1, 0], 40)
    # acc · scale · 2^(exponent - 15) near the greatest and near the least number
    ends = slice(quarter + 40, count // 2)
    size = np.frexp(acc[ends].astype(np.float64))[1] + np.frexp(form.decode(scale[ends]))[1] - 15
    end = rng.choice([form.bias + 1, 1 - form.bias], len(size))
    exponent[ends] = np.clip(end - size + rng.integers(-1, 3, len(size)), -reach, reach - 1)
    return acc, scale, exponent


SCALES = [
    ScaleAccumulatorParams(width=48, form=F24),
    ScaleAccumulatorParams(width=64, form=F24),
    ScaleAccumulatorParams(width=24, form=F24, exponent_bits=10),
    ScaleAccumulatorParams(width=40, form=FLOAT16, exponent_bits=8),
    ScaleAccumulatorParams(width=64, form=FLOAT32),
]
SCALE_IDS = [f"{p.width}-{p.form.bits}" for p in SCALES]


def unlimited(value: Fraction, form: Float) -> Fraction:
    """Rounded to the precision of the format, with any exponent."""
    if value == 0:
        return value
    top = abs(value).numerator.bit_length() - abs(value).denominator.bit_length()
    top -= abs(value) < Fraction(2) ** top
    unit = Fraction(2) ** (top - form.fraction_bits)
    return round(value / unit) * unit


@pytest.mark.parametrize("params", SCALES, ids=SCALE_IDS)
def test_scale_golden_rounds_twice_and_limits_once(params: ScaleAccumulatorParams) -> None:
    form = params.form
    acc, bits, exponent = scale_operands(params, 800, 3)
    scale = form.decode(bits)
    finite = np.isfinite(scale) & (np.abs(exponent) < 1000)
    acc, scale, exponent = acc[finite], scale[finite], exponent[finite]
    expected = []
    for n, s, e in zip(acc.tolist(), scale.tolist(), exponent.tolist(), strict=True):
        product = unlimited(unlimited(Fraction(n), form) * Fraction(s), form)
        expected.append(round_exactly(product * Fraction(2) ** (e - 15), form))
    golden = params.golden(acc, scale, exponent)
    np.testing.assert_array_equal(golden, expected)
    assert np.isinf(golden).any()
    assert ((golden == 0) & (acc != 0) & (scale != 0)).any()


def test_scale_of_special_values() -> None:
    inf, nan = np.inf, np.nan
    acc = np.array([3, -3, 0, 3, 0, -1, 0, 1 << 40])
    scale = np.array([inf, inf, inf, nan, nan, 0.0, -0.0, 2.0**-25])
    golden = ScaleAccumulatorParams(width=48, form=F24).golden(
        acc, scale, np.array([0, 0, 0, 0, 0, 0, 0, 15])
    )
    np.testing.assert_array_equal(golden, [inf, -inf, nan, nan, nan, -0.0, -0.0, 2.0**15])
    assert list(np.signbit(golden[5:7])) == [True, True]


def test_scale_of_a_row_that_was_not_finite() -> None:
    """Its exponent makes NaN of everything; one less is an exponent like others."""
    params = ScaleAccumulatorParams(width=48, form=F24)
    acc = np.array([5, -5, 0, 1, 0])
    scale = np.array([1.0, 2.0, 0.0, 1.0, 1.0])
    exponent = np.array([E_NOT_FINITE] * 3 + [E_NOT_FINITE - 1] * 2)
    golden = params.golden(acc, scale, exponent)
    np.testing.assert_array_equal(golden, [np.nan, np.nan, np.nan, np.inf, 0.0])
    actual = run_unit(params, {"acc": acc, "scale": F24.encode(scale), "exponent": exponent}, 0.0)
    assert_same_bits(F24, actual, F24.encode(golden), acc)


def check_scale(params: ScaleAccumulatorParams, run: Any, count: int, stalls: float) -> None:
    acc, scale, exponent = scale_operands(params, count, 4)
    form = params.form
    actual = run({"acc": acc, "scale": scale, "exponent": exponent}, stalls)
    expected = form.encode(params.golden(acc, form.decode(scale), exponent))
    assert_same_bits(form, actual, expected, acc, scale, exponent)


@pytest.mark.parametrize("params", SCALES, ids=SCALE_IDS)
def test_scale_rtl_matches_golden(params: ScaleAccumulatorParams) -> None:
    check_scale(params, partial(run_unit, params), 800, 0.0)


def test_scale_keeps_its_state_when_not_enabled() -> None:
    check_scale(SCALES[0], partial(run_unit, SCALES[0]), 400, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("params", sampled(SCALES, [SCALES[0], SCALES[3]]), ids=SCALE_IDS)
def test_scale_rtl_sweep(params: ScaleAccumulatorParams) -> None:
    check_scale(params, UnitSimulator(params).run, 1_000_000, 0.1)


def test_bad_params() -> None:
    for make, message in [
        (lambda: IntToFloatParams(width=65, form=F24), "width is 65; 2 to 64 bits are allowed"),
        (lambda: IntToFloatParams(width=1, form=F24), "width is 1; 2 to 64 bits are allowed"),
        (lambda: ScaleAccumulatorParams(width=0, form=F24), "width is 0; 2 to 64 bits are allowed"),
        (
            lambda: ScaleAccumulatorParams(width=8, form=F24, exponent_bits=1),
            "exponent_bits is 1; 2 to 32 bits are allowed",
        ),
    ]:
        with pytest.raises(ValueError) as raised:
            make()
        assert str(raised.value) == message
