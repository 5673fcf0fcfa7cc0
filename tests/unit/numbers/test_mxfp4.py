"""mxfp4 against independent encodings: ml_dtypes' e2m1 and the blocks of GGUF files."""

import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize

from streamgen.numbers.quantisation import quantise

MAGNITUDES = (0, 0.5, 1, 1.5, 2, 3, 4, 6)


def elements(x: np.ndarray) -> np.ndarray:
    """The nearest elements, by ml_dtypes; they saturate at 6."""
    return np.clip(x, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float64)


def blocks(rng: np.random.Generator, N: int, K: int, span: int) -> tuple[np.ndarray, np.ndarray]:
    """Random blocks of GGUF's MXFP4 and what they mean: exponents of a row within a span."""
    raw = rng.integers(0, 256, (N, K // 32, 17), np.uint8)
    raw[..., 0] = 120 + rng.integers(-3, 4, (N, 1)) + rng.integers(0, span + 1, (N, K // 32))
    return raw, dequantize(raw.reshape(N, -1), Kind.MXFP4).astype(np.float32)


def test_multiplicands_are_twice_the_elements() -> None:
    codes = np.arange(16).astype(np.uint8)
    meant = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    q = quantise(np.resize(meant, (1, 32)).astype(np.float32), form="mxfp4")
    assert np.array_equal(q.codes[0] & 15, np.resize(codes, 32))
    assert np.array_equal(q.integers()[0], np.resize(2 * meant, 32)) and q.row_scale[0] == 0.5
    assert set(np.abs(meant)) == set(MAGNITUDES)


@pytest.mark.parametrize("exponent", [-40, -3, 0, 5, 100])
def test_elements_are_those_of_ml_dtypes(exponent: int) -> None:
    """Random numbers, the elements themselves and the middles between them, of both signs."""
    rng = np.random.default_rng(exponent + 100)
    exact = np.array(MAGNITUDES)
    ties = (exact[1:] + exact[:-1]) / 2
    beside = np.nextafter(ties.astype(np.float32), [[0], [9]]).reshape(-1)
    fine = np.concatenate([exact, ties, beside, rng.uniform(0, 8, 41), [4.0, 7.999]])
    x = np.resize(np.concatenate([fine, -fine]), (8, 128)).astype(np.float32)
    x[:, ::32] = 4.5  # of every group the greatest lies in 4..8
    q = quantise(np.ldexp(x, exponent), form="mxfp4")
    assert (q.scale == 1).all() and (q.row_scale == np.ldexp(1.0, exponent - 1)).all()
    assert np.array_equal(q.dequantise(), np.ldexp(elements(x), exponent))


@pytest.mark.parametrize(("bits", "span"), [(8, 6), (12, 10), (16, 14)])
def test_blocks_of_a_file_are_exact(bits: int, span: int) -> None:
    _, meant = blocks(np.random.default_rng(bits), 40, 256, span)
    q = quantise(meant, form="mxfp4", scale_bits=bits)
    assert q.minimum is None and q.group == 32 and q.scale is not None
    assert (q.scale & q.scale - 1 == 0).all() and q.scale.max() <= 1 << bits - 2
    below = np.abs(meant).reshape(40, -1, 32).max(2) > 0  # some groups are smaller than their exponent says
    exponents = np.frexp(np.abs(meant).reshape(40, -1, 32).max(2))[1]
    spans = np.where(below, exponents, -999).max(1) - np.where(below, exponents, 999).min(1)
    exact = spans <= bits - 2
    assert exact.sum() > 5
    assert np.array_equal(q.dequantise()[exact], meant[exact].astype(np.float64))


def test_exponents_stay_within_the_field() -> None:
    """A group too far below the greatest of its row has the least exponent of the field."""
    x = np.ones((1, 96), np.float32)
    x[0, 32:64] = 2.0**-20
    x[0, 64:] = 2.0**-6 * 1.5
    q = quantise(x, form="mxfp4")
    assert q.scale.tolist() == [[64, 1, 1]] and q.row_scale[0] == 2.0**-9
    assert q.dequantise()[0, [0, 40, 70]].tolist() == [1, 0, 2.0**-6 * 1.5]
    wide = quantise(x, form="mxfp4", scale_bits=16)
    assert wide.scale.tolist() == [[1 << 14, 1, 256]]
    assert wide.dequantise()[0, 40] == 0 and wide.dequantise()[0, 70] == x[0, 70]


def test_numbers_at_the_ends() -> None:
    """Zeros, the least and the greatest float32: finite, and row scales are normal f24 or zero."""
    x = np.zeros((4, 64), np.float32)
    x[1, 3], x[2, :32] = 2.0**-149, np.finfo(np.float32).max
    x[3] = 2.0**-126
    q = quantise(x, form="mxfp4")
    assert q.row_scale.tolist() == [0, 2.0**-126, 2.0**124, 2.0**-126]
    assert not q.dequantise()[:2].any() and q.dequantise()[2, 0] == 6 * 2.0**125
    assert np.array_equal(q.dequantise()[3], x[3])


def test_it_has_one_group_and_no_minimum() -> None:
    x = np.random.default_rng(0).normal(size=(4, 100)).astype(np.float32)
    plain = quantise(x, form="mxfp4")
    other = quantise(x, form="mxfp4", group=128, minimum=False)
    assert plain.group == other.group == 32 and plain.minimum is other.minimum is None
    assert np.array_equal(plain.codes, other.codes)
    with pytest.raises(ValueError, match=r"^scale_bits is 7; 8 to 16 are allowed$"):
        quantise(x, form="mxfp4", scale_bits=7)
