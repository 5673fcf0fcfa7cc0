"""RMSNorm and LayerNorm of rows, or of each head of a row.

    rms      y = x / sqrt(mean(x^2) + epsilon) · w [+ b]
    layer    y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) · w [+ b]

The kernel's golden model defines the exact result (`kernels.norm`).
"""

from dataclasses import dataclass
from math import gcd
from typing import Any, Literal

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.kernels.norm.norm import NormParams
from streamgen.model.graph.logical import Exact, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.site import Site, Stream
from streamgen.numbers.formats import round_f24


@dataclass(frozen=True, eq=False)
class Norm(Operator):
    """weight, bias: float32 [features]. plus_one: the factor is 1 + weight.

    heads: the number of pieces of a row that are normalised separately, with the same weight of features /
    heads.
    """

    kind: Literal["rms", "layer"]
    weight: np.ndarray
    epsilon: float
    bias: np.ndarray | None = None
    plus_one: bool = False
    heads: int = 1
    row_wise = True

    def __post_init__(self) -> None:
        if self.kind not in ("rms", "layer"):
            raise GraphError(f"there is no norm of kind {self.kind!r}; 'rms' and 'layer' are known")
        if self.weight.ndim != 1 or not self.weight.size:
            raise GraphError(
                f"the weight of a norm has shape {list(self.weight.shape)}; [features] is needed"
            )
        if self.bias is not None and self.bias.shape != self.weight.shape:
            raise GraphError(
                f"a norm has weight {list(self.weight.shape)} and bias {list(self.bias.shape)}; "
                "both must be [features]"
            )
        if not 0 <= self.epsilon < np.inf:
            raise GraphError(f"the epsilon of a norm is {self.epsilon}; it must be finite, 0 or more")
        object.__setattr__(self, "epsilon", float(self.epsilon))  # a numpy scalar would widen float32
        if self.heads < 1:
            raise GraphError(f"heads of a norm is {self.heads}; at least 1 is needed")

    @property
    def padding(self) -> Literal["none", "alike"]:  # type: ignore[override]
        """Heads have their own size, so rows of several heads have no padding."""
        return "alike" if self.heads == 1 else "none"

    def held(self, features: int) -> int:
        return len(self.weight)

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        (x,) = inputs
        if x.features != (needed := self.heads * len(self.weight)):
            raise GraphError(f"a norm of {needed} features is given {x.features}")
        return (x,)

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        x = inputs[0].reshape(len(inputs[0]), self.heads, -1)
        if self.kind == "layer":
            x = x - x.mean(axis=-1, keepdims=True)
        y = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.epsilon)
        y = y * (self.weight.astype(x.dtype) + (1.0 if self.plus_one else 0.0))
        y = y if self.bias is None else y + self.bias.astype(x.dtype)
        return y.reshape(inputs[0].shape)

    def params(self, **sizes: int) -> NormParams:
        """The params of the kernel. sizes: lanes, max_k, max_rows."""
        return NormParams(kind=self.kind, bias=self.bias is not None, plus_one=self.plus_one, **sizes)

    def constants(self) -> dict[str, np.ndarray]:
        """Rows [1, features] of f24 values, by port."""
        parts = {"i_weight": self.weight} | ({} if self.bias is None else {"i_bias": self.bias})
        return {port: round_f24(part)[None] for port, part in parts.items()}

    def exact(self) -> Exact:
        features = len(self.weight)
        params = self.params(lanes=1, max_k=features, max_rows=1 << 24)
        constants: dict[str, Any] = self.constants()
        bounds = {"k": features, "valid_k": features, "epsilon": self.epsilon}

        def compute(run: Run, x: np.ndarray) -> np.ndarray:
            rows = x.reshape(-1, features)
            return params.golden(bounds | {"t": len(rows)}, constants | {"i": rows})["o"].reshape(x.shape)

        return compute

    def bind(self, site: Site, *inputs: Stream) -> tuple[Stream, ...]:
        (x,) = inputs
        valid = len(self.weight)
        rows, k = site.count(x.shape) * self.heads, x.extent // self.heads
        lanes = gcd(site.lanes, k)
        order = site.rows(Shape(k, "one"), lanes)
        walks = [op.constants() for op in site.ops]  # type: ignore[attr-defined]
        constants: dict[str, Any] = {
            port: site.fixed(order, np.stack([of_walk[port] for of_walk in walks]))
            for port in self.constants()
        }
        bounds = {"t": rows, "k": k, "valid_k": valid, "epsilon": self.epsilon, "heads": self.heads}
        params = self.params(lanes=lanes, max_k=k, max_rows=rows)
        return (site.kernel(site.name, params, bounds, i=x, **constants)["o"],)

    def __str__(self) -> str:
        parts = [self.kind, str(len(self.weight) * self.heads)]
        parts += [f"{self.heads} heads"] if self.heads > 1 else []
        parts += ["1 + w"] if self.plus_one else []
        return f"norm[{', '.join(parts + ([] if self.bias is None else ['bias']))}]"
