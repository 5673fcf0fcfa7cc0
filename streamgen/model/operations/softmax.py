"""Softmax over the features of a row: exp(x - max) / sum(exp(x - max)).

The kernel's golden model defines the exact result (`kernels.softmax`).
"""

from dataclasses import dataclass

import numpy as np

from streamgen.kernels.softmax.quick_softmax import MOST_LANES, QuickSoftmaxParams
from streamgen.kernels.softmax.softmax import SoftmaxParams
from streamgen.model.graph.logical import Exact, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.site import Site, Stream, of_stream


@dataclass(frozen=True)
class Softmax(Operator):
    """Softmax over all features of a row."""

    row_wise = True
    padding = "own"

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        return inputs

    def held(self, features: int) -> int:
        return features

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        terms = np.exp(x - x.max(axis=1, keepdims=True))
        return terms / terms.sum(axis=1, keepdims=True)

    def exact(self) -> Exact:
        def compute(run: Run, x: np.ndarray) -> np.ndarray:
            rows, length = x.shape
            params = SoftmaxParams(lanes=1, max_length=length)
            return params.golden({"rows": rows, "length": length}, {"i": x})["o"]

        return compute

    def bind(self, site: Site, *inputs: Stream) -> tuple[Stream, ...]:
        """Rows padded to whole tokens, and no further. Where the cycles of a row count, a row of one token
        has a kernel of its own."""
        (x,) = inputs
        lanes, length = of_stream(x)["lanes"], x.shape.features
        params: SoftmaxParams | QuickSoftmaxParams = SoftmaxParams(lanes=lanes, max_length=length)
        bounds = {"rows": site.count(x.shape), "length": length}
        if site.quick and length <= lanes <= MOST_LANES:
            params = QuickSoftmaxParams(lanes=lanes, length=length, max_rows=site.most)
            bounds = {"rows": bounds["rows"]}
        y = site.kernel(site.name, params, bounds, i=site.fit(x, -(-length // lanes) * lanes))["o"]
        return (site.fit(Stream(y.port, y.itensor, x.shape), site.extent),)

    def __str__(self) -> str:
        return "softmax"
