"""formats against Python integers, exact fractions and ml_dtypes."""

from fractions import Fraction
from time import perf_counter

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgen.numbers import formats

INTEGERS = [f"{kind}{width}" for kind in "iu" for width in range(1, 65)]
check = settings(max_examples=100, deadline=None, derandomize=True, database=None)


def limits(dtype):
    width = int(dtype[1:])
    return (-(1 << width - 1), (1 << width - 1) - 1) if dtype[0] == "i" else (0, (1 << width) - 1)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype):
    low, high = limits(dtype)
    width = formats.bits(dtype)
    holder = formats.numpy_dtype(dtype)
    assert holder.itemsize == next(size for size in (1, 2, 4, 8) if 8 * size >= width)
    rng = np.random.default_rng(width)
    for shape in ((), (1,), (3,), (2, 4)):
        tokens = rng.integers(low, high, (5, *shape), holder, endpoint=True)
        tokens.reshape(-1)[:2] = low, high
        ints = [
            sum((int(value) & (1 << width) - 1) << e * width for e, value in enumerate(token.reshape(-1)))
            for token in tokens
        ]
        packed = formats.encode(dtype, tokens)
        assert packed.dtype == np.uint8
        assert packed.shape == (5, -(-formats.token_bits(dtype, shape) // 8))
        assert [int.from_bytes(token.tobytes(), "little") for token in packed] == ints
        assert formats.encode_ints(dtype, tokens) == ints
        for decoded in (formats.decode(dtype, packed, shape), formats.decode_ints(dtype, ints, shape)):
            assert decoded.dtype == holder
            assert (decoded == tokens).all()
            assert decoded.shape == tokens.shape


@pytest.mark.parametrize("dtype", ["i1", "i4", "u4", "i8", "u13", "i32", "i63", "u63"])
def test_integers_out_of_range(dtype):
    low, high = limits(dtype)
    for value in (low - 1, high + 1):
        with pytest.raises(ValueError) as error:
            formats.encode(dtype, np.array([[0, value]], np.int64 if value < 1 << 63 else np.uint64))
        assert str(error.value) == f"{value} is not a {dtype}; it must lie in {low}..{high}"


def nearest_f24(value):
    """Round to 16 significant bits, to nearest even, with an exponent without bounds; then the bounds."""
    if value == 0 or not np.isfinite(value):
        return value
    exact = abs(Fraction(value))
    exponent = 0
    while exact >= 2 << exponent:
        exponent += 1
    while exact < Fraction(2) ** exponent:
        exponent -= 1
    ulp = Fraction(2) ** (exponent - 15)
    rounded = round(exact / ulp) * ulp  # Python rounds halves to even
    if rounded < Fraction(2) ** -126:
        return np.copysign(0.0, value)
    return np.copysign(np.inf if rounded >= Fraction(2) ** 128 else float(rounded), value)


HARD = [
    0.0, -0.0, np.inf, -np.inf, np.nan, 1 + 2.0**-16, 1 + 3 * 2.0**-16, 1 + 2.0**-16 + 2.0**-52,
    2.0**-126, 2.0**-126 * (1 - 2.0**-17), 2.0**-126 * (1 - 2.0**-16), 2.0**-127, 5e-324, -1e-40,
    (2 - 2.0**-15) * 2.0**127, (2 - 2.0**-16) * 2.0**127, (2 - 2.0**-16 - 2.0**-50) * 2.0**127,
    1e300, -3.5e38,
]  # fmt: skip


@check
@given(st.one_of(st.sampled_from(HARD), st.floats(), st.floats(-1e5, 1e5), st.floats(width=32)))
def test_round_f24(value):
    rounded = formats.round_f24(np.array([value]))
    assert rounded.dtype == np.float32
    expected = np.float32(nearest_f24(value))
    assert np.array_equal(rounded[0], expected, equal_nan=True)
    assert np.isnan(value) or np.signbit(rounded[0]) == np.signbit(expected)
    (bits,) = formats.encode_ints("f24", rounded[:, None])
    assert bits == int(rounded.view(np.uint32)[0]) >> 8
    assert np.array_equal(formats.decode_ints("f24", [bits], (1,))[0], rounded, equal_nan=True)


def test_round_f24_shapes():
    assert formats.round_f24(1.0).shape == ()
    assert formats.round_f24(np.zeros((2, 0, 3))).shape == (2, 0, 3)
    assert formats.round_f24([[1, 2]]).tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    ("dtype", "nan"), [("f32", 0x7FC00000), ("f16", 0x7E00), ("bf16", 0x7FC0), ("f24", 0x7FC000)]
)
def test_nan_is_canonical(dtype, nan):
    strange = np.array([[0x7F800001, 0xFFFFFFFF, 0x7FC00000]], np.uint32).view(np.float32)
    width = formats.bits(dtype)
    assert formats.encode_ints(dtype, strange) == [nan | nan << width | nan << 2 * width]


@pytest.mark.parametrize(
    ("dtype", "holder"),
    [("f32", np.float32), ("f16", np.float16), ("bf16", ml_dtypes.bfloat16)],
)
def test_floats(dtype, holder):
    rng = np.random.default_rng(0)
    width = formats.bits(dtype)
    words = rng.integers(0, 1 << width, (20, 3), np.uint64).astype(f"u{width // 8}")
    tokens = words.view(holder)
    tokens[0] = [np.inf, -np.inf, -0.0]
    tokens[np.isnan(tokens)] = 1
    wide = tokens.astype(formats.numpy_dtype(dtype))
    packed = formats.encode(dtype, wide)
    assert packed.tobytes() == tokens.tobytes()
    assert formats.decode(dtype, packed, (3,)).tobytes() == wide.tobytes()
    assert formats.encode(dtype, wide.astype(np.float64)).tobytes() == tokens.tobytes()


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        ("f24", 0.1, "np.float64(0.1) is not a number of f24; round it with round_f24"),
        ("f24", np.float32(1e-40), "np.float32(1e-40) is not a number of f24; round it with round_f24"),
        ("bf16", 1.001, "np.float64(1.001) is not a number of bf16"),
        ("f32", 0.1, "np.float64(0.1) is not a number of f32"),
        ("f16", 1e6, "np.float64(1000000.0) is not a number of f16"),
        ("f32", 2**24 + 1, "np.int64(16777217) is not a number of f32"),
    ],
)
def test_nothing_is_rounded(dtype, value, message):
    with pytest.raises(ValueError) as error:
        formats.encode(dtype, np.array([[1, value]]).astype(np.array(value).dtype))
    assert str(error.value) == message


