"""Units that round once (a·b + c, quotient, root, order, conversions): golden exact, RTL equal to golden.

In the slow sweeps the RTL is the emitted Verilog in Verilator, and golden meets other implementations too.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import cycle, product
from math import isqrt
from typing import Any

import numpy as np
import pytest

from sim.unit_simulator import UnitSimulator
from streamgen.gateware.arith import (
    BFLOAT16,
    F24,
    FLOAT16,
    FLOAT32,
    AboveParams,
    AddParams,
    CompareParams,
    ConvertParams,
    DivideParams,
    Float,
    FloatToIntParams,
    IntToFloatParams,
    LeakyParams,
    MaximumParams,
    MinimumParams,
    MultiplyAddParams,
    MultiplyParams,
    Order,
    SquareRootParams,
)
from tests.shared.campaigns import sampled
from tests.unit.gateware.arith.arith_oracles import (
    assert_agrees,
    cast,
    from_integers,
    multiply_add,
    operate,
    read,
    to_integers,
)
from tests.unit.gateware.arith.arith_unit import (
    LIMITS,
    assert_same_bits,
    pairs,
    random_bits,
    round_exactly,
    run_unit,
    special_bits,
    ties_and_borders,
)

SMALL = [Float(4, 3), Float(5, 2)]
FORMS = [F24, FLOAT16, BFLOAT16, FLOAT32]
PAIRS: list[Any] = [AddParams, MultiplyParams, DivideParams, CompareParams, MaximumParams]
WIDTHS = [2, 8, 17, 32, 64]


def operands(form: Float, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Special values with each other, ties and borders, random pairs: of all kinds, near 1, equal but for
    low bits."""
    special = pairs(special_bits(form), special_bits(form))
    wild = random_bits(form, count, seed), random_bits(form, count, seed + 1)
    near = random_bits(form, count, seed + 2, spread=2), random_bits(form, count, seed + 3, spread=2)
    first = random_bits(form, count, seed + 4)
    twin = first ^ np.random.default_rng(seed).integers(0, 8, count) ^ (1 << (form.bits - 1))
    parts = [special, ties_and_borders(form), wild, near, (first, twin)]
    return np.concatenate([a for a, _ in parts]), np.concatenate([b for _, b in parts])


