"""ITensor against nested loops: fields, offsets, tokens, text, equality."""

from dataclasses import FrozenInstanceError

import itensor_brute as brute
import itensor_strategies as some
import numpy as np
import pytest
from hypothesis import strategies as st

from streamgen.itensor import ITensor
from streamgen.numbers import formats

A = "itensor<2x2xf32, iter_space: [4,4]*[2,2], iter_map: (d0,d1)->(d0,d1)>"
B = "itensor<4x2xf32, iter_space: [4,2]*[2,4], iter_map: (d0,d1)->(d1,d0)>"
C = "itensor<4x2xf32, iter_space: [4,2,2]*[2,1,4], iter_map: (d0,d1,d2)->(d2,d0)>"


@pytest.mark.parametrize(
    ("text", "count", "first"),
    [
        (A, 16, [(0, 0), (0, 2), (0, 4), (0, 6), (2, 0)]),
        (B, 8, [(0, 0), (4, 0), (0, 2), (4, 2), (0, 4)]),
        (C, 16, [(0, 0), (4, 0), (0, 0), (4, 0), (0, 2)]),
    ],
)
def test_examples(text, count, first):
    stream = ITensor.parse(text)
    assert str(stream) == text
    assert stream.shape == (8, 8)
    assert stream.token_count == count
    assert stream.token_bits == 32 * np.prod(stream.element_shape)
    assert [tuple(offset) for offset in stream.offsets()[:5].tolist()] == first


@some.check(some.itensors())
def test_offsets(stream):
    offsets = stream.offsets()
    assert offsets.dtype == np.int64
    assert offsets.shape == (stream.token_count, stream.rank)
    assert [tuple(offset) for offset in offsets.tolist()] == brute.offsets(stream)
    assert stream.shape == tuple((offsets.max(axis=0) + stream.element_shape).tolist())


@some.check(some.itensors(), st.sampled_from(["i1", "i2", "f4", "f8", "c16", "?", formats.MX]))
def test_to_tokens(stream, dtype):
    a = np.arange(np.prod(stream.shape)).reshape(stream.shape).astype("i4").astype(np.dtype(dtype))
    tokens = stream.to_tokens(a)
    assert tokens.dtype == a.dtype
    assert tokens.shape == (stream.token_count, *stream.element_shape)
    expected = [[a[element] for element in token] for token in brute.tokens(stream)]
    assert tokens.reshape(stream.token_count, -1).tolist() == np.array(expected, a.dtype).tolist()
    assert not np.shares_memory(tokens, a)


@some.check(some.itensors())
def test_from_tokens(stream):
    a = np.arange(np.prod(stream.shape), dtype=np.int32).reshape(stream.shape)
    sent = set().union(*brute.tokens(stream))
    expected = np.full(stream.shape, -1, np.int32)
    for element in sent:
        expected[element] = a[element]
    tokens = stream.to_tokens(a)
    filled = stream.from_tokens(tokens, fill=-1)
    assert filled.dtype == np.int32
    assert (filled == expected).all()
    if len(sent) < a.size:
        gap = min(set(np.ndindex(a.shape)) - sent)
        with pytest.raises(ValueError) as error:
            stream.from_tokens(tokens)
        assert str(error.value) == f"no token covers element {gap}; give fill to allow gaps"
    else:
        assert (stream.from_tokens(tokens) == a).all()


@some.check(some.itensors(), st.data())
def test_from_tokens_disagreeing(stream, data):
    tokens = stream.to_tokens(np.zeros(stream.shape, np.int8))
    k = data.draw(st.integers(0, tokens.size - 1))
    tokens.reshape(-1)[k] = 1
    flat = [element for token in brute.tokens(stream) for element in token]
    if flat.count(flat[k]) == 1:
        assert stream.from_tokens(tokens, fill=0).sum() == 1
    else:
        with pytest.raises(ValueError, match=r"two tokens disagree about element") as error:
            stream.from_tokens(tokens, fill=0)
        assert str(error.value).endswith(str(flat[k]))


def test_repeated_nan_agrees():
    stream = ITensor((2,), "f32", (3,), (1,), ((),))
    a = np.array([np.nan, 1], np.float32)
    assert np.array_equal(stream.from_tokens(stream.to_tokens(a)), a, equal_nan=True)


