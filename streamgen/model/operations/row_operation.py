"""Base class for operations of other packages whose rows are independent: each row of the result depends on
the same row of the inputs.

A subclass defines its float64 reference and the kernel that computes rows; everything else follows:

    @dataclass(frozen=True)
    class GateRows(RowOperation):
        limit: float

        def compute(self, x):                     # [rows, features], floats
            return np.where(x[:, :1] > self.limit, x, 0)

        def kernel(self, rows):                   # the order of tiles of i
            params = GateRowsParams(lanes=rows.element_shape[1], max_rows=rows.shape[0], ...)
            return params, {"itensor": rows, "limit": self.limit}

Fields are those arguments of the torch operator that are not inputs, by name: numbers, texts, tuples, and
float32 arrays of parameters. A subclass with arrays is a dataclass with eq=False. The kernel's golden model
defines the exact result.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from math import gcd
from typing import Any, ClassVar, Literal

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.contract import Bounds, KernelParams, missing_methods
from streamgen.itensor import ITensor
from streamgen.model.graph.logical import Exact, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.site import Site, Stream
from streamgen.numbers.formats import round_f24


class RowOperation(Operator):
    """See the module.

    ports: input ports of the kernel, one for each input in order; the result comes at `o`. by_element:
    whether each element of the result depends only on the elements at its place. The kernel then takes tiles
    in any order, and rows with their padding. Fields of the kernel's params with largest sizes are named
    `max_...`: hardware that several phases share gets the largest size of all its uses.
    """

    row_wise = True
    by_element: ClassVar[bool] = False
    ports: ClassVar[tuple[str, ...]] = ("i",)

    def held(self, features: int) -> int:
        return 0 if self.by_element else features

    @abstractmethod
    def compute(self, *inputs: np.ndarray) -> np.ndarray:
        """The result [rows, features] for inputs [rows, features], without any rounding, in the floats of the
        inputs."""

    @abstractmethod
    def kernel(self, *rows: ITensor) -> tuple[KernelParams, Bounds]:
        """The kernel for inputs in these orders: f24, row after row in tiles of (1, lanes), where lanes
        divides the number of features of every input."""

    def features(self, *inputs: int) -> int:
        """The number of features of the result; GraphError if the inputs do not fit."""
        if len(set(inputs)) > 1:
            raise GraphError(f"{self} is given rows of {', '.join(map(str, inputs))} features")
        return inputs[0]

    def constants(self) -> Mapping[str, np.ndarray]:
        """float32 [features] for each further input port of the kernel, where it arrives as f24 values."""
        return {}

    @property
    def padding(self) -> Literal["alike", "own"]:  # type: ignore[override]
        return "alike" if self.by_element else "own"

    @property
    def arity(self) -> int:  # type: ignore[override]
        return len(self.ports)

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        if {x.kind for x in inputs} != {"real"} or len({x.rows for x in inputs}) > 1:
            raise GraphError(f"{self} is given {', '.join(map(str, inputs))}")
        return (replace(inputs[0], features=self.features(*(x.features for x in inputs))),)

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        result = self.compute(*inputs)
        wanted = len(inputs[0]), self.features(*(x.shape[1] for x in inputs))
        if result.shape != wanted:
            raise GraphError(f"compute of {self} gives an array {result.shape}; {wanted} is needed")
        return result.astype(run.dtype, copy=False)

    def exact(self) -> Exact:
        constants = self._fixed_rows()

        def compute(run: Run, *inputs: np.ndarray) -> np.ndarray:
            params, bounds = self._kernel([_order(*x.shape) for x in inputs])
            given = dict(zip(self.ports, inputs, strict=True)) | constants
            return params.golden(bounds, given)["o"]

        return compute

    def bind(self, site: Site, *inputs: Stream) -> tuple[Stream, ...]:
        """Rows without padding, in tokens whose width divides each; by elements, in the order of the first
        input."""
        features = self.features(*(x.shape.features for x in inputs))
        if self.by_element:
            taken = [site.fit(x, inputs[0].extent) for x in inputs]
            orders = [site.order(inputs[0])] * len(inputs)
        else:
            lanes = gcd(site.lanes, features, *(x.shape.features for x in inputs))
            taken = [site.fit(x, x.shape.features) for x in inputs]
            orders = [site.rows(x.shape, lanes) for x in inputs]
        params, bounds = self._kernel(orders)
        walks = [op._fixed_rows() for op in site.ops]  # type: ignore[attr-defined]
        fixed: dict[str, Any] = {
            port: site.fixed(params.inputs(bounds)[port], np.stack([walk[port] for walk in walks]))
            for port in walks[0]
        }
        given: dict[str, Any] = dict(zip(self.ports, taken, strict=True))
        y = site.kernel(site.name, params, bounds, **given, **fixed)["o"]
        by_rows = inputs[0].by_rows if self.by_element else True
        y = replace(y, shape=replace(inputs[0].shape, features=features), by_rows=by_rows)
        return (site.fit(y, site.extent),)

    def _kernel(self, orders: list[ITensor]) -> tuple[KernelParams, Bounds]:
        params, bounds = self.kernel(*orders)
        if missing := missing_methods(params):
            raise GraphError(f"the kernel of {self}: {type(params).__name__} has no {', '.join(missing)}")
        return params, bounds

    def _fixed_rows(self) -> dict[str, np.ndarray]:
        """Rows [1, features] of f24 values, by port."""
        return {port: round_f24(row)[None] for port, row in self.constants().items()}


def _order(rows: int, features: int) -> ITensor:
    """An order row after row, element by element; the golden model does not depend on lanes."""
    return ITensor((1, 1), "f24", (rows, features), (1, 1), ((0,), (1,)))
