"""packing against a loop over bits."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from streamgen.artifact.packing import BEAT_BITS, BEAT_BYTES, MemoryLayout
from streamgen.itensor import ITensor
from streamgen.numbers import formats

INTEGERS = ("i1", "u1", "u3", "i4", "i5", "i8", "i12", "u12", "i16", "i24", "u33", "i64")


def values(dtype, shape, seed=0):
    """Random numbers of a format."""
    rng = np.random.default_rng(seed)
    if dtype[0] in "iu":
        width = formats.bits(dtype)
        low, high = (-(1 << width - 1), (1 << width - 1) - 1) if dtype[0] == "i" else (0, (1 << width) - 1)
        return rng.integers(low, high, shape, formats.numpy_dtype(dtype), endpoint=True)
    rounded = formats.round_f24(rng.normal(size=shape) * 100)
    return rounded if dtype == "f24" else (rounded // 1).astype(formats.numpy_dtype(dtype)) % 128


@pytest.mark.parametrize(
    ("dtype", "shape", "element", "token", "per_beat", "beats"),
    [
        ("f24", (1, 16), 32, 512, 1, 1),
        ("f24", (1, 1), 32, 32, 16, 1),
        ("f24", (1, 3), 32, 128, 4, 1),
        ("f24", (1, 17), 32, 1024, 1, 2),
        ("i4", (16, 32), 4, 2048, 1, 4),
        ("i4", (3, 32), 4, 512, 1, 1),
        ("i4", (5, 32), 4, 1024, 1, 2),
        ("i8", (16, 32), 8, 4096, 1, 8),
        ("i8", (16, 1, 2), 8, 256, 2, 1),
        ("i12", (16, 1, 1), 16, 256, 2, 1),
        ("i16", (1, 1), 16, 16, 32, 1),
        ("i5", (1, 1), 8, 8, 64, 1),
        ("u3", (1, 1), 4, 4, 128, 1),
        ("u1", (1, 3), 1, 4, 128, 1),
        ("i33", (2,), 64, 128, 4, 1),
        ("bf16", (33,), 16, 1024, 1, 2),
    ],
)
def test_slots(dtype, shape, element, token, per_beat, beats):
    layout = MemoryLayout(dtype, shape)
    assert layout.element_slot == element
    assert layout.token_slot == token
    assert layout.tokens_per_beat == per_beat
    assert layout.beats_per_token == beats
    for count in (0, 1, per_beat, per_beat + 1, 1000):
        assert layout.beats(count) == -(-count // per_beat) * beats
        assert layout.beats(count) * BEAT_BITS >= count * token


@pytest.mark.parametrize("dtype", [*INTEGERS, "f24", "f32", "f16", "bf16"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 8), (3, 43)])
def test_image(dtype, shape):
    """Every bit: tokens in stream order, elements low in their slots, f24 high, integers sign-extended."""
    stream = ITensor(shape, dtype, (3, 2), shape[::-1], ((1,), (0,)))
    array = values(dtype, stream.shape)
    layout = MemoryLayout.of(stream)
    expected = 0
    for k, token in enumerate(stream.to_tokens(array)):
        for e, value in enumerate(token.reshape(-1)):
            (bits,) = formats.encode_ints(dtype, value[None])
            if dtype == "f24":
                bits <<= 8
            elif dtype[0] == "i":
                bits = int(value) & (1 << layout.element_slot) - 1
            expected |= bits << k * layout.token_slot + e * layout.element_slot
    image = layout.pack(stream, array)
    assert isinstance(image, bytes)
    assert len(image) == layout.beats(stream.token_count) * BEAT_BYTES
    assert int.from_bytes(image, "little") == expected
    back = layout.unpack(stream, image)
    assert back.dtype == array.dtype
    assert (back == array).all()


def test_memory_of_f24_is_float32():
    stream = ITensor((1, 16), "f24", (4, 3), (1, 16), ((0,), (1,)))
    array = values("f24", stream.shape)
    array[0, :4] = np.inf, -np.inf, np.nan, -0.0
    image = MemoryLayout.of(stream).pack(stream, array)
    assert image == array.tobytes()
    back = MemoryLayout.of(stream).unpack(stream, image)
    assert back.tobytes() == array.tobytes()


def test_wider_arrays_are_taken_when_exact():
    stream = ITensor((4,), "i4", (4,), (4,), ((0,),))
    layout = MemoryLayout.of(stream)
    array = values("i4", (16,))
    assert layout.pack(stream, array.astype(np.int64)) == layout.pack(stream, array)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s, m: MemoryLayout("mxi8", (1, 32)), "mxi8 has no layout in memory"),
        (lambda s, m: MemoryLayout("i8", ()), "element_shape must hold extents of at least 1; it is ()"),
        (lambda s, m: MemoryLayout("i8", (4, 0)),
         "element_shape must hold extents of at least 1; it is (4, 0)"),
        (lambda s, m: MemoryLayout("i8", (4,)).pack(s, np.zeros(16, int)),
         "itensor<4xi12, iter_space: [4]*[4], iter_map: (d0)->(d0)> has other tokens than "
         "MemoryLayout(dtype='i8', element_shape=(4,))"),
        (lambda s, m: m.pack(s, np.zeros(15, int)), "the tensor must have shape (16,), not (15,)"),
        (lambda s, m: m.pack(s, np.full(16, 2048)), "2048 is not a i12; it must lie in -2048..2047"),
        (lambda s, m: m.pack(s, np.full(16, -2049, np.int16)),
         "-2049 is not a i12; it must lie in -2048..2047"),
        (lambda s, m: m.unpack(s, bytes(63)), "4 tokens of i12 take 64 bytes; the image has 63"),
        (lambda s, m: m.unpack(s, b"\xff\x7f" + bytes(62)), "32767 is not a i12; it must lie in -2048..2047"),
    ],
)  # fmt: skip
def test_errors(call, message):
    stream = ITensor((4,), "i12", (4,), (4,), ((0,),))
    with pytest.raises(ValueError) as error:
        call(stream, MemoryLayout.of(stream))
    assert str(error.value) == message


def test_frozen():
    layout = MemoryLayout("i8", (4,))
    assert hash(layout) == hash(MemoryLayout("i8", (4,)))
    with pytest.raises(FrozenInstanceError):
        layout.dtype = "i4"
