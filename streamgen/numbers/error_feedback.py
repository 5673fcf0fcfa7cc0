"""Rounds weights to 4 bits and compensates the rounding errors on the inputs of a matmul.

Columns are rounded one after the other. The error of a column on these inputs is compensated, as far as
possible, by the columns that are not rounded yet. Source: GPTQ (Frantar et al., arXiv 2210.17323), with the
integer scales and minimums of `numbers.weights.w4`. A group is fitted when its first column is reached, to
its current weights, in multiples of the row scale of the original weights.

    minimise |X w - X q|^2 for each row w        H = X^T X, the inputs' second moments
    H^-1 = U^T U, U upper triangular             w[j] -= (w[k] - q[k]) / U[k,k] * U[k,j] for j > k
"""

import numpy as np

from streamgen.numbers.quantisation import QuantisedWeight, quantise
from streamgen.numbers.weights.w4 import CODE_MAX, CODE_MIN, FORMAT

DAMPING = 0.01  # relative to the mean second moment, so that H can be inverted
SHRINKS = np.linspace(1.0, 0.7, 7)  # of the range of a group: a few far weights may cost all others
LEVELS = CODE_MAX - CODE_MIN


def quantise_w4_on(
    weight: np.ndarray,
    moments: np.ndarray,
    *,
    group: int = 32,
    scale_bits: int = 8,
    minimum: bool = True,
) -> QuantisedWeight:
    """The weight, float [N, K], on a 4-bit grid that loses little on inputs with these moments.

    moments: float64 [K, K], the sum of x^T x over rows of inputs. The other arguments and errors are those of
    `quantise`; also ValueError for moments of another shape or that are not finite.
    """
    K = weight.shape[1]
    if moments.shape != (K, K) or not np.isfinite(moments).all():
        raise ValueError(f"moments are {list(moments.shape)}; finite moments [{K}, {K}] are needed")
    plain = quantise(weight, form=FORMAT.name, group=group, scale_bits=scale_bits, minimum=minimum)
    upper = _upper(moments)
    importance = 1 / np.diag(upper) ** 2
    row_scale = plain.row_scale.astype(np.float64)
    divisor = np.where(row_scale == 0, 1, row_scale)[:, None]
    left = np.where(row_scale[:, None] == 0, 0, weight.astype(np.float64) / divisor)
    codes, top = np.empty(weight.shape, np.int8), 2 ** (scale_bits - 1) - 1
    scales, offsets = [], []
    for first in range(0, K, group):
        columns = slice(first, min(first + group, K))
        scale, offset = _fitted(left[:, columns], importance[columns], top, minimum)
        errors = np.empty_like(left[:, columns])
        for k in range(columns.start, columns.stop):
            levels = np.rint((left[:, k] - offset) / scale)
            codes[:, k] = np.clip(levels, CODE_MIN, CODE_MAX)
            error = (left[:, k] - (scale * codes[:, k] + offset)) / upper[k, k]
            left[:, k + 1 : columns.stop] -= error[:, None] * upper[k, k + 1 : columns.stop]
            errors[:, k - first] = error
        left[:, columns.stop :] -= errors @ upper[columns, columns.stop :]
        scales.append(scale)
        offsets.append(offset)
    scale, offset = (np.stack(part, axis=1).astype(np.int32) for part in (scales, offsets))
    return QuantisedWeight(codes, scale, offset if minimum else None, plain.row_scale, FORMAT.name, group)


def _upper(moments: np.ndarray) -> np.ndarray:
    """U of the inverse of the damped moments."""
    diagonal = np.diag(moments)
    damping = DAMPING * float(diagonal.mean()) or 1.0
    inverse = np.linalg.inv(moments + damping * np.eye(len(moments)))
    lower: np.ndarray = np.linalg.cholesky((inverse + inverse.T) / 2)
    return lower.T


def _fitted(
    weights: np.ndarray, importance: np.ndarray, top: int, minimum: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Integer scale and minimum of a group of each row, [N] each: those of the shrunk range with the least
    error."""
    low, high = weights.min(axis=1), weights.max(axis=1)
    best = np.full(len(weights), np.inf)
    scale, offset = np.ones(len(weights)), np.zeros(len(weights))
    for shrink in SHRINKS:
        if minimum:
            s = (high - low) * shrink / LEVELS
        else:
            s = np.maximum(-low / -CODE_MIN, high / CODE_MAX) * shrink
        s = np.clip(np.rint(s), 1, top)
        m = np.zeros_like(s)
        if minimum:
            m = np.clip(np.rint((low + high) / 2 - s * (CODE_MIN + CODE_MAX) / 2), -top, top)
        codes = np.clip(np.rint((weights - m[:, None]) / s[:, None]), CODE_MIN, CODE_MAX)
        lost = (np.square(weights - (s[:, None] * codes + m[:, None])) * importance).sum(axis=1)
        better = lost < best
        best, scale, offset = (
            np.where(better, new, old) for new, old in ((lost, best), (s, scale), (m, offset))
        )
    return scale, offset
