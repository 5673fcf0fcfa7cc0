"""Units that round once (a·b + c, quotient, root, order, conversions): golden exact, RTL equal to golden.

The RTL is the emitted Verilog in Verilator; the slow sweeps compare it with other implementations too.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from math import isqrt
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from arith_unit import assert_same_bits, pairs, random_bits, round_exactly, run_unit, special_bits

from sim.unit_simulator import UnitSimulator
from streamgen.arith import (
    BFLOAT16,
    F24,
    FLOAT16,
    FLOAT32,
    AddParams,
    CompareParams,
    ConvertParams,
    DivideParams,
    Float,
    FloatToIntParams,
    IntToFloatParams,
    MaximumParams,
    MultiplyAddParams,
    MultiplyParams,
    Order,
    SquareRootParams,
)

SMALL = [Float(4, 3), Float(5, 2)]
FORMS = [F24, FLOAT16, BFLOAT16, FLOAT32]
PAIRS: list[Any] = [AddParams, MultiplyParams, DivideParams, CompareParams, MaximumParams]
WIDTHS = [2, 8, 17, 32, 64]


def operands(form: Float, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Special values with each other, then random pairs: of all kinds, near 1, equal but for low bits."""
    special = pairs(special_bits(form), special_bits(form))
    wild = random_bits(form, count, seed), random_bits(form, count, seed + 1)
    near = random_bits(form, count, seed + 2, spread=2), random_bits(form, count, seed + 3, spread=2)
    first = random_bits(form, count, seed + 4)
    twin = first ^ np.random.default_rng(seed).integers(0, 8, count) ^ (1 << (form.bits - 1))
    parts = [special, wild, near, (first, twin)]
    return np.concatenate([a for a, _ in parts]), np.concatenate([b for _, b in parts])


