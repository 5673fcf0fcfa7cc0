"""Each element combined with one number: i · c, or soft-capped, c · tanh(i / c)."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.kernels.elementwise import ScalarParams
from streamgen.model.graph.logical import Exact, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.site import Site, Stream, of_itensor
from streamgen.numbers.formats import round_f24


@dataclass(frozen=True)
class Scalar(Operator):
    """function: "scale" or "soft_cap". constant: c."""

    function: Literal["scale", "soft_cap"]
    constant: float
    row_wise = True
    padding = "alike"

    def __post_init__(self) -> None:
        if self.function not in ("scale", "soft_cap"):
            raise GraphError(
                f"there is no scalar function {self.function!r}; 'scale' and 'soft_cap' are known"
            )
        rounded = float(round_f24(np.array(self.constant)))
        if not np.isfinite(rounded):
            raise GraphError(f"the constant of {self.function} is {self.constant}; a finite f24 is needed")
        if self.function == "soft_cap" and not 2.0**-126 <= rounded <= 2.0**126:
            raise GraphError(f"the constant of soft_cap is {self.constant}; 2^-126 to 2^126 are allowed")
        object.__setattr__(self, "constant", float(self.constant))  # a numpy scalar would widen float32

    @property
    def elementwise(self) -> str:
        return self.function

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        return inputs

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        return x * self.constant if self.function == "scale" else self.constant * np.tanh(x / self.constant)

    def exact(self) -> Exact:
        params, bounds = (
            ScalarParams(function=self.function, lanes=1, max_tokens=1),
            {"constant": self.constant},
        )
        return lambda run, x: params.golden(bounds, {"i": x})["o"]

    def bind(self, site: Site, *inputs: Stream) -> tuple[Stream, ...]:
        (x,) = inputs
        order = site.order(x)
        params = ScalarParams(function=self.function, **of_itensor(order))
        y = site.kernel(site.name, params, {"itensor": order, "constant": self.constant}, i=x)["o"]
        return (replace(y, by_rows=x.by_rows),)

    def __str__(self) -> str:
        return f"{self.function}[{self.constant:g}]"
