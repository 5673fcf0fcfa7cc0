"""The common part of formats of weights: integer scales of groups under one number per row, the nearest
codes."""

import numpy as np
from numpy import ndarray

from streamgen.numbers import formats


def share(
    scale: ndarray, minimum: ndarray | None, scale_bits: int, stretch: float = 1.0
) -> tuple[ndarray, ndarray | None, ndarray]:
    """Integer scales and minimums under one f24 per row, which is larger than the least one by `stretch`."""
    if not 8 <= scale_bits <= 16:
        raise ValueError(f"scale_bits is {scale_bits}; 8 to 16 are allowed")
    top = 2 ** (scale_bits - 1) - 1
    greatest = np.abs(scale).max(axis=1)
    if minimum is not None:
        greatest = np.maximum(greatest, np.abs(minimum).max(axis=1))
    row_scale = formats.round_f24(greatest / top * stretch)

    by = divisor(row_scale)[:, None]

    def integers(values: ndarray) -> ndarray:
        rounded = values / by
        np.rint(rounded, out=rounded)
        return np.clip(rounded, -top, top, out=rounded).astype(np.int32)

    return integers(scale), None if minimum is None else integers(minimum), row_scale


def divisor(by: ndarray) -> ndarray:
    """float64 divisors for finite numbers; a divisor of 0 is replaced so that quotients become 0."""
    return np.where(by == 0, np.inf, by.astype(np.float64))


def nearest(levels: ndarray, least: int, most: int) -> ndarray:
    """The nearest codes, int8; `levels` is overwritten."""
    np.rint(levels, out=levels)
    return np.clip(levels, least, most, out=levels).astype(np.int8)


def spread(per_group: ndarray, group: int, K: int) -> ndarray:
    """Repeat the values of groups for each weight."""
    return np.repeat(per_group, group, axis=1)[:, :K]
