"""Exact matmuls by floating-point GEMM are the matmul kernel's golden, bit for bit."""

import numpy as np
import pytest

from streamgen.kernels.matmul.matmul import ColumnParams
from streamgen.kernels.matmul.quantise import golden as quantise
from streamgen.model.operations.exact_linear import EXACT, LARGEST_ACTIVATION, Activations, ExactLinear
from streamgen.model.operations.exact_linear import quantise_activations as activations_of
from streamgen.numbers import formats
from streamgen.numbers.quantisation import QuantisedWeight

EXTREMES = ("random", "greatest", "least", "zeros")


def weight_of(
    form: str, N: int, K: int, group: int, bits: int, minimum: bool, kind: str, rng: np.random.Generator
) -> QuantisedWeight:
    """Integers of the hardware, random or all at one end of their range."""
    low, high = (-8, 7) if form == "w4" else (-128, 127)
    top = (1 << bits - 1) - 1
    groups = -(-K // group)

    def integers(low: int, high: int, shape: tuple[int, int]) -> np.ndarray:
        if kind == "random":
            return rng.integers(low, high + 1, shape)
        return np.full(shape, {"greatest": high, "least": low, "zeros": 0}[kind])

    return QuantisedWeight(
        codes=integers(low, high, (N, K)).astype(np.int8),
        scale=integers(-top, top, (N, groups)).astype(np.int32) if form == "w4" else None,
        minimum=integers(-top, top, (N, groups)).astype(np.int32) if form == "w4" and minimum else None,
        row_scale=formats.round_f24(rng.normal(size=N) * 2.0 ** rng.integers(-130, 100, N)),
        format=form,
        group=group if form == "w4" else None,
    )


def rows_of(T: int, K: int, kind: str, rng: np.random.Generator) -> np.ndarray:
    """Rows with groups far apart, some zero; with 'greatest' codes of +127 in every group."""
    if kind == "greatest":
        return np.full((T, K), 127.0, np.float32)
    x = rng.normal(size=(T, K)) * 2.0 ** np.repeat(rng.integers(-20, 20, (T, -(-K // 32))), 32, 1)[:, :K]
    x[rng.random((T, K)) < 0.1] = 0
    x[0] = 0
    x[1, :64] = 0
    if T > 3:
        x[2, 5], x[3, 0] = np.inf, np.nan
    return formats.round_f24(x)


@pytest.mark.parametrize("kind", EXTREMES)
@pytest.mark.parametrize(
    ("form", "K", "group", "bits", "minimum"),
    [
        ("w4", 96, 32, 8, True),
        ("w4", 576, 64, 8, False),
        ("w4", 1000, 128, 12, True),  # padded to 1024
        ("w4", 9216, 128, 16, True),  # in two pieces
        ("w8", 200, 32, 8, False),  # padded to 224
    ],
)
def test_is_the_kernel(form: str, K: int, group: int, bits: int, minimum: bool, kind: str) -> None:
    rng = np.random.default_rng([K, EXTREMES.index(kind)])
    N, T = 6, 5
    weight = weight_of(form, N, K, group, bits, minimum, kind, rng)
    x = rows_of(T, K, kind, rng)
    linear = ExactLinear(weight)

    padded = -(-K // group) * group if form == "w4" else -(-K // 32) * 32
    mx, exponents = quantise(np.pad(x, ((0, 0), (0, padded - K))), K)
    column = ColumnParams(
        t_lanes=1,
        n_lanes=1,
        formats=(form,),
        group=group,
        scale_bits=bits if form == "w4" else 0,
        minimum=minimum,
        max_k=padded,
        max_n=N,
        max_t=T,
    )
    inputs = {
        "i_x": mx,
        "i_e": exponents,
        "i_w": np.pad(weight.codes, ((0, 0), (0, padded - K))),
        "i_r": weight.row_scale,
    }
    if weight.scale is not None:
        parts = [weight.scale] if weight.minimum is None else [weight.scale, weight.minimum]
        inputs["i_s"] = np.stack(parts, axis=2)
    bounds = {"t": T, "k": padded, "n": N, "format": form, "grouped": form == "w4"}
    expected = column.golden(bounds, inputs)["o_y"]
    found = linear(activations_of(x))
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_pieces_stay_exact() -> None:
    """All products at their greatest: a longer piece would leave the integers of float64, and is cut."""
    K = 9216
    weight = weight_of("w4", 2, K, 128, 16, True, "greatest", np.random.default_rng(0))
    linear = ExactLinear(weight)
    largest = int(np.abs(linear.weight).max())
    assert largest == 32767 * 8
    assert (
        linear.piece * largest * LARGEST_ACTIVATION
        < EXACT
        <= (linear.piece + 1) * largest * LARGEST_ACTIVATION
    )
    assert linear.piece < K
    a = np.full((3, K), float(LARGEST_ACTIVATION))
    a[1, ::2] -= 1
    a[2] = -a[2]
    sums = linear.sums(Activations(a, np.zeros(3, np.int16)))
    exact = [
        [sum(int(v) * int(w) for v, w in zip(row, other, strict=True)) for other in linear.weight]
        for row in a
    ]
    assert sums.tolist() == exact


def test_too_long_a_sum_is_refused() -> None:
    """With scales beyond those of the hardware, since its own need seven million columns."""
    K = 2048
    wide = QuantisedWeight(
        codes=np.full((1, K), 7, np.int8),
        scale=np.full((1, K // 32), 1 << 28, np.int32),
        minimum=None,
        row_scale=np.ones(1, np.float32),
        format="w4",
        group=32,
    )
    with pytest.raises(ValueError) as error:
        ExactLinear(wide)
    assert str(error.value) == "a sum of 2048 products with weights up to 1879048192 can leave 64 bits"


def test_bias_is_added_in_f24() -> None:
    rng = np.random.default_rng(3)
    weight = weight_of("w8", 4, 32, 32, 8, False, "random", rng)
    weight = QuantisedWeight(weight.codes, None, None, np.ones(4, np.float32), "w8", None)
    bias = rng.normal(size=4).astype(np.float32) * 1000
    x = activations_of(rows_of(3, 32, "random", rng))
    without = ExactLinear(weight)(x).astype(np.float64)
    expected = formats.round_f24(without + formats.round_f24(bias))
    assert np.array_equal(ExactLinear(weight, bias)(x), expected)
