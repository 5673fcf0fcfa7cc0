"""Torch operators of a library of one's own, and operations for them that use kernels of the house."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from streamgen.base.errors import GraphError
from streamgen.contract import Bounds, KernelParams
from streamgen.itensor import ITensor, broadcast
from streamgen.kernels.elementwise import BinaryParams
from streamgen.kernels.moves.fit_rows import FitRowsParams
from streamgen.kernels.softmax.softmax import SoftmaxParams
from streamgen.model.operations.row_operation import RowOperation
from streamgen.model.operations.site import of_itensor

__all__ = ["OPERATIONS", "Half", "Product", "Soft", "Sum", "half", "product", "soft", "total"]


@torch.library.custom_op("streamgen_test::soft", mutates_args=())
def soft(x: torch.Tensor) -> torch.Tensor:
    """A softmax by another name."""
    return torch.softmax(x, -1)


@torch.library.custom_op("streamgen_test::half", mutates_args=())
def half(x: torch.Tensor, first: int = 0) -> torch.Tensor:
    """Half of the features."""
    return x[..., first : first + x.shape[-1] // 2].clone()


@torch.library.custom_op("streamgen_test::product", mutates_args=())
def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Times a parameter."""
    return x * weight


@torch.library.custom_op("streamgen_test::total", mutates_args=())
def total(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + b


for one in (soft, product, total):
    one.register_fake(lambda x, *_: torch.empty_like(x))
half.register_fake(lambda x, first=0: x.new_empty(*x.shape[:-1], x.shape[-1] // 2))


@dataclass(frozen=True)
class Soft(RowOperation):
    def compute(self, x: np.ndarray) -> np.ndarray:
        terms = np.exp(x - x.max(axis=1, keepdims=True))
        return terms / terms.sum(axis=1, keepdims=True)

    def kernel(self, rows: ITensor) -> tuple[KernelParams, Bounds]:
        count, features = rows.shape
        params = SoftmaxParams(lanes=rows.element_shape[1], max_length=features)
        return params, {"rows": count, "length": features}


@dataclass(frozen=True)
class Half(RowOperation):
    """Another number of features; first has a default."""

    first: int

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError(f"first of a half is {self.first}; 0 or more is needed")

    def features(self, x: int) -> int:
        if x % 2 or self.first > x // 2:
            raise GraphError(f"half of {x} features from {self.first} on cannot be")
        return x // 2

    def compute(self, x: np.ndarray) -> np.ndarray:
        return x[:, self.first : self.first + x.shape[1] // 2]

    def kernel(self, rows: ITensor) -> tuple[KernelParams, Bounds]:
        count, features = rows.shape
        fitted = self.features(features)
        params = FitRowsParams(dtype="f24", lanes=1, max_tokens=count * features)
        return params, {"rows": count, "features": features, "fitted": fitted, "first": self.first}


@dataclass(frozen=True, eq=False)
class Product(RowOperation):
    """A constant by feature, in any layout."""

    weight: np.ndarray
    by_element = True

    def compute(self, x: np.ndarray) -> np.ndarray:
        return x * self.weight.reshape(-1).astype(x.dtype)

    def constants(self) -> Mapping[str, np.ndarray]:
        return {"i_b": self.weight.reshape(-1)}

    ports = ("i_a",)

    def kernel(self, rows: ITensor) -> tuple[KernelParams, Bounds]:
        params = BinaryParams(operation="multiply", **of_itensor(rows))
        return params, {"itensor": rows, "b": broadcast(rows)}


@dataclass(frozen=True)
class Sum(RowOperation):
    """Two inputs."""

    by_element = True
    ports = ("i_a", "i_b")

    def compute(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a + b

    def kernel(self, a: ITensor, b: ITensor) -> tuple[KernelParams, Bounds]:
        return BinaryParams(operation="add", **of_itensor(a)), {"itensor": a, "b": b}


OPERATIONS = {
    "streamgen_test.soft": Soft,
    "streamgen_test.half": Half,
    "streamgen_test.product": Product,
    "streamgen_test::total": Sum,
}
