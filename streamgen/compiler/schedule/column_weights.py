"""The weights of columns that compute matmuls of one operand: made column by column when they are written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamgen.artifact.row_order import RowOrder
from streamgen.artifact.weight_layout import WeightLayout
from streamgen.compiler.lower.columns import column_tensors
from streamgen.model.graph.late import LateArray
from streamgen.model.graph.logical import Matmul
from streamgen.numbers.formats import round_f24


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnWeights:
    """walks: the matmuls of each walk. order: of their rows. width: elements of a row, with padding. layout:
    of a column. bias: whether the columns add biases."""

    walks: Sequence[Sequence[Matmul]]
    order: RowOrder
    width: int
    layout: WeightLayout
    bias: bool = False

    @cached_property
    def columns(self) -> tuple[LateArray, ...]:
        """The beats of each column: uint8 [walks, beats, 64]."""
        shape = len(self.walks), *self.layout.order.shape
        return tuple(LateArray(shape, np.uint8, self, column) for column in range(self.order.columns))

    def of_walk(self, walk: int) -> Callable[[int], np.ndarray]:
        """The beats of a walk by column, uint8 [beats, 64]. The weights are read at once."""
        parts = [
            column_tensors(op.integers.read(), rows, self.width, self._bias(op))
            for op, rows in zip(self.walks[walk], self.order.rows, strict=True)
        ]
        joined = {name: self.order.joined([part[name] for part in parts]) for name in parts[0]}
        count = self.order.columns

        def column(number: int) -> np.ndarray:
            return self.layout.pack(**{name: tensor[number::count] for name, tensor in joined.items()})

        return column

    def _bias(self, op: Matmul) -> np.ndarray | None:
        """The values that the columns add to the rows of a matmul; -0 for a matmul without a bias, because
        adding it changes no value. None if the columns add none."""
        if not self.bias:
            return None
        return np.full(op.extents[0], -0.0, np.float32) if op.bias is None else round_f24(op.bias)
