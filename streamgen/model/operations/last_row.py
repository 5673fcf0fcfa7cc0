"""The last row of a pass: the head reads only the row of the last token."""

from dataclasses import dataclass, replace

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.kernels.moves.take_rows import TakeRowsParams
from streamgen.model.graph.logical import Exact, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.as_made import tile_as_made
from streamgen.model.operations.site import Site, Stream


@dataclass(frozen=True)
class LastRow(Operator):
    """In a run with `every_row`, all rows pass."""

    mixes_tokens = True
    takes_last_row = True
    padding = "alike"

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        (x,) = inputs
        if x.rows != "tokens":
            raise GraphError(f"the last row is taken of tokens, not of {x}")
        return (replace(x, rows="one"),)

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        return x if run.every_row else x[-1:]

    def exact(self) -> Exact:
        return self.reference

    def bind(self, site: Site, *inputs: Stream) -> tuple[Stream, ...]:
        (x,) = inputs
        rows, features = site.count(x.shape), x.extent
        params = TakeRowsParams(dtype="f24", lanes=site.lanes, max_tokens=rows * features // site.lanes)
        bounds = {"rows": rows, "features": features, "first": rows - 1, "count": 1}
        tile = tile_as_made(x.itensor, lambda tile: params.inputs({**bounds, "tile": tile})["i"])
        bounds |= {} if tile is None else {"tile": tile}
        return (site.kernel(f"take_{site.name}", params, bounds, unasked={"count": 0}, i=x)["o"],)

    def __str__(self) -> str:
        return "last_row"