def triples(form: Float, count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Special values with each other, random ones, and addends that cancel the product but for low bits."""
    special = special_bits(form)[::3]
    a, b = operands(form, count, seed)
    c = random_bits(form, len(a), seed + 5)
    with np.errstate(invalid="ignore"):
        opposite = form.encode(-form.decode(a) * form.decode(b))
    opposite ^= np.random.default_rng(seed).integers(0, 4, len(a)) * (opposite != form.nan)
    first, second = pairs(special, special)
    repeated = [np.repeat(v, len(special)) for v in (first, second)]
    return (
        np.concatenate([a, a, repeated[0]]),
        np.concatenate([b, b, repeated[1]]),
        np.concatenate([c, opposite, np.tile(special, len(first))]),
    )


def check(params: Any, run: Any, stalls: float, **bits: np.ndarray) -> None:
    """RTL equal to golden; `bits` are those of the operands."""
    form = params.source if isinstance(params, ConvertParams) else params.form
    values = [form.decode(column) for column in bits.values()]
    expected = encoder(params)(params.golden(*values))
    assert_same_bits(form, run(bits, stalls), expected, *bits.values())


def encoder(params: Any) -> Callable[[np.ndarray], np.ndarray]:
    """From what golden gives to what the unit gives."""
    if isinstance(params, CompareParams | FloatToIntParams):
        return lambda integers: integers
    form: Float = params.target if isinstance(params, ConvertParams) else params.form
    return form.encode


def exact_root(value: float, form: Float) -> float:
    """The root rounded once: that of value·4^k as an integer of many more bits, with a quarter for a rest."""
    numerator, denominator = Fraction(value).as_integer_ratio()
    shift = 600 + (denominator.bit_length() - 1) % 2  # the denominator is a power of two
    scaled = numerator << shift
    root = isqrt(scaled)
    sticky = Fraction(1, 4) if root * root != scaled else 0
    return round_exactly((root + sticky) / Fraction(2) ** ((shift + denominator.bit_length() - 1) // 2), form)


@pytest.mark.parametrize("form", [*SMALL, *FORMS])
def test_golden_is_correctly_rounded(form: Float) -> None:
    a, b, c = (form.decode(bits) for bits in triples(form, 150, 1))
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    a, b, c = a[finite], b[finite], c[finite]
    fused = [
        round_exactly(Fraction(x) * Fraction(y) + Fraction(z), form)
        for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]
    np.testing.assert_array_equal(MultiplyAddParams(form=form).golden(a, b, c), fused)
    divisible = b != 0
    quotients = [
        round_exactly(Fraction(x) / Fraction(y), form)
        for x, y in zip(a[divisible].tolist(), b[divisible].tolist(), strict=True)
    ]
    np.testing.assert_array_equal(DivideParams(form=form).golden(a[divisible], b[divisible]), quotients)
    positive = a[a >= 0]
    roots = [exact_root(x, form) for x in positive.tolist()]
    np.testing.assert_array_equal(SquareRootParams(form=form).golden(positive), roots)
    for target in SMALL + FORMS:
        converted = [round_exactly(Fraction(x), target) for x in a.tolist()]
        np.testing.assert_array_equal(ConvertParams(source=form, target=target).golden(a), converted)
    for width in WIDTHS:
        limit = 1 << (width - 1)
        integers = [min(max(round(Fraction(x)), -limit), limit - 1) for x in a.tolist()]
        assert FloatToIntParams(form=form, width=width).golden(a).tolist() == integers


def test_golden_of_special_values() -> None:
    inf, nan = np.inf, np.nan
    a = np.array([0.0, 1.0, -1.0, 0.0, inf, inf, nan, -0.0])
    b = np.array([0.0, 0.0, 0.0, -5.0, inf, -2.0, 1.0, 3.0])
    quotients = DivideParams(form=F24).golden(a, b)
    np.testing.assert_array_equal(quotients, [nan, inf, -inf, -0.0, nan, -inf, nan, -0.0])
    assert np.signbit(quotients[[3, 7]]).all()
    roots = SquareRootParams(form=F24).golden(np.array([0.0, -0.0, inf, -inf, -1.0, nan, 4.0]))
    np.testing.assert_array_equal(roots, [0.0, -0.0, inf, nan, nan, nan, 2.0])
    assert np.signbit(roots[1])
    maxima = MaximumParams(form=F24).golden(
        np.array([-0.0, 0.0, nan, -inf]), np.array([0.0, -0.0, 1.0, -5.0])
    )
    np.testing.assert_array_equal(maxima, [0.0, 0.0, nan, -5.0])
    assert not np.signbit(maxima[:2]).any()
    orders = CompareParams(form=F24).golden(np.array([-0.0, 1.0, -inf, nan]), np.array([0.0, -2.0, inf, nan]))
    assert orders.tolist() == [Order.EQUAL, Order.GREATER, Order.LESS, Order.UNORDERED]
    fused = MultiplyAddParams(form=F24).golden(
        np.array([inf, 2.0, 0.0, -0.0, inf]),
        np.array([0.0, 3.0, 5.0, 5.0, 1.0]),
        np.array([1.0, -6.0, -0.0, -0.0, -inf]),
    )
    np.testing.assert_array_equal(fused, [nan, 0.0, 0.0, -0.0, nan])
    assert np.signbit(fused).tolist()[1:4] == [False, False, True]
    integers = FloatToIntParams(form=F24, width=8).golden(
        np.array([inf, -inf, nan, 127.5, -128.5, 2.5, -3.5, 0.5])
    )
    assert integers.tolist() == [127, -128, 0, 127, -128, 2, -4, 0]


def test_bad_width() -> None:
    with pytest.raises(ValueError, match=r"^width is 65; 2 to 64 bits are allowed$"):
        FloatToIntParams(form=F24, width=65)


@pytest.mark.parametrize("kind", [DivideParams, MultiplyAddParams, CompareParams, MaximumParams])
def test_rtl_matches_golden(kind: Any) -> None:
    params = kind(form=F24)
    names = "abc" if kind is MultiplyAddParams else "ab"
    bits = triples(F24, 60, 5) if kind is MultiplyAddParams else operands(F24, 60, 5)
    check(params, partial(run_unit, params), 0.3, **dict(zip(names, bits, strict=True)))


@pytest.mark.parametrize(
    "params",
    [
        SquareRootParams(form=F24),
        FloatToIntParams(form=F24, width=12),
        ConvertParams(source=F24, target=FLOAT16),
        ConvertParams(source=FLOAT16, target=F24),
    ],
)
def test_rtl_of_one_operand_matches_golden(params: Any) -> None:
    form = params.source if isinstance(params, ConvertParams) else params.form
    check(params, partial(run_unit, params), 0.3, i=operands(form, 60, 5)[0])


@pytest.mark.slow
@pytest.mark.parametrize("form", SMALL)
@pytest.mark.parametrize("kind", PAIRS)
def test_every_pair_of_small_formats(kind: Any, form: Float) -> None:
    params, patterns = kind(form=form), np.arange(1 << form.bits)
    a, b = pairs(patterns, patterns)
    check(params, UnitSimulator(params).run, 0.1, a=a, b=b)


@pytest.mark.slow
@pytest.mark.parametrize("form", SMALL)
def test_every_value_of_small_formats(form: Float) -> None:
    patterns = np.arange(1 << form.bits)
    singles: list[Any] = [SquareRootParams(form=form)]
    singles += [FloatToIntParams(form=form, width=width) for width in WIDTHS]
    singles += [ConvertParams(source=form, target=target) for target in SMALL + FORMS]
    for params in singles:
        check(params, UnitSimulator(params).run, 0.1, i=patterns)


COUNT = 350_000  # three times as many operands, and the special ones


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [*PAIRS, MultiplyAddParams])
def test_sweep(kind: Any, form: Float) -> None:
    """A million operands; of formats that numpy or ml_dtypes have, against their arithmetic too."""
    params = kind(form=form)
    if kind is MultiplyAddParams:
        check(
            params, UnitSimulator(params).run, 0.1, **dict(zip("abc", triples(form, COUNT, 7), strict=True))
        )
        return
    a, b = operands(form, COUNT, 7)
    check(params, UnitSimulator(params).run, 0.1, a=a, b=b)
    if form != F24 and kind in ORACLES:
        against_library(params, a, b)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_sweep_of_one_operand(form: Float) -> None:
    bits = operands(form, COUNT, 9)[0]
    singles: list[Any] = [SquareRootParams(form=form)]
    singles += [FloatToIntParams(form=form, width=width) for width in (8, 32, 64)]
    singles += [ConvertParams(source=form, target=target) for target in FORMS if target != form]
    for params in singles:
        check(params, UnitSimulator(params).run, 0.1, i=bits)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("width", [8, 33, 64])
def test_sweep_of_integers(form: Float, width: int) -> None:
    rng = np.random.default_rng(3)
    integers = rng.integers(-(1 << (width - 1)), 1 << (width - 1), 1_000_000) >> rng.integers(
        0, width, 1_000_000
    )
    params = IntToFloatParams(width=width, form=form)
    result = UnitSimulator(params).run({"i": integers}, 0.1)
    assert_same_bits(form, result, form.encode(params.golden(integers)), integers)


TYPES = {
    FLOAT16: (np.float16, np.uint16),
    BFLOAT16: (ml_dtypes.bfloat16, np.uint16),
    FLOAT32: (np.float32, np.uint32),
}
ORACLES = {AddParams: np.add, MultiplyParams: np.multiply, DivideParams: np.divide}


def against_library(params: Any, a: np.ndarray, b: np.ndarray) -> None:
    """Golden against arithmetic in the type itself, where operands and result are normal numbers."""
    form = params.form
    kind, raw = TYPES[form]
    values = [bits.astype(raw).view(kind) for bits in (a, b)]
    with np.errstate(all="ignore"):
        expected = ORACLES[type(params)](*values)
        wide = expected.astype(np.float64)
        inputs = [value.astype(np.float64) for value in values]
    normal = np.abs(wide) > 2.0 ** (1 - form.bias)
    for value in inputs:
        normal &= np.abs(value) >= 2.0 ** (1 - form.bias)
    assert normal.sum() > len(a) / 4
    golden = params.golden(form.decode(a[normal]), form.decode(b[normal]))
    np.testing.assert_array_equal(golden, wide[normal])