def triples(form: Float, count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Special values with each other, random ones, and addends that cancel the product but for low bits; sums
    that are ties or lie at the ends of the range, and what is a bit beside them."""
    special = special_bits(form)[::3]
    a, b = operands(form, count, seed)
    c = random_bits(form, len(a), seed + 5)
    with np.errstate(invalid="ignore"):
        opposite = form.encode(-form.decode(a) * form.decode(b))
    opposite ^= np.random.default_rng(seed).integers(0, 4, len(a)) * (opposite != form.nan)
    first, second = pairs(special, special)
    repeated = [np.repeat(v, len(special)) for v in (first, second)]
    tied = tied_sums(form, count, seed)
    return (
        np.concatenate([a, a, repeated[0], tied[0]]),
        np.concatenate([b, b, repeated[1], tied[1]]),
        np.concatenate([c, opposite, np.tile(special, len(first)), tied[2]]),
    )


def tied_sums(form: Float, count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums half a unit beside a value of the format, half a unit above the greatest, the least but for a few
    bits; a third of the addends is a bit off. Half of the factors b are powers of two."""
    rng = np.random.default_rng(seed)
    region = rng.integers(0, 3, count)
    size = np.choose(
        region, [rng.integers(-2, 3, count), form.bias, 1 - form.bias + rng.integers(0, 3, count)]
    )
    x, y = (form.decode(random_bits(form, count, seed + k, spread=0)) for k in (6, 7))
    y = np.where(rng.random(count) < 0.5, np.copysign(1.0, y), y)
    x, y = np.ldexp(x, size // 2), np.ldexp(y, size - size // 2)
    product = x * y
    mantissa, exponent = np.frexp(product)
    units = np.rint(np.ldexp(mantissa, form.precision)) + rng.choice([-0.5, 0.5, 1.5], count)
    small = 2.0**-form.precision / 2
    least = 2.0 ** (1 - form.bias) * (1 + rng.integers(-3, 4, count) * small)
    sums = [
        np.ldexp(units, exponent - form.precision),
        np.copysign(2.0 ** (form.bias + 1) * (1 - small), product),
        np.copysign(least, rng.normal(size=count)),
    ]
    c = form.encode(np.choose(region, sums) - product)
    return form.encode(x), form.encode(y), c ^ rng.choice([0, 0, 1], count)


def convertible(source: Float, target: Float) -> np.ndarray:
    """Bits of source: ties of the bits that target drops, and neighbours, in the middle and at both ends."""
    kept = 1 + np.array([0, 1, 2, 3, (1 << target.fraction_bits) - 2, (1 << target.fraction_bits) - 1]) * (
        2.0**-target.fraction_bits
    )
    dropped = 2.0**-target.precision + np.array([-1, 0, 1]) * 2.0**-source.fraction_bits
    scale = np.array([-target.bias - 1, -target.bias, 1 - target.bias, -1, 0, target.bias, target.bias + 1])
    values = (kept[:, None] + dropped).reshape(-1, 1) * np.exp2(scale.astype(np.float64))
    return source.encode(np.concatenate([values, -values]).reshape(-1))


def halves(form: Float) -> np.ndarray:
    """Bits of whole numbers and a half, and of their neighbours, up to where there are none."""
    numbers = np.unique(np.concatenate([np.arange(18), np.exp2(np.arange(64)), np.exp2(np.arange(64)) - 1]))
    bits = form.encode(np.concatenate([numbers + 0.5, -numbers - 0.5]))
    return np.concatenate([bits, bits + 1, bits - 1])


def mostly_positive(form: Float, bits: np.ndarray) -> np.ndarray:
    """One in eight keeps its sign."""
    return np.where(np.arange(len(bits)) % 8, bits & ((1 << (form.bits - 1)) - 1), bits)


ORACLES: dict[Any, Any] = {AddParams: np.add, MultiplyParams: np.multiply, DivideParams: np.divide}


def check(params: Any, run: Any, stalls: float, **bits: np.ndarray) -> np.ndarray:
    """RTL equal to golden, which is returned; `bits` are those of the operands."""
    form = params.source if isinstance(params, ConvertParams) else params.form
    values = [form.decode(column) for column in bits.values()]
    golden: np.ndarray = params.golden(*values)
    assert_same_bits(form, run(bits, stalls), encoder(params)(golden), *bits.values())
    return golden


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
    a, b, c = (form.decode(bits[::3]) for bits in triples(form, 150, 1))
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
    a, b = np.array([-0.0, 0.0, nan, -inf, 2.0, -2.0]), np.array([0.0, -0.0, 1.0, -5.0, 1.0, 1.0])
    minima = MinimumParams(form=F24).golden(a, b)
    np.testing.assert_array_equal(minima, [0.0, 0.0, nan, -inf, 1.0, -2.0])
    assert np.signbit(minima[:2]).all()
    np.testing.assert_array_equal(AboveParams(form=F24).golden(a, b), [0.0, 0.0, nan, 0.0, 2.0, 0.0])
    shrunk = AboveParams(form=F24, magnitude=True).golden(a, b)
    np.testing.assert_array_equal(shrunk, [0.0, 0.0, nan, -inf, 2.0, -2.0])
    np.testing.assert_array_equal(LeakyParams(form=F24).golden(a, b), [-0.0, 0.0, nan, inf, 2.0, -2.0])
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


@pytest.mark.parametrize("form", [F24, *LIMITS])
@pytest.mark.parametrize(
    "kind",
    [
        DivideParams,
        MultiplyAddParams,
        CompareParams,
        MaximumParams,
        MinimumParams,
        AboveParams,
        partial(AboveParams, magnitude=True),
        LeakyParams,
    ],
)
def test_rtl_matches_golden(kind: Any, form: Float) -> None:
    params = kind(form=form)
    names, bits = "ab", operands(form, 60, 5)
    if kind is MultiplyAddParams:
        names, bits = "abc", triples(form, 60, 5)
    some = slice(None, None, 3 if form == F24 else 9)
    check(params, partial(run_unit, params), 0.3, **{n: b[some] for n, b in zip(names, bits, strict=True)})


@pytest.mark.parametrize(
    "params",
    [
        *(SquareRootParams(form=form) for form in (F24, *LIMITS)),
        *(FloatToIntParams(form=form, width=12) for form in (F24, *LIMITS)),
        ConvertParams(source=F24, target=FLOAT16),
        ConvertParams(source=FLOAT16, target=F24),
        *(ConvertParams(source=a, target=b) for a in LIMITS for b in LIMITS if a != b),
    ],
)
def test_rtl_of_one_operand_matches_golden(params: Any) -> None:
    form = params.source if isinstance(params, ConvertParams) else params.form
    target = params.target if isinstance(params, ConvertParams) else form
    directed = [
        special_bits(form),
        random_bits(form, 50, 5),
        convertible(form, target)[::2],
        halves(form)[::8],
    ]
    check(params, partial(run_unit, params), 0.3, i=np.concatenate(directed))


@pytest.mark.parametrize("form", SMALL)
def test_every_value_of_small_formats_as_others_have_it(form: Float) -> None:
    """Golden of all pairs, roots and conversions against ml_dtypes and rational arithmetic."""
    patterns = np.arange(1 << form.bits)
    a, b = pairs(patterns, patterns)
    for kind, operation in ORACLES.items():
        golden = kind(form=form).golden(form.decode(a), form.decode(b))
        assert_agrees(form, form, golden, operate(form, operation, a, b), a, b)
    values = form.decode(patterns)
    values = values[np.isfinite(values)]
    for target in SMALL + FORMS:
        converted = [round_exactly(Fraction(x), target) for x in values.tolist()]
        np.testing.assert_array_equal(ConvertParams(source=form, target=target).golden(values), converted)
    positive = values[values >= 0]
    roots = [exact_root(x, form) for x in positive.tolist()]
    np.testing.assert_array_equal(SquareRootParams(form=form).golden(positive), roots)


@pytest.mark.slow
@pytest.mark.parametrize("form", sampled(SMALL, SMALL[:1]))
@pytest.mark.parametrize("kind", PAIRS)
def test_every_pair_of_small_formats(kind: Any, form: Float) -> None:
    params, patterns = kind(form=form), np.arange(1 << form.bits)
    a, b = pairs(patterns, patterns)
    check(params, UnitSimulator(params).run, 0.1, a=a, b=b)


@pytest.mark.slow
@pytest.mark.parametrize("form", sampled(SMALL, SMALL[:1]))
def test_every_value_of_small_formats(form: Float) -> None:
    patterns = np.arange(1 << form.bits)
    singles: list[Any] = [SquareRootParams(form=form)]
    singles += [FloatToIntParams(form=form, width=width) for width in WIDTHS]
    singles += [ConvertParams(source=form, target=target) for target in SMALL + FORMS]
    for params in singles:
        check(params, UnitSimulator(params).run, 0.1, i=patterns)


COUNT = 350_000  # three times as many operands, and the special ones


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "form"),
    sampled(product(PAIRS, FORMS), [*product(PAIRS, [F24]), *zip(PAIRS, cycle(FORMS[1:]), strict=False)]),
)
def test_sweep(kind: Any, form: Float) -> None:
    """A million operands; sums, products and quotients as in the arithmetic of the type, too."""
    params = kind(form=form)
    a, b = operands(form, COUNT, 7)
    golden = check(params, UnitSimulator(params).run, 0.1, a=a, b=b)
    if kind in ORACLES:
        assert_agrees(form, form, golden, operate(form, ORACLES[kind], a, b), a, b)


