"""Number formats: their names, their widths, and the bits of a token.

    i<N> u<N>   two's complement and unsigned integers of 1 to 64 bits
    f32 f16     IEEE binary32 and binary16
    bf16        the upper half of a binary32
    f24         the upper 24 bits of a binary32: sign, 8 bits of exponent, 15 of fraction; no subnormals
    mxi8        groups of 32 along the last dimension: 32 codes of 8 bits, then 5 bits of shift d, 2 of step
                s and a zero; the value is code * f * 2**(E - d), f = 5 + s, with one exponent E per row on
                another stream
    mxi8s       the same, followed by the sum of the 32 codes in 16 bits

In a token, element e (row-major) is at bit e * bits(dtype), and groups likewise, lowest bits first. In numpy,
integers have the smallest integer type that holds them, bf16 and f24 are float32 with values of the format,
and the mx formats are arrays of `MX`, with shift and step per element (32 equal ones).
"""

import re
from collections.abc import Sequence
from functools import cache
from math import prod

import numpy as np

MX = np.dtype([("code", "i1"), ("shift", "u1"), ("step", "u1")])
MX_GROUP = 32
MX_MAX_SHIFT = 16
MX_LEAST_FACTOR, MX_MAX_FACTOR = 5, 8  # f
_MX_SHIFT_BITS = 5
E_NOT_FINITE = 2**15 - 1  # the exponent of a row that holds NaN or an infinity

_FLOATS = {
    "f32": (32, np.float32),
    "f16": (16, np.float16),
    "bf16": (16, np.float32),
    "f24": (24, np.float32),
}
_MX_GROUP_BITS = {"mxi8": 264, "mxi8s": 280}
_INTEGER = re.compile(r"([iu])([1-9][0-9]?)")


def _integer(dtype: str) -> tuple[bool, int] | None:
    """(signed, width) of an integer format; None for other formats."""
    if not isinstance(dtype, str):
        raise TypeError(f"dtype must be a str, not {dtype!r}")
    return _parsed(dtype)


@cache
def _parsed(dtype: str) -> tuple[bool, int] | None:
    if (match := _INTEGER.fullmatch(dtype)) and int(match[2]) <= 64:
        return match[1] == "i", int(match[2])
    if dtype in _FLOATS or dtype in _MX_GROUP_BITS:
        return None
    raise ValueError(
        f"dtype {dtype!r} is unknown; it must be i<N> or u<N> with N in 1..64, "
        f"or one of {', '.join((*_FLOATS, *_MX_GROUP_BITS))}"
    )


def is_mx(dtype: str) -> bool:
    """Whether elements share a shift in groups of `MX_GROUP`."""
    return _integer(dtype) is None and dtype in _MX_GROUP_BITS


def bits(dtype: str) -> int:
    """The width of an element; ValueError for the mx formats, which only have a width per group."""
    if (integer := _integer(dtype)) is not None:
        return integer[1]
    if dtype in _FLOATS:
        return _FLOATS[dtype][0]
    raise ValueError(f"an element of {dtype} has no width of its own; use token_bits")


def token_bits(dtype: str, shape: Sequence[int]) -> int:
    """The width of a token of the given shape.

    Raises ValueError for an mx format whose last extent is not a multiple of 32.
    """
    if not is_mx(dtype):
        return prod(shape) * bits(dtype)
    if not shape or shape[-1] % MX_GROUP:
        raise ValueError(
            f"the last extent of a {dtype} tile must be a multiple of {MX_GROUP}; shape {tuple(shape)}"
        )
    return prod(shape) // MX_GROUP * _MX_GROUP_BITS[dtype]


def numpy_dtype(dtype: str) -> np.dtype:
    """The numpy type that holds elements of this format."""
    if (integer := _integer(dtype)) is not None:
        signed, width = integer
        return np.dtype(f"{'i' if signed else 'u'}{next(size for size in (1, 2, 4, 8) if 8 * size >= width)}")
    return np.dtype(_FLOATS[dtype][1]) if dtype in _FLOATS else MX


def round_f24(values: np.ndarray) -> np.ndarray:
    """Round to f24, to nearest even; the result is float32.

    There is one rounding, from float64, with an unbounded exponent. Then values below 2**-126 become zero of
    the same sign, values of 2**128 and above become infinite, and NaN becomes the canonical NaN. The result
    of a view of one number is also a view of one number.
    """
    if isinstance(values, np.ndarray) and values.size > 1 and not any(values.strides):
        return np.broadcast_to(round_f24(values.flat[0]), values.shape)
    wide = np.array(values, np.float64)
    word = np.atleast_1d(wide).view(np.uint64).reshape(wide.shape)
    dropped = np.uint64(52 - 15)
    half = (np.uint64(1) << (dropped - np.uint64(1))) - np.uint64(1)
    finite = np.isfinite(wide)
    word = np.where(finite, word + half + ((word >> dropped) & np.uint64(1)), word)
    word = word >> dropped << dropped
    rounded = np.atleast_1d(word).view(np.float64).reshape(wide.shape)
    rounded = np.where(np.abs(rounded) < 2.0**-126, np.copysign(0.0, rounded), rounded)
    rounded = np.where(finite & (np.abs(rounded) >= 2.0**128), np.copysign(np.inf, rounded), rounded)
    return np.where(np.isnan(wide), np.float32(np.nan), rounded.astype(np.float32))


