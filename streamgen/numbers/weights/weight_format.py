"""What is said of a format of weights, in one value."""

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

    where g = k // group, with integer scales and minimums, so that sums of products are exact whatever their
    order is.

    name: in configurations and files. title: what a help text says of it.
    code_bits: of a code in memory. multiplicands: the integer that each code stands for, by the code as an
    unsigned number; without them a code is its own two's complement integer.
    groups: how many weights along K can share a scale; none: weights have one scale a row.
    minimums: whether groups can have a minimum beside the scale.
    round: some rows of a weight, float64 [N, K], in this format: (rows, group, scale_bits, minimum). group:
    one of `groups`, or 0. scale_bits: of the integer scales and minimums. minimum: whether groups have one.
    keep: codes 0..15 on a 4-bit grid as they are, only scales and minimums rounded: (codes uint8 [N, K],
    scale, minimum [N, groups], scale_bits, minimum: whether groups have one). None: the format cannot.
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
        """Whether codes are so few that rounding floats as they are costs language models quality."""
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
        """The group of weights for which a group is asked: the only one that the format has, or that, or 0
        for weights without groups. ValueError for one that the format does not have."""
        if len(self.groups) > 1 and asked not in self.groups:
            *first, last = self.groups
            raise ValueError(f"group is {asked}; {', '.join(map(str, first))} and {last} are allowed")
        return asked if len(self.groups) > 1 else sum(self.groups)

    def bits(self, *, group: int, scale_bits: int, minimum: bool) -> float:
        """Bits that a weight takes in memory, with its share of scales and minimums."""
        if not self.groups:
            return float(self.code_bits)
        shared = scale_bits * (1 + (minimum and self.minimums))
        return self.code_bits + shared / self.group(group)
