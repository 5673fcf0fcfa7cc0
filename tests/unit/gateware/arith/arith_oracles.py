"""Other implementations of what rounds once: the types of numpy and ml_dtypes, Berkeley SoftFloat.

f24 has no such type: float64 or float32 rounded by `formats.round_f24`, by its bits, where golden scales and
rounds. Where a result is rounded twice, the first time it is to odd: that never changes the second rounding.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import softfloatpy
from softfloatpy import RoundingMode

from streamgen.gateware.arith import BFLOAT16, F24, FLOAT16, FLOAT32, Float
from streamgen.numbers.formats import round_f24
from tests.unit.gateware.arith.arith_unit import assert_same_bits

TYPES: dict[Float, Any] = {
    Float(4, 3): ml_dtypes.float8_e4m3,
    Float(5, 2): ml_dtypes.float8_e5m2,
    FLOAT16: np.float16,
    BFLOAT16: ml_dtypes.bfloat16,
    F24: np.float32,  # its upper bits
    FLOAT32: np.float32,
}


def read(form: Float, bits: np.ndarray) -> np.ndarray:
    """Values of the type that has these bits."""
    if form == F24:
        form, bits = FLOAT32, bits << 8
    return bits.astype(f"u{form.bits // 8}").view(TYPES[form])


def cast(form: Float, values: np.ndarray) -> np.ndarray:
    """float64 array: float32 or float64 converted to the type by its own rules."""
    with np.errstate(all="ignore"):
        if form == F24:
            return round_f24(values).astype(np.float64)
        if values.dtype == np.float64 and form not in (FLOAT16, FLOAT32):
            values = odd_float32(values)  # ml_dtypes would round to nearest here
        return values.astype(TYPES[form]).astype(np.float64)


def odd_float32(values: np.ndarray) -> np.ndarray:
    """float64 of the range of float32, cut to its precision, the last bit set where something was cut off."""
    bits, cut = values.view(np.uint64), np.uint64((1 << 29) - 1)
    kept = bits & ~cut | np.where(bits & cut, cut + np.uint64(1), np.uint64(0))
    return kept.view(np.float64).astype(np.float32)


def operate(form: Float, operation: Callable[..., np.ndarray], *bits: np.ndarray) -> np.ndarray:
    """float64 array: an operation of numpy in the type; of f24 in float64, then rounded."""
    values = [read(form, column) for column in bits]
    with np.errstate(all="ignore"):
        if form == F24:
            return cast(F24, operation(*(v.astype(np.float64) for v in values)))
        return operation(*values).astype(np.float64)


def from_integers(form: Float, integers: np.ndarray) -> np.ndarray:
    """float64 array: int64 converted to the type, beyond 2^53 rounded to odd before."""
    large = (integers < -(1 << 53)) | (integers > 1 << 53)
    odd = (integers >> 11 | (integers & 2047 != 0)) << 11
    return cast(form, np.where(large, odd, integers).astype(np.float64))


def to_integers(form: Float, bits: np.ndarray) -> np.ndarray:
    """int64 array by SoftFloat, its limits for what is beyond; 0 for NaN."""
    values = read(form, bits).astype(np.float32)
    inside = np.abs(values) < 2.0**63
    fitting = np.where(inside, values, np.float32(0))
    found = _apply(softfloatpy.Float32.to_i64, RoundingMode.NEAR_EVEN, fitting, result=np.int64)
    limits = np.iinfo(np.int64)
    beyond = np.where(values > 0, limits.max, np.where(values < 0, limits.min, 0))
    return np.where(inside, found, beyond)


def multiply_add(form: Float, *bits: np.ndarray) -> np.ndarray:
    """float64 array: a·b + c by SoftFloat, in float32 rounded to odd where the type is another."""
    if form == FLOAT16:
        return _apply(softfloatpy.Float16.mul_add, RoundingMode.NEAR_EVEN, *(read(form, c) for c in bits))
    values = [read(form, column).astype(np.float32) for column in bits]
    operation = softfloatpy.Float32.mul_add
    if form == FLOAT32:
        return _apply(operation, RoundingMode.NEAR_EVEN, *values)
    low, high = (_apply(operation, mode, *values) for mode in (RoundingMode.MIN, RoundingMode.MAX))
    is_odd = low.astype(np.float32).view(np.uint32) & 1 == 1  # low and high are equal or neighbours
    return cast(form, np.where(is_odd, low, high).astype(np.float32))


def _apply(operation: Any, mode: RoundingMode, *values: np.ndarray, result: Any = None) -> np.ndarray:
    """An operation of SoftFloat in that rounding mode: float64 array, or integers of the type `result`."""
    dtype = values[0].dtype
    kind = softfloatpy.Float16 if dtype == np.float16 else softfloatpy.Float32
    size, words = dtype.itemsize, [v.astype(dtype.newbyteorder(">")).tobytes() for v in values]
    columns = [[kind.from_bytes(w[k : k + size]) for k in range(0, len(w), size)] for w in words]
    softfloatpy.set_rounding_mode(mode)
    try:
        found = b"".join([operation(*row).to_bytes() for row in zip(*columns, strict=True)])
    finally:
        softfloatpy.set_rounding_mode(RoundingMode.NEAR_EVEN)
    array = np.frombuffer(found, np.dtype(result or dtype).newbyteorder(">"))
    with np.errstate(invalid="ignore"):  # signalling NaN among them
        return array.astype(result or np.float64)


def assert_agrees(
    source: Float, target: Float, golden: np.ndarray, expected: np.ndarray, *bits: np.ndarray
) -> None:
    """Golden has the value, zeros of the same sign and NaN where the other implementation has them.

    Left out are subnormal operands. Results that the other has as the least normal number or below may be
    zero or that number.
    """
    mask, lowest = (1 << source.exponent_bits) - 1, (1 << source.fraction_bits) - 1
    used = np.ones(len(golden), bool)
    for column in bits:
        used &= (column >> source.fraction_bits & mask != 0) | (column & lowest == 0)
    assert used.mean() > 0.5
    golden, expected, bits = golden[used], expected[used], tuple(column[used] for column in bits)
    expected = np.where(np.isnan(expected), np.nan, expected)  # any NaN, signalling ones among them
    least = 2.0 ** (1 - target.bias)
    small = (np.abs(expected) <= least) & (expected != 0) & (target != F24)
    assert (np.abs(golden[small]) <= least).all()
    assert (np.signbit(golden[small]) == np.signbit(expected[small])).all()
    found, wanted = target.encode(golden[~small]), target.encode(expected[~small])
    assert_same_bits(target, found, wanted, *(column[~small] for column in bits))
