"""Rearrange: features of a row at other places, once, several times or not at all, and numbers."""

from dataclasses import dataclass, replace

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.kernels.moves.rearrange import LONGEST, RearrangeParams
from streamgen.model.graph.logical import Exact, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.site import Site, Stream
from streamgen.numbers.formats import round_f24


@dataclass(frozen=True)
class Rearrange(Operator):
    """places: by feature of the result, the feature of the input, or -1 - k for numbers[k]."""

    places: tuple[int, ...]
    numbers: tuple[float, ...] = ()
    row_wise = True
    padding = "own"

    def __post_init__(self) -> None:
        if not 1 <= len(self.places) <= LONGEST:
            raise GraphError(f"{len(self.places)} features are put in order; 1 to {LONGEST} are allowed")
        if min(self.places) < -len(self.numbers):
            raise GraphError(f"place {min(self.places)} is one of {len(self.numbers)} numbers")

    def held(self, features: int) -> int:
        return features

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        (x,) = inputs
        if max(self.places) >= x.features or x.features > LONGEST or x.kind == "ids":
            raise GraphError(f"{self} up to place {max(self.places)} is given {x}")
        return (replace(x, features=len(self.places)),)

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        return self._moved(inputs[0], np.array([*self.numbers, 0.0], run.dtype))

    def exact(self) -> Exact:
        numbers = round_f24(np.array([*self.numbers, 0.0], np.float32))
        return lambda run, x: self._moved(x, numbers)

    def bind(self, site: Site, *inputs: Stream) -> tuple[Stream, ...]:
        """Rows without padding, element by element."""
        (x,) = inputs
        rows, features = site.count(x.shape), x.shape.features
        numbers = tuple(round_f24(np.array(self.numbers, np.float32)).tolist())
        params = RearrangeParams(features=features, places=self.places, numbers=numbers, max_rows=rows)
        y = site.kernel(site.name, params, {"rows": rows}, i=site.fit(x, features))["o"]
        shape = replace(x.shape, features=len(self.places))
        return (site.fit(Stream(y.port, y.itensor, shape), site.extent),)

    def _moved(self, x: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        places = np.array(self.places)
        moved = x[:, np.maximum(places, 0)]
        moved[:, places < 0] = numbers[-1 - places[places < 0]]
        return moved

    def __str__(self) -> str:
        return f"rearrange[{len(self.places)}]"
