"""The k greatest elements of a row, in descending order, and their places; among equal elements the first
place wins.

NaN is the greatest of all, as in torch.
"""

from dataclasses import dataclass, replace

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.kernels.top_k import TopKParams
from streamgen.model.graph.logical import Exact, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.site import Site, Stream, of_stream


@dataclass(frozen=True)
class TopK(Operator):
    """k: the number of elements."""

    k: int = 1
    results = ("values", "indices")
    row_wise = True
    padding = "own"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise GraphError(f"k of a top-k is {self.k}; at least 1 is needed")

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        (x,) = inputs
        if self.k > x.features:
            raise GraphError(f"the {self.k} greatest of {x.features} features do not exist")
        return replace(x, features=self.k), replace(x, features=self.k, kind="ids")

    def reference(self, run: Run, *inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        (x,) = inputs
        order = np.argsort(np.where(np.isnan(x), -np.inf, -x), axis=1, kind="stable")[:, : self.k]
        return np.take_along_axis(x, order, axis=1), order

    def exact(self) -> Exact:
        def compute(run: Run, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            rows, length = x.shape
            params = TopKParams(lanes=1, max_length=length, max_k=self.k)
            results = params.golden({"rows": rows, "length": length, "k": self.k}, {"i": x})
            return results["o_values"], results["o_indices"]

        return compute

    def bind(self, site: Site, *inputs: Stream) -> tuple[Stream, ...]:
        lanes, length = of_stream(inputs[0])["lanes"], inputs[0].shape.features
        x = site.fit(inputs[0], -(-length // lanes) * lanes)
        params = TopKParams(lanes=lanes, max_length=length, max_k=self.k)
        bounds = {"rows": site.count(x.shape), "length": length, "k": self.k}
        ports = site.kernel(site.name, params, bounds, i=x)
        return tuple(ports[f"o_{result}"] for result in self.results)

    def __str__(self) -> str:
        return f"top_k[{self.k}]"
