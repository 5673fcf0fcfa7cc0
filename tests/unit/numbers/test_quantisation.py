"""streamgen.numbers.quantisation: every error bound is the quantisation step it comes from."""

import numpy as np
import pytest

from streamgen.numbers.formats import round_f24
from streamgen.numbers.quantisation import GroupGrid, QuantisedWeight, quantise, quantise_grid


def _weight(seed: int, N: int = 24, K: int = 192) -> np.ndarray:
    rng = np.random.default_rng(seed)
    spread = np.exp2(rng.integers(-6, 7, (N, K // 32))).repeat(32, axis=1)
    return (rng.standard_normal((N, K)) * spread + spread * rng.standard_normal((N, 1))).astype(np.float32)


def _grid(seed: int, N: int = 8, K: int = 128, group: int = 32) -> GroupGrid:
    rng = np.random.default_rng(seed)
    scale = (0.1 + rng.random((N, K // group))).astype(np.float16)
    minimum = (-7.5 * scale * (1 + 0.2 * rng.standard_normal(scale.shape))).astype(np.float16)
    return GroupGrid(rng.integers(0, 16, (N, K)).astype(np.uint8), scale, minimum)


def _check_laws(q: QuantisedWeight, weight: np.ndarray, scale_bits: int) -> None:
    """What the hardware relies on."""
    N, K = weight.shape
    top = 2 ** (scale_bits - 1) - 1
    assert q.codes.dtype == np.int8
    assert q.codes.shape == (N, K)
    assert q.row_scale.dtype == np.float32
    assert q.row_scale.shape == (N,)
    assert np.array_equal(q.row_scale, round_f24(q.row_scale.astype(np.float64)))
    if q.format == "w8":
        assert q.scale is q.minimum is q.group is None
        assert np.abs(q.codes.astype(int)).max() <= 127
        return
    assert q.codes.min() >= -8
    assert q.codes.max() <= 7
    for integers in (q.scale, q.minimum):
        if integers is not None:
            assert integers.dtype == np.int32
            assert integers.shape == (N, -(-K // q.group))
            assert np.abs(integers).max() <= top


def test_w8_is_within_half_a_step() -> None:
    weight = _weight(1)
    q = quantise(weight, form="w8")
    _check_laws(q, weight, 8)
    step = np.abs(weight).max(axis=1, keepdims=True) / 127
    # Half a step, and what rounding 127 steps to f24 can move the greatest code by.
    assert (np.abs(q.dequantise() - weight) <= step * (0.5 + 127 * 2.0**-16)).all()


@pytest.mark.parametrize("scale_bits", [8, 12, 16])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("symmetric", [False, True])
def test_w4_is_within_half_a_step(symmetric: bool, group: int, scale_bits: int) -> None:
    """Half a step of the group, and what rounding the scale (8 codes away at most) and the minimum costs."""
    weight = _weight(2)
    q = quantise(weight, group=group, scale_bits=scale_bits, minimum=not symmetric)
    _check_laws(q, weight, scale_bits)
    assert (q.minimum is None) == symmetric
    r = q.row_scale.astype(np.float64)[:, None]
    fitted = np.stack(
        [_fit(block, symmetric) for block in np.split(weight, range(group, 192, group), axis=1)], 1
    )
    bound = np.maximum(fitted, r) / 2 + 8 * r / 2 + r / 2  # integers are within a half of what they stand for
    error = np.abs(q.dequantise() - weight)
    assert (error <= bound.repeat(group, axis=1)[:, :192] * (1 + 1e-9)).all()


def _fit(block: np.ndarray, symmetric: bool) -> np.ndarray:
    """The step of each row of one group when codes are fitted from its least to its greatest weight."""
    low, high = block.min(axis=1).astype(np.float64), block.max(axis=1).astype(np.float64)
    if not symmetric:
        return (high - low) / 15
    return np.maximum(np.maximum(-low, high) / 8, np.minimum(np.maximum(-low, 0), np.maximum(high, 0)) / 7)


def test_wider_scales_are_better() -> None:
    weight = _weight(3)
    errors = [np.abs(quantise(weight, scale_bits=b).dequantise() - weight).mean() for b in (8, 12, 16)]
    assert errors[0] > errors[1] > errors[2] * 0.999


def test_asymmetric_codes_use_the_whole_range() -> None:
    weight = np.linspace(-1, 3, 32, dtype=np.float32)[None]
    q = quantise(weight, scale_bits=16)
    assert (q.codes.min(), q.codes.max()) == (-8, 7)
    assert np.abs(q.dequantise() - weight).max() <= 4 / 15 / 2 * 1.001


def test_symmetric_scale_takes_the_sign_of_the_extreme() -> None:
    """The greater extreme becomes code -8, whichever its sign."""
    weight = np.array([[1.0, -0.5] * 16, [-1.0, 0.5] * 16], np.float32)
    q = quantise(weight, minimum=False, scale_bits=16)
    assert np.sign(q.scale).tolist() == [[-1], [1]]
    assert q.codes[:, 0].tolist() == [-8, -8]
    assert np.abs(q.dequantise() - weight).max() < 1e-4


def test_last_group_may_be_short() -> None:
    weight = _weight(4)[:, :70]
    q = quantise(weight, group=32)
    assert q.scale.shape == q.minimum.shape == (24, 3)
    whole = quantise(np.concatenate([weight, np.repeat(weight[:, -1:], 26, axis=1)], axis=1), group=32)
    assert np.array_equal(q.dequantise(), whole.dequantise()[:, :70])


@pytest.mark.parametrize("scale_bits", [8, 16])
def test_grid_keeps_its_codes(scale_bits: int) -> None:
    """Centred codes, and only the rounding of two integers: 8 codes away at most."""
    grid = _grid(5)
    q = quantise_grid(grid, scale_bits=scale_bits)
    _check_laws(q, grid.codes, scale_bits)
    assert np.array_equal(q.codes, grid.codes.astype(int) - 8)
    bound = (8 * q.row_scale / 2 + q.row_scale / 2).astype(np.float64)[:, None]
    assert (np.abs(q.dequantise() - grid.dequantise()) <= bound * (1 + 1e-6)).all()


def test_centring_makes_8_bits_enough() -> None:
    """The minimum of a centred group is as small as its scale, so neither wastes the bits they share."""
    grid = _grid(6)
    q = quantise_grid(grid)
    error = np.abs(q.dequantise() - grid.dequantise()).max()
    assert error <= 0.1 * grid.scale.astype(np.float64).max()


def test_symmetric_grid() -> None:
    """A Q4_0 tensor has no minimum once centred; a Q4_1 tensor has."""
    grid = _grid(7)
    centred = GroupGrid(grid.codes, grid.scale, -8 * grid.scale)
    q = quantise_grid(centred, symmetric=True)
    assert q.minimum is None
    assert np.array_equal(q.dequantise(), quantise_grid(centred).dequantise())
    with pytest.raises(ValueError, match="cannot be held by symmetric groups"):
        quantise_grid(grid, symmetric=True)


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 1e-38, 1.2e-36, 3.4e38, -3.4e38])
def test_ranges(value: float) -> None:
    """Rows of one value, from zero to the limit: finite, and right to a step of the format.

    Row scales below 2^-126 are flushed to zero with their rows, an error below 127 * 2^-126.
    """
    weight = np.full((2, 64), value, np.float32)
    weight[1, 5:] = 0
    for q in (quantise(weight, form="w8"), quantise(weight), quantise(weight, minimum=False)):
        _check_laws(q, weight, 8)
        restored = q.dequantise()
        assert np.isfinite(restored).all()
        assert (np.abs(restored - weight) <= abs(value) / 16 + 127 * 2.0**-126).all()
    assert (quantise(np.zeros((2, 32), np.float32)).dequantise() == 0).all()


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("quantise", [quantise])
def test_not_finite(quantise, value: str) -> None:
    weight = _weight(8)
    weight[3, 17] = float(value)
    with pytest.raises(ValueError) as caught:
        quantise(weight)
    assert str(caught.value) == f"weight[3, 17] is {value}; all must be finite"


def test_bad_arguments() -> None:
    weight = _weight(9)
    for call, error, message in (
        (lambda: quantise(weight, group=48), ValueError, "group is 48; 32, 64 and 128 are allowed"),
        (lambda: quantise(weight, scale_bits=7), ValueError, "scale_bits is 7; 8 to 16 are allowed"),
        (lambda: quantise_grid(_grid(1), scale_bits=17), ValueError, "scale_bits is 17; 8 to 16 are allowed"),
        (
            lambda: quantise_grid(_grid(1, group=16)),
            ValueError,
            "the grid has groups of 16; 32, 64 and 128 are allowed",
        ),
        (
            lambda: quantise(weight[0], form="w8"),
            ValueError,
            "weight has shape [192]; it must be [N, K] with N, K >= 1",
        ),
        (
            lambda: quantise(weight[:0], form="w8"),
            ValueError,
            "weight has shape [0, 192]; it must be [N, K] with N, K >= 1",
        ),
        (
            lambda: quantise(weight.astype(np.float64), form="w8"),
            TypeError,
            "weight is float64; it must be float16 or float32",
        ),
    ):
        with pytest.raises(error) as caught:
            call()
        assert str(caught.value) == message


def test_bad_grids() -> None:
    grid = _grid(10)
    half = grid.scale[:, :2]
    broken = grid.minimum.copy()
    broken[2, 1] = np.inf
    for args, error, message in (
        (
            (grid.codes.astype(np.int8), grid.scale, grid.minimum),
            ValueError,
            "GroupGrid.codes is int8[8, 128]; it must be uint8 [N, K]",
        ),
        (
            (grid.codes[:, :127], grid.scale, grid.minimum),
            ValueError,
            "GroupGrid.scale has shape [8, 4]; codes [8, 127] need [8, 127 / group]",
        ),
        (
            (grid.codes, grid.scale, half),
            ValueError,
            "GroupGrid.scale and .minimum differ in shape: [8, 4], [8, 2]",
        ),
        (
            (grid.codes, grid.scale, broken),
            ValueError,
            "GroupGrid.minimum[2, 1] is inf; all must be finite",
        ),
        (
            (grid.codes, grid.scale.astype(np.float64), grid.minimum),
            TypeError,
            "GroupGrid.scale is float64; it must be float16 or float32",
        ),
        (
            (grid.codes + 16, grid.scale, grid.minimum),
            ValueError,
            "GroupGrid.codes reach 31; they must be 0 to 15",
        ),
    ):
        with pytest.raises(error) as caught:
            GroupGrid(*args)
        assert str(caught.value) == message
