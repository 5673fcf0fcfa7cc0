"""mxfp4: floats of 4 bits (e2m1) in groups of 32 under powers of two.

    weight[n, k] = 2^exponent[n, g] * e2m1(code[n, k])          g = k // 32
                 = row_scale[n] * (scale[n, g] * multiplicand(code[n, k]))

A code is a sign, two bits of exponent and a bit of fraction: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
Its multiplicand is twice that, an integer. Exponents of a row are held beside the least of them:
scale = 2^(exponent - least), an integer of `scale_bits`, and row_scale = 2^(least - 1). So sums are exact,
and exponents of a row span scale_bits - 2 at most: 6 where scales have 8 bits.

Source: OCP Microscaling Formats (MX) v1.0, sections 5.3.3 (elements) and 6.3 (conversion): the exponent of a
group is floor(log2(its greatest magnitude)) - 2, elements are rounded to nearest, ties to even, and saturate.
An exponent that is farther below the greatest of its row than the field holds is raised to the least that the
field holds. Exponents below -125, whose row scale would be no normal f24, are raised to it.
"""

from itertools import pairwise

import numpy as np
from numpy import ndarray

from streamgen.numbers.weights.group_scales import spread
from streamgen.numbers.weights.weight_format import Rounded, WeightFormat

GROUP = 32
GREATEST_EXPONENT = 2  # of an element
LEAST_EXPONENT = -125  # of a group
DOUBLES = (0, 1, 2, 3, 4, 6, 8, 12)  # twice the magnitudes
MIDDLES = np.array([(a + b) / 4 for a, b in pairwise(DOUBLES)])  # between magnitudes


def _rounded(weight: ndarray, group: int, scale_bits: int, minimum: bool) -> Rounded:
    if not 8 <= scale_bits <= 16:
        raise ValueError(f"scale_bits is {scale_bits}; 8 to 16 are allowed")
    K = weight.shape[1]
    greatest = np.maximum.reduceat(np.abs(weight), np.arange(0, K, group), axis=1)
    some = greatest > 0
    exponents = np.frexp(greatest)[1] - 1 - GREATEST_EXPONENT
    highest = np.where(some, exponents, LEAST_EXPONENT).max(axis=1)
    within = np.maximum(highest - (scale_bits - 2), LEAST_EXPONENT)
    exponents = np.where(some, np.maximum(exponents, within[:, None]), highest[:, None])
    exponents = np.maximum(exponents, LEAST_EXPONENT)
    least = exponents.min(axis=1)
    scale = np.left_shift(1, exponents - least[:, None]).astype(np.int32)
    magnitudes = np.abs(weight) / spread(np.ldexp(1.0, exponents), group, K)
    codes = np.searchsorted(MIDDLES, magnitudes)
    ties = magnitudes == np.append(MIDDLES, np.inf)[codes]
    codes += ties & (codes % 2 == 1)
    codes -= 8 * np.signbit(weight)  # two's complement of the code with its sign as the upper bit
    row_scale = np.where(some.any(axis=1), np.ldexp(1.0, least - 1), 0).astype(np.float32)
    return Rounded(codes.astype(np.int8), scale, None, row_scale)


FORMAT = WeightFormat(
    name="mxfp4",
    title="4-bit floats under powers of two, groups of 32",
    code_bits=4,
    multiplicands=(*DOUBLES, *(-double for double in DOUBLES)),
    groups=(GROUP,),
    round=_rounded,
)
