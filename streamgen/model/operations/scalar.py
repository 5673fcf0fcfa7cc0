"""Each element combined with one number c: a product, a soft-cap, the greater or lesser of both, a choice."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.base.wording import alternatives
from streamgen.kernels.elementwise import ScalarParams
from streamgen.model.graph.logical import Exact, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.site import Site, Stream, of_itensor
from streamgen.numbers.formats import round_f24

SCALARS: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "scale": lambda x, c: x * c,
    "soft_cap": lambda x, c: c * np.tanh(x / c),
    "maximum": lambda x, c: np.maximum(x, c),
    "minimum": lambda x, c: np.minimum(x, c),
    "leaky": lambda x, c: np.where(x > 0, x, x * c),
    "threshold": lambda x, c: np.where((x > c) | np.isnan(x), x, 0.0 * c),
    "hardshrink": lambda x, c: np.where((np.abs(x) > c) | np.isnan(x), x, 0.0 * c),
}
"""The functions by name, of a float array and c, in the floats of the array."""


@dataclass(frozen=True)
class Scalar(Operator):
    """function: one of SCALARS. constant: c."""

    function: str
    constant: float
    row_wise = True
    padding = "alike"

    def __post_init__(self) -> None:
        if self.function not in SCALARS:
            raise GraphError(
                f"there is no scalar function {self.function!r}; it must be {alternatives(SCALARS)}"
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
        return SCALARS[self.function](x, self.constant)

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
