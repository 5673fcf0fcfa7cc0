"""Rounding of weights to 4 bits that makes up for its own errors on the inputs that a matmul meets.

Columns are rounded one after the other; what a column loses on these inputs is made good, as far as can be,
by the columns that are not rounded yet. Source: GPTQ (Frantar et al., arXiv 2210.17323), with the integer
scales and minimums of `numbers.quantisation`: a group is fitted when its turn comes, to what its weights have
become, in multiples of the row scale that the weights had before.

    minimise |X w - X q|^2 for each row w        H = X^T X, the inputs' second moments
    H^-1 = U^T U, U upper triangular             w[j] -= (w[k] - q[k]) / U[k,k] * U[k,j] for j > k
"""

import numpy as np

from streamgen.numbers.quantisation import (
    CODE_MAX,
    CODE_MIN,
    QuantisedWeight,
    quantise_w4,
)

__all__ = ["quantise_w4_on"]

DAMPING = 0.01  # of the mean second moment, so that H can be inverted
SHRINKS = np.linspace(1.0, 0.7, 7)  # of the range of a group: a few far weights may cost all others
LEVELS = CODE_MAX - CODE_MIN


def quantise_w4_on(
    weight: np.ndarray,
    moments: np.ndarray,
    *,
    group: int = 32,
    scale_bits: int = 8,
    symmetric: bool = False,
) -> QuantisedWeight:
    """The weight, float [N, K], on a 4-bit grid that loses little on inputs of these moments.

    moments: float64 [K, K], the sum of x^T x over rows of inputs. The other arguments and the errors are
    those of `quantise_w4`; ValueError too for moments of another shape or that are not finite.
    """
    K = weight.shape[1]
    if moments.shape != (K, K) or not np.isfinite(moments).all():
        raise ValueError(f"moments are {list(moments.shape)}; finite ones of [{K}, {K}] are needed")
    plain = quantise_w4(weight, group=group, scale_bits=scale_bits, symmetric=symmetric)
    upper = _upper(moments)
    importance = 1 / np.diag(upper) ** 2
    row_scale = plain.row_scale.astype(np.float64)
    divisor = np.where(row_scale == 0, 1, row_scale)[:, None]
    left = np.where(row_scale[:, None] == 0, 0, weight.astype(np.float64) / divisor)
    codes, top = np.empty(weight.shape, np.int8), 2 ** (scale_bits - 1) - 1
    scales, minimums = [], []
    for first in range(0, K, group):
        columns = slice(first, min(first + group, K))
        scale, minimum = _fitted(left[:, columns], importance[columns], top, symmetric)
        errors = np.empty_like(left[:, columns])
        for k in range(columns.start, columns.stop):
            levels = np.rint((left[:, k] - minimum) / scale)
            codes[:, k] = np.clip(levels, CODE_MIN, CODE_MAX)
            error = (left[:, k] - (scale * codes[:, k] + minimum)) / upper[k, k]
            left[:, k + 1 : columns.stop] -= error[:, None] * upper[k, k + 1 : columns.stop]
            errors[:, k - first] = error
        left[:, columns.stop :] -= errors @ upper[columns, columns.stop :]
        scales.append(scale)
        minimums.append(minimum)
    scale, minimum = (np.stack(part, axis=1).astype(np.int32) for part in (scales, minimums))
    return QuantisedWeight(codes, scale, None if symmetric else minimum, plain.row_scale, "w4", group)


def _upper(moments: np.ndarray) -> np.ndarray:
    """U of the inverse of the damped moments."""
    diagonal = np.diag(moments)
    damping = DAMPING * float(diagonal.mean()) or 1.0
    inverse = np.linalg.inv(moments + damping * np.eye(len(moments)))
    lower: np.ndarray = np.linalg.cholesky((inverse + inverse.T) / 2)
    return lower.T


def _fitted(
    weights: np.ndarray, importance: np.ndarray, top: int, symmetric: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Integer scale and minimum of a group of each row, [N] each: the shrunk range that loses least."""
    low, high = weights.min(axis=1), weights.max(axis=1)
    best = np.full(len(weights), np.inf)
    scale, minimum = np.ones(len(weights)), np.zeros(len(weights))
    for shrink in SHRINKS:
        if symmetric:
            s = np.maximum(-low / -CODE_MIN, high / CODE_MAX) * shrink
        else:
            s = (high - low) * shrink / LEVELS
        s = np.clip(np.rint(s), 1, top)
        m = np.zeros_like(s)
        if not symmetric:
            m = np.clip(np.rint((low + high) / 2 - s * (CODE_MIN + CODE_MAX) / 2), -top, top)
        codes = np.clip(np.rint((weights - m[:, None]) / s[:, None]), CODE_MIN, CODE_MAX)
        lost = (np.square(weights - (s[:, None] * codes + m[:, None])) * importance).sum(axis=1)
        better = lost < best
        best, scale, minimum = (
            np.where(better, new, old) for new, old in ((lost, best), (s, scale), (m, minimum))
        )
    return scale, minimum
