"""w8: int8 codes -127..127 under one f24 per row, weight[n, k] = row_scale[n] * code[n, k]."""

import numpy as np
from numpy import ndarray

from streamgen.numbers import formats
from streamgen.numbers.weights.group_scales import divisor, nearest
from streamgen.numbers.weights.weight_format import Rounded, WeightFormat

GREATEST = 127


def _rounded(weight: ndarray, group: int, scale_bits: int, minimum: bool) -> Rounded:
    row_scale = formats.round_f24(np.abs(weight).max(axis=1) / GREATEST)
    codes = nearest(weight / divisor(row_scale)[:, None], -GREATEST, GREATEST)
    return Rounded(codes, None, None, row_scale)


FORMAT = WeightFormat(name="w8", title="8-bit codes, one scale a row", code_bits=8, round=_rounded)
