"""Binary floating-point formats, as numpy values and as bits.

`Float(exponent_bits, fraction_bits)` has a sign, a biased exponent and a fraction, infinities and one
NaN, all as in IEEE 754, with two simplifications that every unit of `streamgen.gateware.arith` shares:

* No subnormals: as an input they count as zero of their sign, a result below the least normal number
  after rounding becomes zero of its sign.
* NaN is always the canonical one: sign 0, exponent all ones, the top fraction bit alone (0x7FC000 in f24).

Values are numpy float64 (every format here fits exactly), bits are int64. Rounding is to nearest, ties
to even, done once and as if the exponent had no limits; the limits are applied to the rounded value.
"""

from dataclasses import dataclass

import numpy as np
from amaranth import unsigned
from amaranth.lib import data
from numpy import ndarray

# float64
_FRACTION_BITS = 52
_BIAS = 1023
_MAGNITUDE = (1 << 63) - 1
_INFINITY = 2047 << _FRACTION_BITS


@dataclass(frozen=True)
class Float:
    """A format; `precision` counts the significand with its hidden bit, `nan` is a bit pattern.

    Raises ValueError unless 3 <= exponent_bits <= 8 and 2 <= fraction_bits <= 23: within these limits
    a sum and a product rounded to float64 and then to the format are correctly rounded.
    """

    exponent_bits: int
    fraction_bits: int

    def __post_init__(self) -> None:
        if not 3 <= self.exponent_bits <= 8:
            raise ValueError(f"exponent_bits is {self.exponent_bits}; 3 to 8 are allowed")
        if not 2 <= self.fraction_bits <= 23:
            raise ValueError(f"fraction_bits is {self.fraction_bits}; 2 to 23 are allowed")

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def precision(self) -> int:
        return self.fraction_bits + 1

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def nan(self) -> int:
        return (((1 << self.exponent_bits) - 1) << self.fraction_bits) | (1 << (self.fraction_bits - 1))

    @property
    def layout(self) -> data.StructLayout:
        """The bits of a value as an amaranth layout, the fraction lowest."""
        return data.StructLayout(
            {
                "fraction": unsigned(self.fraction_bits),
                "exponent": unsigned(self.exponent_bits),
                "sign": unsigned(1),
            }
        )

    def round(self, values: ndarray) -> ndarray:
        """float64 array: the nearest values of the format."""
        values = np.asarray(values, np.float64)
        return self._limit(round_significand(values, self.precision))

    def compose(self, negative: ndarray, significand: ndarray, exponent: ndarray) -> ndarray:
        """float64 array of ±significand·2^exponent within the limits of the format.

        `significand` are integers of at most `precision` bits, `exponent` any int64.
        """
        bounded = np.clip(exponent, -2 * self.bias - 64, 2 * self.bias + 64).astype(np.int32)
        magnitude = np.ldexp(np.asarray(significand, np.float64), bounded)
        return self._limit(np.where(negative, -magnitude, magnitude))

    def decompose(self, values: ndarray) -> tuple[ndarray, ndarray]:
        """|values| as (significand, exponent): |v| = significand·2^exponent with a significand of
        exactly `precision` bits, or 0 for zeros, infinities and NaN. Values must be of the format.
        """
        word = np.array(values, np.float64, ndmin=1).view(np.int64) & _MAGNITUDE
        fraction = (word >> (_FRACTION_BITS - self.fraction_bits)) & ((1 << self.fraction_bits) - 1)
        ordinary = (word != 0) & (word < _INFINITY)
        significand = np.where(ordinary, fraction | 1 << self.fraction_bits, 0)
        exponent = np.where(ordinary, (word >> _FRACTION_BITS) - _BIAS + 1, 0) - self.precision
        return significand.reshape(np.shape(values)), exponent.reshape(np.shape(values))

    def encode(self, values: ndarray) -> ndarray:
        """int64 array: the bits of the nearest values of the format."""
        rounded = self.round(values)
        significand, exponent = self.decompose(rounded)
        biased = np.where(significand != 0, exponent + self.fraction_bits + self.bias, 0)
        biased = np.where(np.isinf(rounded), (1 << self.exponent_bits) - 1, biased)
        fraction = significand & ((1 << self.fraction_bits) - 1)
        sign = np.signbit(rounded).astype(np.int64) << (self.bits - 1)
        return np.where(np.isnan(rounded), self.nan, sign | biased << self.fraction_bits | fraction)

    def decode(self, bits: ndarray) -> ndarray:
        """float64 array: the values of bit patterns, subnormals as zeros."""
        bits = np.asarray(bits, np.int64)
        fraction = bits & ((1 << self.fraction_bits) - 1)
        biased = (bits >> self.fraction_bits) & ((1 << self.exponent_bits) - 1)
        exponent = (biased - self.bias - self.fraction_bits).astype(np.int32)
        magnitude = np.ldexp((fraction + (1 << self.fraction_bits)).astype(np.float64), exponent)
        special = np.where(fraction == 0, np.inf, np.nan)
        magnitude = np.where(biased == 0, 0.0, magnitude)
        magnitude = np.where(biased == (1 << self.exponent_bits) - 1, special, magnitude)
        return np.where((bits >> (self.bits - 1)) & 1, -magnitude, magnitude)

    def _limit(self, rounded: ndarray) -> ndarray:
        """`rounded`, which is changed, within the limits of the format."""
        magnitude = np.abs(rounded)
        small = magnitude < 2.0 ** (1 - self.bias)
        if small.any():
            rounded *= ~small  # keeps the sign
        if not magnitude.max(initial=0.0) < 2.0 ** (self.bias + 1):
            rounded = np.where(np.isnan(rounded), np.nan, rounded)
            beyond = magnitude >= 2.0 ** (self.bias + 1)
            rounded = np.where(beyond, np.copysign(np.inf, rounded), rounded)
        return rounded