def encode(dtype: str, tokens: np.ndarray) -> np.ndarray:
    """Bits of tokens: (count, *element_shape) -> uint8 (count, ceil(token bits / 8)), lowest byte first.

    Raises ValueError for a value that the format cannot hold (nothing is rounded or wrapped), and TypeError
    for an array of another kind (floats for an integer format).
    """
    tokens = np.asarray(tokens)
    if tokens.ndim < 1:
        raise ValueError("tokens must have the shape (count, *element_shape), not ()")
    count, elements = len(tokens), prod(tokens.shape[1:])
    token_bits(dtype, tokens.shape[1:])
    if is_mx(dtype):
        return _encode_mx(dtype, tokens)
    words = _integer_words(dtype, tokens) if _integer(dtype) else _float_words(dtype, tokens)
    words = np.ascontiguousarray(words).reshape(count, elements)
    return _pack(words, bits(dtype))


def decode(dtype: str, packed: np.ndarray, element_shape: Sequence[int]) -> np.ndarray:
    """Tokens (count, *element_shape) from the bytes of `encode`; bits beyond the token are ignored.

    Raises ValueError if the bytes do not have the width of the token, or a group sum is wrong.
    """
    packed = np.asarray(packed)
    width = -(-token_bits(dtype, element_shape) // 8)
    if packed.dtype != np.uint8 or packed.ndim != 2 or packed.shape[1] != width:
        raise ValueError(
            f"tokens of {dtype} {tuple(element_shape)} are uint8 of shape (count, {width}), "
            f"not {packed.dtype} of shape {packed.shape}"
        )
    shape = (len(packed), *element_shape)
    if is_mx(dtype):
        return _decode_mx(dtype, packed, shape)
    words = _unpack(packed, bits(dtype), prod(element_shape))
    if integer := _integer(dtype):
        spare = 8 * words.dtype.itemsize - integer[1]
        words = words.view(f"{'i' if integer[0] else 'u'}{words.dtype.itemsize}")
        return ((words << spare) >> spare if spare else words).reshape(shape)
    if dtype in ("bf16", "f24"):
        words = words.astype(np.uint32) << np.uint32(32 - bits(dtype))
    return words.view(numpy_dtype(dtype)).reshape(shape)


def encode_ints(dtype: str, tokens: np.ndarray) -> list[int]:
    """The tokens as Python integers, as a test bench sends them on a stream."""
    return [int.from_bytes(token.tobytes(), "little") for token in encode(dtype, tokens)]


def decode_ints(dtype: str, ints: Sequence[int], element_shape: Sequence[int]) -> np.ndarray:
    """Inverse of `encode_ints`; ValueError for an integer that is wider than the token."""
    width = token_bits(dtype, element_shape)
    for value in ints:
        if not 0 <= value < 1 << width:
            raise ValueError(
                f"a token of {dtype} {tuple(element_shape)} has {width} bits; {value} does not fit"
            )
    size = -(-width // 8)
    packed = np.frombuffer(b"".join(int(value).to_bytes(size, "little") for value in ints), np.uint8)
    return decode(dtype, packed.reshape(len(ints), size), element_shape)


def _integer_words(dtype: str, tokens: np.ndarray) -> np.ndarray:
    """Unsigned words of the numpy width whose low bits are the integers."""
    signed, width = _integer(dtype) or (False, 0)
    if tokens.dtype.kind not in "iub":
        raise TypeError(f"tokens of {dtype} must be integers, not {tokens.dtype}")
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if signed else (0, (1 << width) - 1)
    if tokens.size:
        for value in (int(tokens.min()), int(tokens.max())):
            if not low <= value <= high:
                raise ValueError(f"{value} is not a {dtype}; it must lie in {low}..{high}")
    holder = numpy_dtype(dtype)
    return tokens.astype(holder, copy=False).view(f"u{holder.itemsize}") if tokens.ndim else tokens


def _float_words(dtype: str, tokens: np.ndarray) -> np.ndarray:
    """Unsigned words whose low bits are the floats; every NaN becomes the canonical NaN."""
    if tokens.dtype.kind not in "fiub":
        raise TypeError(f"tokens of {dtype} must be real numbers, not {tokens.dtype}")
    with np.errstate(over="ignore"):
        held = tokens.astype(numpy_dtype(dtype))
    nan = np.isnan(held)
    held = np.where(nan, held.dtype.type(np.nan), held)
    words = held.view(f"u{held.dtype.itemsize}")
    exact = (held == tokens) | nan
    if dtype in ("bf16", "f24"):
        spare = np.uint32(32 - bits(dtype))
        exact &= (words >> spare << spare) == words
        words = words >> spare
    if dtype == "f24":
        exact &= (held == 0) | ~(np.abs(held) < np.float32(2.0**-126))
    if not exact.all():
        value = tokens[~exact].flat[0]
        hint = "; round it with round_f24" if dtype == "f24" else ""
        raise ValueError(f"{value!r} is not a number of {dtype}{hint}")
    return words


def _pack(words: np.ndarray, width: int) -> np.ndarray:
    """(count, elements) words -> bytes (count, ceil(elements * width / 8))."""
    count, elements = words.shape
    octets = words.astype(words.dtype.newbyteorder("<"), copy=False).view(np.uint8)
    octets = octets.reshape(count, elements, words.dtype.itemsize)
    if width % 8 == 0:
        return np.ascontiguousarray(octets[:, :, : width // 8]).reshape(count, elements * width // 8)
    if width == 4 and elements % 2 == 0:
        nibbles = octets[:, :, 0] & 15
        return nibbles[:, 0::2] | nibbles[:, 1::2] << 4
    flat = np.unpackbits(octets, axis=2, bitorder="little")[:, :, :width]
    return np.packbits(flat.reshape(count, elements * width), axis=1, bitorder="little")


def _unpack(packed: np.ndarray, width: int, elements: int) -> np.ndarray:
    """Inverse of `_pack`: unsigned words of the smallest size that holds the width."""
    count = len(packed)
    size = next(size for size in (1, 2, 4, 8) if 8 * size >= width)
    octets = np.zeros((count, elements, size), np.uint8)
    if width % 8 == 0:
        octets[:, :, : width // 8] = packed.reshape(count, elements, width // 8)
    elif width == 4 and elements % 2 == 0:
        octets[:, 0::2, 0] = packed & 15
        octets[:, 1::2, 0] = packed >> 4
    else:
        flat = np.unpackbits(packed, axis=1, bitorder="little")[:, : elements * width]
        part = np.packbits(flat.reshape(count, elements, width), axis=2, bitorder="little")
        octets[:, :, : part.shape[2]] = part
    return octets.view(f"<u{size}")[:, :, 0].astype(f"u{size}", copy=False)


def _encode_mx(dtype: str, tokens: np.ndarray) -> np.ndarray:
    if tokens.dtype != MX:
        raise TypeError(f"tokens of {dtype} must be formats.MX, not {tokens.dtype}")
    groups = tokens.reshape(len(tokens), prod(tokens.shape[1:]) // MX_GROUP, MX_GROUP)
    code, shift, step = groups["code"], groups["shift"][:, :, :1], groups["step"][:, :, :1]
    for name, most in (("shift", MX_MAX_SHIFT), ("step", MX_MAX_FACTOR - MX_LEAST_FACTOR)):
        field = groups[name]
        if (field != field[:, :, :1]).any():
            raise ValueError(f"the {MX_GROUP} {name}s of a group of {dtype} must be equal")
        if (field > most).any():
            raise ValueError(f"{int(field.max())} is not a {name} of {dtype}; it must lie in 0..{most}")
    if (code == -128).any():
        raise ValueError(f"-128 is not a code of {dtype}; it must lie in -127..127")
    parts = [code.view(np.uint8), shift | step << _MX_SHIFT_BITS]
    if dtype == "mxi8s":
        total = code.sum(axis=2, dtype=np.int16, keepdims=True).astype("<i2")
        parts.append(total.view(np.uint8))
    packed = np.concatenate(parts, axis=2)
    return packed.reshape(len(tokens), packed.shape[1] * packed.shape[2])


def _decode_mx(dtype: str, packed: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    groups = packed.reshape(len(packed), prod(shape[1:]) // MX_GROUP, _MX_GROUP_BITS[dtype] // 8)
    result = np.zeros((*groups.shape[:2], MX_GROUP), MX)
    result["code"] = groups[:, :, :MX_GROUP].view(np.int8)
    result["shift"] = groups[:, :, MX_GROUP, None] & (1 << _MX_SHIFT_BITS) - 1
    result["step"] = groups[:, :, MX_GROUP, None] >> _MX_SHIFT_BITS
    if dtype == "mxi8s":
        total = np.ascontiguousarray(groups[:, :, MX_GROUP + 1 :]).view("<i2")[:, :, 0]
        wrong = np.argwhere(total != result["code"].sum(axis=2, dtype=np.int16))
        if len(wrong):
            token, group = wrong[0]
            raise ValueError(
                f"group {group} of token {token} says that its codes sum to {total[token, group]}; "
                f"they sum to {result['code'][token, group].sum(dtype=np.int16)}"
            )
    return result.reshape(shape)