def mx(rng, *shape):
    tokens = np.zeros(shape, formats.MX)
    tokens["code"] = rng.integers(-127, 128, shape)
    for field, most in (("shift", 16), ("step", 3)):
        tokens[field] = np.repeat(rng.integers(0, most + 1, (*shape[:-1], shape[-1] // 32)), 32, axis=-1)
    return tokens


@pytest.mark.parametrize("dtype", ["mxi8", "mxi8s"])
@pytest.mark.parametrize("shape", [(32,), (1, 64), (4, 32), (2, 3, 96)])
def test_mx(dtype, shape):
    tokens = mx(np.random.default_rng(1), 5, *shape)
    expected = []
    for token in tokens:
        value, at = 0, 0
        for group in token.reshape(-1, 32):
            for code in group["code"]:
                value |= (int(code) & 255) << at
                at += 8
            value |= (int(group["shift"][0]) | int(group["step"][0]) << 5) << at
            at += 8
            if dtype == "mxi8s":
                value |= (sum(map(int, group["code"])) & 0xFFFF) << at
                at += 16
        assert at == formats.token_bits(dtype, shape)
        expected.append(value)
    assert formats.encode_ints(dtype, tokens) == expected
    assert (formats.decode_ints(dtype, expected, shape) == tokens).all()


def test_mx_errors():
    tokens = mx(np.random.default_rng(2), 2, 1, 64)
    ints = formats.encode_ints("mxi8s", tokens)
    total = int(tokens["code"][1, 0, 32:].sum(dtype=int))
    with pytest.raises(ValueError) as error:
        formats.decode_ints("mxi8s", [ints[0], ints[1] ^ 1 << 280], (1, 64))
    changed = total + (-1 if ints[1] >> 280 & 1 else 1)
    assert str(error.value) == f"group 1 of token 1 says that its codes sum to {total}; they sum to {changed}"
    for field, value, message in (
        ("code", -128, "-128 is not a code of mxi8; it must lie in -127..127"),
        ("shift", 17, "the 32 shifts of a group of mxi8 must be equal"),
        ("step", 4, "the 32 steps of a group of mxi8 must be equal"),
    ):
        wrong = tokens.copy()
        wrong[field][0, 0, 3] = value
        with pytest.raises(ValueError) as error:
            formats.encode("mxi8", wrong)
        assert str(error.value) == message
    tokens["shift"][0, 0, :32] = 17
    with pytest.raises(ValueError) as error:
        formats.encode("mxi8", tokens)
    assert str(error.value) == "17 is not a shift of mxi8; it must lie in 0..16"
    tokens["shift"], tokens["step"] = 16, 4
    with pytest.raises(ValueError) as error:
        formats.encode("mxi8", tokens)
    assert str(error.value) == "4 is not a step of mxi8; it must lie in 0..3"
    for shape in ((33,), (64, 1), ()):
        with pytest.raises(ValueError) as error:
            formats.token_bits("mxi8", shape)
        assert str(error.value) == f"the last extent of a mxi8 tile must be a multiple of 32; shape {shape}"
    with pytest.raises(ValueError) as error:
        formats.bits("mxi8")
    assert str(error.value) == "an element of mxi8 has no width of its own; use token_bits"


@pytest.mark.parametrize("dtype", ["", "i0", "i65", "u", "i08", "f8", "I8", "i8 ", "mxi4", "float32"])
def test_unknown(dtype):
    for call in (formats.bits, formats.numpy_dtype, formats.is_mx):
        with pytest.raises(ValueError) as error:
            call(dtype)
        assert str(error.value) == (
            f"dtype {dtype!r} is unknown; it must be i<N> or u<N> with N in 1..64, "
            "or one of f32, f16, bf16, f24, mxi8, mxi8s"
        )
    with pytest.raises(TypeError, match=r"^dtype must be a str, not dtype\('int8'\)$"):
        formats.bits(np.dtype("i1"))


@pytest.mark.parametrize(
    ("dtype", "tokens", "message"),
    [
        ("i8", np.zeros((1, 2)), "tokens of i8 must be integers, not float64"),
        ("f24", np.zeros((1, 2), complex), "tokens of f24 must be real numbers, not complex128"),
        ("mxi8", np.zeros((1, 32)), "tokens of mxi8 must be formats.MX, not float64"),
    ],
)
def test_wrong_kind(dtype, tokens, message):
    with pytest.raises(TypeError) as error:
        formats.encode(dtype, tokens)
    assert str(error.value) == message


def test_wrong_width():
    with pytest.raises(ValueError) as error:
        formats.decode("i4", np.zeros((2, 3), np.uint8), (2, 2))
    assert str(error.value) == "tokens of i4 (2, 2) are uint8 of shape (count, 2), not uint8 of shape (2, 3)"
    for value in (-1, 1 << 16):
        with pytest.raises(ValueError) as error:
            formats.decode_ints("i4", [0, value], (2, 2))
        assert str(error.value) == f"a token of i4 (2, 2) has 16 bits; {value} does not fit"
    with pytest.raises(ValueError) as error:
        formats.encode("i4", np.array(3))
    assert str(error.value) == "tokens must have the shape (count, *element_shape), not ()"


@pytest.mark.parametrize("dtype", ["i3", "i4", "u8", "f24", "f32", "mxi8", "mxi8s"])
def test_no_tokens(dtype):
    tokens = np.zeros((0, 2, 32), formats.numpy_dtype(dtype))
    packed = formats.encode(dtype, tokens)
    assert packed.shape == (0, -(-formats.token_bits(dtype, (2, 32)) // 8))
    assert formats.decode(dtype, packed, (2, 32)).shape == (0, 2, 32)
    assert formats.encode_ints(dtype, tokens) == []
    assert formats.decode_ints(dtype, [], (2, 32)).shape == (0, 2, 32)


@pytest.mark.parametrize("dtype", ["i4", "i8", "i16", "f24", "f32"])
def test_megabytes(dtype):
    tokens = np.ones((2**16, 32), formats.numpy_dtype(dtype))
    start = perf_counter()
    packed = formats.encode(dtype, tokens)
    assert (formats.decode(dtype, packed, (32,)) == tokens).all()
    assert perf_counter() - start < 2