F24 = Float(8, 15)
BFLOAT16 = Float(8, 7)
FLOAT16 = Float(5, 10)
FLOAT32 = Float(8, 23)


def round_magnitude(magnitude: ndarray, precision: int) -> tuple[ndarray, ndarray]:
    """Round integers 0 … 2^64-1 (uint64 array) to `precision` significant bits, ties to even.

    Returns (significand, exponent), int64: the rounded value is significand·2^exponent, the significand
    has exactly `precision` bits, or is 0. Integers only, hence exact.
    """
    magnitude = np.asarray(magnitude, np.uint64)
    if magnitude.max(initial=0) < 1 << _FRACTION_BITS:  # float64 holds it, and rounds the same way
        rounded = round_significand(magnitude.astype(np.float64), precision)
        word = np.atleast_1d(rounded).view(np.int64).reshape(rounded.shape)
        low = _FRACTION_BITS - precision + 1
        fraction = (word & ((1 << _FRACTION_BITS) - 1)) >> low
        exponent = np.maximum(word >> _FRACTION_BITS, _BIAS) - (_BIAS + precision - 1)
        return np.where(word != 0, fraction | 1 << (precision - 1), 0), exponent
    normal = np.array(magnitude, np.uint64)
    exponent = np.full(normal.shape, 64 - precision, np.int64)
    for step in (32, 16, 8, 4, 2, 1):
        small = normal >> np.uint64(64 - step) == 0
        normal = np.where(small, normal << np.uint64(step), normal)
        exponent -= np.where(small, step, 0)
    kept = (normal >> np.uint64(64 - precision)).astype(np.int64)
    rest = normal << np.uint64(precision)
    half = np.uint64(1 << 63)
    kept += (rest > half) | ((rest == half) & (kept & 1 == 1))
    carried = kept >> precision
    return kept >> carried, exponent + carried


def round_significand(values: ndarray, precision: int) -> ndarray:
    """float64 array, a copy: rounded to `precision` significant bits, ties to even, exponents as in float64.

    NaN stays NaN, values that float64 holds as subnormals may come out anywhere among these.
    """
    word = np.atleast_1d(values).view(np.int64)
    dropped = _FRACTION_BITS + 1 - precision
    rounded = word >> dropped
    rounded &= 1
    rounded += (1 << (dropped - 1)) - 1
    rounded += word
    rounded &= -1 << dropped
    result = rounded.view(np.float64).reshape(values.shape)
    if not np.isfinite(values).all():
        np.copyto(result, values, where=~np.isfinite(values))
    return result