@pytest.mark.parametrize("shape", [(7, 8), (8,), (8, 8, 1), (8, 9)])
def test_to_tokens_wants_the_shape(shape):
    with pytest.raises(ValueError) as error:
        ITensor.parse(A).to_tokens(np.zeros(shape))
    assert str(error.value) == f"the tensor must have shape (8, 8), not {shape}"


def test_from_tokens_wants_the_shape():
    with pytest.raises(ValueError) as error:
        ITensor.parse(A).from_tokens(np.zeros((16, 4)))
    assert str(error.value) == "the tokens must have shape (16, 2, 2), not (16, 4)"


@some.check(some.itensors(), st.randoms())
def test_text(stream, random):
    text = str(stream)
    assert ITensor.parse(text) == stream
    spaced = "".join(
        random.choice(["", " ", "\n\t"]) + c + random.choice(["", " "]) if c in "<>x,:[]*()-+" else c
        for c in text
    )
    assert ITensor.parse(spaced) == stream


def test_text_sums_in_any_order():
    expected = ITensor((1, 1), "i8", (2, 3, 4), (1, 2, 3), ((0, 2), ()), (5, 7))
    assert str(expected) == "itensor<1x1xi8, iter_space: [2,3,4]*[1,2,3], iter_map: (d0,d1,d2)->(d0+d2+5,7)>"
    for total in ("d0+d2+5", "5+d2+d0", "d2 + 5 + d0"):
        text = f"itensor<1x1xi8,iter_space:[2,3,4]*[1,2,3],iter_map:(d0,d1,d2)->({total},7)>"
        assert ITensor.parse(text) == expected
    assert ITensor.parse("itensor<1x1xi8,iter_space:[]*[],iter_map:()->(0,0)>") == ITensor(
        (1, 1), "i8", (), (), ((), ())
    )


TWICE = "iter_map uses loop 0 twice; a loop serves one dimension at most"
GOOD = "itensor<2xi8, iter_space: [4]*[2], iter_map: (d0)->(d0)>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected 'itensor' at position 0 of ''"),
        (GOOD + "x", f"expected the end at position 56 of {GOOD + 'x'!r}"),
        (GOOD[:-1], f"expected '>' at position 55 of {GOOD[:-1]!r}"),
        (GOOD.replace("2xi8", "2xi80"), "dtype 'i80' is unknown; it must be i<N> or u<N> with N in 1..64, "
         "or one of f32, f16, bf16, f24, mxi8, mxi8s"),
        (GOOD.replace("2xi8", "2x"), "expected a format at position 10 of "
         "'itensor<2x, iter_space: [4]*[2], iter_map: (d0)->(d0)>'"),
        (GOOD.replace("2xi8", "i8"), "element_shape must have at least one dimension"),
        (GOOD.replace("[4]", "[4,]"), "expected a number at position 29 of "
         "'itensor<2xi8, iter_space: [4,]*[2], iter_map: (d0)->(d0)>'"),
        (GOOD.replace("[4]", "[0]"), "tripcounts must be at least 1; it holds 0"),
        (GOOD.replace("[4]", "[4,2]"), "the map must start from 2 loops d0, d1, ... in order in "
         "'itensor<2xi8, iter_space: [4,2]*[2], iter_map: (d0)->(d0)>', not from (d0)"),
        (GOOD.replace("->(d0)", "->(d0+d0)"), TWICE),
        (GOOD.replace("->(d0)", "->(d1)"), "iter_map names loop 1; there are 1 loops"),
        (GOOD.replace("->(d0)", "->(d0+1+2)"), "a sum has two numbers, 1 and 2, in "
         "'itensor<2xi8, iter_space: [4]*[2], iter_map: (d0)->(d0+1+2)>'"),
        (GOOD.replace("->(d0)", "->(d0-1)"), "expected ')' at position 54 of "
         "'itensor<2xi8, iter_space: [4]*[2], iter_map: (d0)->(d0-1)>'"),
        (GOOD.replace("->(d0)", "->(d0,0)"), "iter_map must have one entry per dimension; it has 2, not 1"),
        (GOOD.replace("->(d0)", "->()"), "iter_map must have one entry per dimension; it has 0, not 1"),
    ],
)  # fmt: skip
def test_bad_text(text, message):
    with pytest.raises(ValueError) as error:
        ITensor.parse(text)
    assert str(error.value) == message


