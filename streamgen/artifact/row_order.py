"""The order in which columns compute the rows of matmuls that read one operand.

Of C columns, column c computes the rows c, c + C, c + 2 C ... of the joined rows of all matmuls.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class RowOrder:
    """rows: of each matmul, with padding. columns: their number. rounds: the number of pieces into which the
    rows of each matmul are split; the first pieces of all matmuls come first. alternate: whether the rows of
    two matmuls alternate, so that half of the columns compute each of them."""

    rows: tuple[int, ...]
    columns: int
    rounds: int = 1
    alternate: bool = False

    def joined(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """The rows of all matmuls in their order. parts: the rows of each matmul."""
        pieces = [np.split(part, self.rounds) for part in parts]
        whole = np.concatenate([piece for several in zip(*pieces, strict=True) for piece in several])
        if not self.alternate:
            return whole
        order = np.arange(len(whole)).reshape(2, -1, self.columns // 2).swapaxes(0, 1).reshape(-1)
        return whole[order]

    def places(self, number: int) -> np.ndarray:
        """The places of the rows of a matmul among the joined rows, by its number: int64 [rows]."""
        marks = [np.full(count, -1) for count in self.rows]
        marks[number] = np.arange(self.rows[number])
        joined = self.joined(marks)
        places = np.empty(self.rows[number], np.int64)
        places[joined[joined >= 0]] = np.flatnonzero(joined >= 0)
        return places