@pytest.mark.slow
@pytest.mark.parametrize("form", sampled(FORMS, [F24]))
def test_sweep_of_multiply_add(form: Float) -> None:
    """A million operands, as SoftFloat has them."""
    params = MultiplyAddParams(form=form)
    a, b, c = triples(form, COUNT // 2, 7)
    golden = check(params, UnitSimulator(params).run, 0.1, a=a, b=b, c=c)
    assert_agrees(form, form, golden, multiply_add(form, a, b, c), a, b, c)


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.parametrize("form", sampled(FORMS, [F24]))
def test_sweep_of_one_operand(form: Float) -> None:
    """A million operands; roots and conversions as in the arithmetic of the type, too."""
    bits = operands(form, COUNT, 9)[0]
    params: Any = SquareRootParams(form=form)
    radicands = mostly_positive(form, bits)
    golden = check(params, UnitSimulator(params).run, 0.1, i=radicands)
    assert_agrees(form, form, golden, operate(form, np.sqrt, radicands), radicands)
    whole = np.concatenate([bits, halves(form)])
    integers = to_integers(form, whole)
    for width in (8, 32, 64):
        params = FloatToIntParams(form=form, width=width)
        golden = check(params, UnitSimulator(params).run, 0.1, i=whole)
        limit = 1 << (width - 1)
        assert_same_bits(form, golden, np.clip(integers, -limit, limit - 1), whole)
    for target in SMALL + FORMS:
        if target != form:
            params = ConvertParams(source=form, target=target)
            several = np.concatenate([bits, convertible(form, target)])
            golden = check(params, UnitSimulator(params).run, 0.1, i=several)
            expected = cast(target, read(form, several).astype(np.float32))
            assert_agrees(form, target, golden, expected, several)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "form"),
    sampled(
        [*product((8, 33, 64), FORMS), *product((8, 17), SMALL)],
        [*product((8, 33, 64), [F24]), (33, FLOAT32), (64, BFLOAT16), (17, SMALL[0])],
    ),
    ids=str,
)
def test_sweep_of_integers(width: int, form: Float) -> None:
    """A million integers of all sizes, or all there are."""
    if width <= 17:
        integers = np.arange(-(1 << (width - 1)), 1 << (width - 1))
    else:
        rng = np.random.default_rng(3)
        wide = rng.integers(-(1 << (width - 1)), 1 << (width - 1), 1_000_000)
        integers = wide >> rng.integers(0, width, len(wide))
    params = IntToFloatParams(width=width, form=form)
    golden, result = params.golden(integers), UnitSimulator(params).run({"i": integers}, 0.1)
    assert_same_bits(form, result, form.encode(golden), integers)
    assert_same_bits(form, result, form.encode(from_integers(form, integers)), integers)
