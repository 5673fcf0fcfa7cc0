"""Formats: bits and values agree with numpy, ml_dtypes and rational arithmetic."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from streamgen.gateware.arith import BFLOAT16, F24, FLOAT16, FLOAT32, Float
from streamgen.gateware.arith.format import round_magnitude
from streamgen.numbers import formats
from tests.unit.gateware.arith.arith_unit import random_bits, round_exactly, special_bits

ALL = [Float(3, 2), Float(4, 3), Float(5, 2), FLOAT16, BFLOAT16, F24, FLOAT32]


@pytest.mark.parametrize(
    ("form", "peer"),
    [
        (Float(4, 3), ml_dtypes.float8_e4m3),
        (Float(5, 2), ml_dtypes.float8_e5m2),
        (FLOAT16, np.float16),
        (BFLOAT16, ml_dtypes.bfloat16),
    ],
)
def test_every_pattern_as_a_peer_reads_it(form: Float, peer: type) -> None:
    bits = np.arange(1 << form.bits)
    with np.errstate(invalid="ignore"):  # signalling NaN among them
        expected = bits.astype(f"u{form.bits // 8}").view(peer).astype(np.float64)
    subnormal = np.abs(expected) < 2.0 ** (1 - form.bias)
    expected = np.where(subnormal, np.copysign(0.0, expected), expected)
    decoded = form.decode(bits)
    np.testing.assert_array_equal(decoded, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(decoded[number]), np.signbit(expected[number]))
    again = form.encode(decoded)
    np.testing.assert_array_equal(again[number & ~subnormal], bits[number & ~subnormal])
    assert set(again[~number]) == {form.nan}


@pytest.mark.parametrize("form", ALL)
def test_round_is_exact(form: Float) -> None:
    rng = np.random.default_rng(1)
    values = [float(v) for v in form.decode(np.concatenate([special_bits(form), random_bits(form, 300, 2)]))]
    finite = [v for v in values if np.isfinite(v)]
    around = [
        v * (1 + s * 2.0**-form.precision) for v in finite for s in (-1, -0.5, 0.5, 1)
    ]  # ties among them
    limits = [2.0 ** (1 - form.bias), 2.0 ** (form.bias + 1)]
    around += [limit * (1 - k * 2.0 ** -(form.precision + 2)) for limit in limits for k in range(6)]
    around += list(rng.normal(size=200) * np.exp2(rng.integers(-form.bias - 3, form.bias + 3, 200)))
    expected = [round_exactly(Fraction(v), form) for v in around]
    np.testing.assert_array_equal(form.round(np.array(around)), expected)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(form.round(special), special)
    assert list(np.signbit(form.round(special)[:4])) == [False, True, False, True]


def test_f24_is_the_format_of_the_streams() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=20_000) * np.exp2(rng.integers(-140, 131, 20_000))
    np.testing.assert_array_equal(F24.round(values), formats.round_f24(values))
    assert F24.bits == 24
    assert F24.nan == 0x7FC000


@pytest.mark.parametrize("precision", [3, 8, 16, 24])
def test_round_magnitude_is_exact(precision: int) -> None:
    rng = np.random.default_rng(precision)
    values = [
        int(v) >> int(s) for v, s in zip(rng.integers(0, 2**63, 500), rng.integers(0, 63, 500), strict=True)
    ]
    values += [0, 1, 2**64 - 1, 2**63, 2**63 - 1, (2**precision - 1) << 20, (2 ** (precision + 1) - 1) << 9]
    values += [(2 ** (precision + 1) - 1 << 9) - 1, (2 ** (precision + 1) - 3) << 9]
    significand, exponent = round_magnitude(np.array(values, np.uint64), precision)
    for value, s, e in zip(values, significand.tolist(), exponent.tolist(), strict=True):
        if value == 0:
            assert s == 0
            continue
        unit = Fraction(2) ** (value.bit_length() - precision)
        assert s * Fraction(2) ** e == round(value / unit) * unit
        assert s.bit_length() == precision


def test_layout_is_sign_exponent_fraction() -> None:
    layout = F24.layout
    assert {name: (field.offset, field.width) for name, field in layout} == {
        "fraction": (0, 15),
        "exponent": (15, 8),
        "sign": (23, 1),
    }


def test_bad_formats() -> None:
    for args, message in [
        ((2, 3), "exponent_bits is 2; 3 to 8 are allowed"),
        ((9, 3), "exponent_bits is 9; 3 to 8 are allowed"),
        ((8, 1), "fraction_bits is 1; 2 to 23 are allowed"),
        ((8, 24), "fraction_bits is 24; 2 to 23 are allowed"),
    ]:
        with pytest.raises(ValueError) as raised:
            Float(*args)
        assert str(raised.value) == message
