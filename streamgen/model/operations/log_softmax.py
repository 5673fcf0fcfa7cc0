"""Log-softmax over the features of a row: x - max - log(sum(exp(x - max))).

The kernel's golden model defines the exact result (`kernels.softmax.log_softmax`).
"""

from dataclasses import dataclass

import numpy as np

from streamgen.contract import Bounds, KernelParams
from streamgen.itensor import ITensor
from streamgen.kernels.softmax.log_softmax import LogSoftmaxParams
from streamgen.model.operations.row_operation import RowOperation


@dataclass(frozen=True)
class LogSoftmax(RowOperation):
    """Log-softmax over all features of a row."""

    def compute(self, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        with np.errstate(invalid="ignore"):  # infinite rows
            differences = x - x.max(axis=1, keepdims=True)
            return differences - np.log(np.exp(differences).sum(axis=1, keepdims=True))

    def kernel(self, *rows: ITensor) -> tuple[KernelParams, Bounds]:
        (order,) = rows
        count, features = order.shape
        params = LogSoftmaxParams(lanes=order.element_shape[1], max_length=features)
        return params, {"rows": count, "length": features}

    def __str__(self) -> str:
        return "log_softmax"
