"""w4: codes -8..7 in groups, with an integer scale and, by default, an integer minimum per group.

    weight[n, k] = row_scale[n] * (scale[n, g] * code[n, k] + minimum[n, g])     g = k // group

Scales and minimums are two's complement integers of `scale_bits` bits that share one f24 per output row, r =
max(|scale|, |minimum|) / (2^(scale_bits - 1) - 1). A weight with its own 4-bit grid (codes 0..15, scale d,
minimum m, as in a GGUF Q4_1 tensor) keeps its codes. Centring them, code q - 8 and minimum m + 8 d, makes the
minimum small, so that 8 bits are enough for it.
"""

import numpy as np
from numpy import ndarray

from streamgen.numbers.weights.group_scales import divisor, nearest, share, spread
from streamgen.numbers.weights.weight_format import Rounded, WeightFormat

CODE_MIN, CODE_MAX = -8, 7
CENTRE = 8
GROUPS = (32, 64, 128)
STRETCHES = np.linspace(1.0, 1.25, 65)[1:]  # of a row scale: which steps suit a row best is chance


def _rounded(weight: ndarray, group: int, scale_bits: int, minimum: bool) -> Rounded:
    """Fit groups from least to greatest weight or, without minimums, around zero.

    A symmetric group maps the extreme of greater magnitude to -8 or beyond no code, so its scale may be
    negative. Codes are chosen under the rounded scale and minimum, not the fitted ones. Rounding of this kind
    raised the perplexity of SmolLM2-135M by 50 % and that of Gemma 3 270M by 90 % (docs/numbers.md); w8
    costs almost nothing.
    """
    K = weight.shape[1]
    starts = np.arange(0, K, group)
    low = np.minimum.reduceat(weight, starts, axis=1)
    high = np.maximum.reduceat(weight, starts, axis=1)
    if minimum:
        fitted = (high - low) / (CODE_MAX - CODE_MIN)
        centre = low - CODE_MIN * fitted
    else:
        sign = np.where(high > -low, -1.0, 1.0)
        near, far = np.minimum(np.abs(low), np.abs(high)), np.maximum(np.abs(low), np.abs(high))
        opposite = np.where(low * high < 0, near, 0.0)
        fitted = sign * np.maximum(far / -CODE_MIN, opposite / CODE_MAX)
        centre = None
    scale, minimums, row_scale = share(fitted, centre, scale_bits)
    scale = np.where(scale == 0, np.sign(fitted), scale).astype(np.int32)  # a step too wide beats none
    offset = 0.0 if minimums is None else spread(minimums, group, K)
    levels = weight / divisor(row_scale)[:, None]
    levels -= offset
    levels /= spread(divisor(scale), group, K)
    return Rounded(nearest(levels, CODE_MIN, CODE_MAX), scale, minimums, row_scale)


def centred(scale: ndarray, minimum: ndarray) -> ndarray:
    """Minimums for centred codes, float64."""
    centre: ndarray = minimum.astype(np.float64) + CENTRE * scale.astype(np.float64)
    return centre


def _kept(codes: ndarray, scale: ndarray, minimum: ndarray, scale_bits: int, minimums: bool) -> Rounded:
    """A few rows of a grid: its centred codes, under the one of several row scales that loses the least."""
    fitted = scale.astype(np.float64)
    centre = centred(scale, minimum) if minimums else None
    codes = (codes.astype(np.int16) - CENTRE).astype(np.int8)
    groups = codes.reshape(*fitted.shape, -1).astype(np.int32)
    sums, squares = groups.sum(axis=2), np.square(groups).sum(axis=2)

    def lost(scale: ndarray, minimum: ndarray | None, row_scale: ndarray) -> ndarray:
        """The sum of the squared errors of the weights of each row: of (a * code + b)^2, from sums
        of codes."""
        row = row_scale.astype(np.float64)[:, None]
        a = fitted - row * scale
        found: ndarray = a * a * squares
        if centre is not None and minimum is not None:
            b = centre - row * minimum
            found += 2 * a * b * sums + groups.shape[2] * b * b
        return found.sum(axis=1)

    best = share(fitted, centre, scale_bits)
    least = lost(*best)
    for stretch in STRETCHES:
        tried = share(fitted, centre, scale_bits, stretch)
        losing = lost(*tried)
        better = losing < least
        least[better] = losing[better]
        for held, new in zip(best, tried, strict=True):
            if held is not None and new is not None:
                held[better] = new[better]
    return Rounded(codes, *best)


FORMAT = WeightFormat(
    name="w4",
    title="4-bit codes in groups",
    code_bits=4,
    groups=GROUPS,
    minimums=True,
    round=_rounded,
    keep=_kept,
)
