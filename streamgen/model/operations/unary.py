"""Functions of each element."""

from dataclasses import dataclass, replace

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.gateware.functions import FUNCTIONS
from streamgen.kernels.elementwise import UNARY_FUNCTIONS, UnaryParams
from streamgen.model.graph.logical import Exact, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.site import Site, Stream, of_itensor


@dataclass(frozen=True)
class Unary(Operator):
    """function: the name of one of `streamgen.gateware.functions`."""

    function: str
    row_wise = True
    padding = "alike"

    def __post_init__(self) -> None:
        if self.function not in FUNCTIONS:
            raise GraphError(f"there is no unary function {self.function!r}; {', '.join(FUNCTIONS)}")

    @property
    def elementwise(self) -> str:
        return self.function

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        return inputs

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        return FUNCTIONS[self.function].reference(inputs[0])

    def exact(self) -> Exact:
        unit = UNARY_FUNCTIONS[self.function]
        return lambda run, x: unit.golden(x).astype(np.float32)

    def bind(self, site: Site, *inputs: Stream) -> tuple[Stream, ...]:
        (x,) = inputs
        order = site.order(x)
        params = UnaryParams(function=self.function, **of_itensor(order))
        y = site.kernel(site.name, params, {"itensor": order}, i=x)["o"]
        return (replace(y, by_rows=x.by_rows),)

    def __str__(self) -> str:
        return self.function
