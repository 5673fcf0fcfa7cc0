"""TokenRow: the row of one token of a sequence: the first, the last, or that of a place."""

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
    """place: of the token; a number counts from the first one."""

    place: Literal["first", "last"] | int
    mixes_tokens = True
    padding = "alike"

    def __post_init__(self) -> None:
        if self.place not in ("first", "last") and (not isinstance(self.place, int) or self.place < 0):
            raise GraphError(
                f"the row of the {self.place!r} token is wanted; first, last and numbers from 0 are allowed"
            )

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        (x,) = inputs
        if x.rows != "tokens" or x.kind == "ids":
            raise GraphError(f"{self} is given {x}")
        return (replace(x, rows="one"),)

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        first = self._first(len(x))
        return x[first : first + 1]

    def exact(self) -> Exact:
        return self.reference

    def bind(self, site: Site, *inputs: Stream) -> tuple[Stream, ...]:
        (x,) = inputs
        rows, features = site.count(x.shape), x.extent
        params = TakeRowsParams(dtype="f24", lanes=site.lanes, max_tokens=rows * features // site.lanes)
        bounds = {"rows": rows, "features": features, "first": self._first(rows), "count": 1}
        tile = tile_as_made(x.itensor, lambda tile: params.inputs({**bounds, "tile": tile})["i"])
        bounds |= {} if tile is None else {"tile": tile}
        return (site.kernel(site.name, params, bounds, i=x)["o"],)

    def _first(self, rows: int) -> int:
        if isinstance(self.place, int):
            if self.place >= rows:
                raise ValueError(f"token {self.place} of {rows} is wanted")
            return self.place
        return 0 if self.place == "first" else rows - 1

    def __str__(self) -> str:
        return f"token_{self.place}" if isinstance(self.place, int) else f"{self.place}_token"
