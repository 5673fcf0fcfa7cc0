"""The definition of a format of weights, as one value."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy import ndarray


class Rounded(NamedTuple):
    """Rows of a weight [N, K] in a format.

    codes: int8 [N, K], two's complement. scale, minimum: int32 [N, ceil(K / group)] or None. row_scale:
    float32 [N] of f24 values.
    """

    codes: ndarray
    scale: ndarray | None
    minimum: ndarray | None
    row_scale: ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightFormat:
    """A format of weights. Its weights are

        weight[n, k] = row_scale[n] * (scale[n, g] * multiplicand(code[n, k]) + minimum[n, g])

    where g = k // group. Scales and minimums are integers, so sums of products are exact in any order.

    name: in configurations and files. title: for help texts.
    code_bits: bits of a code in memory. multiplicands: the integer that each code stands for, indexed by the
    code as an unsigned number; without them a code is its own two's complement integer.
    groups: the possible numbers of weights along K that share a scale; empty: weights have one scale per row.
    minimums: whether groups can have a minimum in addition to the scale.
    round: returns some rows of a weight, float64 [N, K], in this format: (rows, group, scale_bits, minimum).
    group: one of `groups`, or 0. scale_bits: of the integer scales and minimums. minimum: whether groups have
    one.
    keep: keeps codes 0..15 on a 4-bit grid and rounds only scales and minimums: (codes uint8 [N, K], scale,
    minimum [N, groups], scale_bits, minimum: whether groups have one). None: the format cannot do this.
    """

    name: str
    title: str
    code_bits: int
    multiplicands: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()
    minimums: bool = False
    round: Callable[[ndarray, int, int, bool], Rounded]
    keep: Callable[[ndarray, ndarray, ndarray, int, bool], Rounded] | None = None

    def __post_init__(self) -> None:
        if self.multiplicands and len(self.multiplicands) != 1 << self.code_bits:
            raise ValueError(
                f"{self.name} has {len(self.multiplicands)} multiplicands; codes of {self.code_bits} bits "
                f"need {1 << self.code_bits}"
            )

    @property
    def is_narrow(self) -> bool:
        """Whether the codes have so few bits that plain rounding of floats costs language models quality."""
        return self.code_bits < 8

    @property
    def greatest(self) -> int:
        """The greatest magnitude of a multiplicand."""
        return max(map(abs, self.multiplicands), default=1 << self.code_bits - 1)

    def integers(self, codes: ndarray) -> ndarray:
        """The multiplicands of codes, int8 arrays of any shape."""
        if not self.multiplicands:
            return codes
        table = np.array(self.multiplicands, np.int8)
        return table[codes.astype(np.int64) & len(table) - 1]

    def group(self, asked: int) -> int:
        """The number of weights in a group for the requested number: the only one that the format has, or the
        requested one, or 0 for formats without groups. ValueError if the format does not have it."""
        if len(self.groups) > 1 and asked not in self.groups:
            *first, last = self.groups
            raise ValueError(f"group is {asked}; {', '.join(map(str, first))} and {last} are allowed")
        return asked if len(self.groups) > 1 else sum(self.groups)

    def bits(self, *, group: int, scale_bits: int, minimum: bool) -> float:
        """Bits of a weight in memory, with its share of scales and minimums."""
        if not self.groups:
            return float(self.code_bits)
        shared = scale_bits * (1 + (minimum and self.minimums))
        return self.code_bits + shared / self.group(group)
