"""What formats of weights share: integer scales of groups under one number a row, the nearest codes."""

import numpy as np
from numpy import ndarray

from streamgen.numbers import formats


def share(
    scale: ndarray, minimum: ndarray | None, scale_bits: int, stretch: float = 1.0
) -> tuple[ndarray, ndarray | None, ndarray]:
    """Integer scales and minimums under one f24 per row, by `stretch` more than the least."""
    if not 8 <= scale_bits <= 16:
        raise ValueError(f"scale_bits is {scale_bits}; 8 to 16 are allowed")
    top = 2 ** (scale_bits - 1) - 1
    greatest = np.abs(scale).max(axis=1)
    if minimum is not None:
        greatest = np.maximum(greatest, np.abs(minimum).max(axis=1))
    row_scale = formats.round_f24(greatest / top * stretch)

    by = divisor(row_scale)[:, None]

    def integers(values: ndarray) -> ndarray:
        found = values / by
        np.rint(found, out=found)
        return np.clip(found, -top, top, out=found).astype(np.int32)

    return integers(scale), None if minimum is None else integers(minimum), row_scale


def divisor(by: ndarray) -> ndarray:
    """float64 to divide finite numbers by, so that those over 0 become 0."""
    return np.where(by == 0, np.inf, by.astype(np.float64))


def nearest(levels: ndarray, least: int, most: int) -> ndarray:
    """The nearest codes, int8; levels are lost."""
    np.rint(levels, out=levels)
    return np.clip(levels, least, most, out=levels).astype(np.int8)


def spread(per_group: ndarray, group: int, K: int) -> ndarray:
    """What groups have, for each weight."""
    return np.repeat(per_group, group, axis=1)[:, :K]
