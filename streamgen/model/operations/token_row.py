"""TokenRow: the row of the first or of the last token of a sequence."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.kernels.moves.take_rows import TakeRowsParams
from streamgen.model.graph.logical import Exact, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.as_made import tile_as_made
from streamgen.model.operations.site import Site, Stream


@dataclass(frozen=True)
class TokenRow(Operator):
    """place: of the token."""

    place: Literal["first", "last"]
    mixes_tokens = True
    padding = "alike"

    def __post_init__(self) -> None:
        if self.place not in ("first", "last"):
            raise GraphError(f"the row of the {self.place!r} token is wanted; first and last are allowed")

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        (x,) = inputs
        if x.rows != "tokens" or x.kind == "ids":
            raise GraphError(f"{self} is given {x}")
        return (replace(x, rows="one"),)

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        return x[:1] if self.place == "first" else x[-1:]

    def exact(self) -> Exact:
        return self.reference

    def bind(self, site: Site, *inputs: Stream) -> tuple[Stream, ...]:
        (x,) = inputs
        rows, features = site.count(x.shape), x.extent
        params = TakeRowsParams(dtype="f24", lanes=site.lanes, max_tokens=rows * features // site.lanes)
        first = 0 if self.place == "first" else rows - 1
        bounds = {"rows": rows, "features": features, "first": first, "count": 1}
        tile = tile_as_made(x.itensor, lambda tile: params.inputs({**bounds, "tile": tile})["i"])
        bounds |= {} if tile is None else {"tile": tile}
        return (site.kernel(site.name, params, bounds, i=x)["o"],)

    def __str__(self) -> str:
        return f"{self.place}_token"
