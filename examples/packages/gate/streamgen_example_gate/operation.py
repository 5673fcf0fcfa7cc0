"""What `streamgen_example::gate_rows` is in hardware; the entry point in pyproject.toml names this class."""

from dataclasses import dataclass

import numpy as np

from streamgen.contract import Bounds
from streamgen.itensor import ITensor
from streamgen.model.operations.row_operation import RowOperation
from streamgen_example_gate.kernel import GateRowsParams

__all__ = ["GateRows"]


@dataclass(frozen=True)
class GateRows(RowOperation):
    """limit: the argument of the operator of that name."""

    limit: float

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.where(x[:, :1] > self.limit, x, 0)

    def kernel(self, rows: ITensor) -> tuple[GateRowsParams, Bounds]:
        count, features = rows.shape
        lanes = rows.element_shape[1]
        params = GateRowsParams(lanes=lanes, max_rows=count, max_row_tokens=features // lanes)
        return params, {"rows": count, "features": features, "limit": self.limit}

    def __str__(self) -> str:
        return f"gate_rows[{self.limit:g}]"