def test_text_is_text():
    with pytest.raises(TypeError, match=r"^the text of an itensor must be a str, not 5$"):
        ITensor.parse(5)


BASE = {
    "element_shape": (2, 4),
    "dtype": "i8",
    "tripcounts": (3, 5),
    "steps": (2, 4),
    "iter_map": ((0,), (1,)),
    "base": (0, 0),
}


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"element_shape": (2, 0)}, ValueError, "element_shape must be at least 1; it holds 0"),
        ({"element_shape": (2, -1)}, ValueError, "element_shape must be at least 1; it holds -1"),
        ({"element_shape": ()}, ValueError, "element_shape must have at least one dimension"),
        ({"element_shape": 4}, TypeError, "element_shape must be a sequence of integers, not 4"),
        ({"element_shape": "24"}, TypeError, "element_shape must be a sequence of integers, not '24'"),
        ({"element_shape": (2, 4.0)}, TypeError, "element_shape must hold integers, not 4.0"),
        ({"tripcounts": (True, 2)}, TypeError, "tripcounts must hold integers, not True"),
        ({"tripcounts": (0, 2)}, ValueError, "tripcounts must be at least 1; it holds 0"),
        ({"tripcounts": (3,)}, ValueError,
         "tripcounts and steps must have one entry per loop; they have 1 and 2"),
        ({"steps": (2, 0)}, ValueError, "steps must be at least 1; it holds 0"),
        ({"steps": (2, "4")}, TypeError, "steps must hold integers, not '4'"),
        ({"iter_map": ((0,),)}, ValueError, "iter_map must have one entry per dimension; it has 1, not 2"),
        ({"iter_map": ((0,), (0,))}, ValueError, TWICE),
        ({"iter_map": ((0, 0), (1,))}, ValueError, TWICE),
        ({"iter_map": ((0,), (2,))}, ValueError, "iter_map names loop 2; there are 2 loops"),
        ({"iter_map": ((0,), (-1,))}, ValueError, "iter_map must be at least 0; it holds -1"),
        ({"iter_map": (0, 1)}, TypeError, "iter_map must be a sequence of integers, not 0"),
        ({"iter_map": 0}, TypeError, "iter_map must be a sequence of sequences of loops, not 0"),
        ({"base": (0,)}, ValueError, "base must have one entry per dimension; it has 1, not 2"),
        ({"base": (0, -1)}, ValueError, "base must be at least 0; it holds -1"),
        ({"dtype": 8}, TypeError, "dtype must be a str, not 8"),
        ({"dtype": "mxi8"}, ValueError,
         "the last extent of a mxi8 tile must be a multiple of 32; shape (2, 4)"),
    ],
)  # fmt: skip
def test_bad_fields(change, kind, message):
    with pytest.raises(kind) as error:
        ITensor(**{**BASE, **change})
    assert str(error.value) == message


def test_frozen_hashable_structural():
    stream = ITensor(**BASE)
    assert stream == ITensor([2, 4], "i8", np.array([3, 5]), [2, 4], [[0], [1]])
    assert hash(stream) == hash(ITensor(**BASE))
    assert type(ITensor([2, 4], "i8", np.array([3, 5]), [2, 4], [[0], [1]]).tripcounts[0]) is int
    assert stream != ITensor(**{**BASE, "dtype": "u8"})
    assert stream != ITensor(
        **{**BASE, "tripcounts": (3, 1, 5), "steps": (2, 1, 4), "iter_map": ((0,), (2,))}
    )
    with pytest.raises(FrozenInstanceError):
        stream.dtype = "i4"


@pytest.mark.parametrize(
    ("dtype", "shape", "bits"),
    [
        ("mxi8", (1, 32), 264),
        ("mxi8", (4, 64), 2112),
        ("mxi8s", (2, 32), 560),
        ("f24", (3, 5), 360),
        ("i3", (7,), 21),
    ],
)
def test_token_bits(dtype, shape, bits):
    assert ITensor(shape, dtype, (), (), ((),) * len(shape)).token_bits == bits
