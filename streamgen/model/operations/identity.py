"""Identity: a value under another name, for example at the beginning of a repetition or the end of
a graph."""

from dataclasses import dataclass

import numpy as np

from streamgen.model.graph.logical import Exact, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.site import Site, Stream


@dataclass(frozen=True)
class Identity(Operator):
    """Needs no hardware: its stream is the stream that it reads."""

    row_wise = True
    padding = "alike"

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        return inputs

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        return inputs[0]

    def exact(self) -> Exact:
        return self.reference

    def bind(self, site: Site, *inputs: Stream) -> tuple[Stream, ...]:
        return inputs

    def __str__(self) -> str:
        return "identity"
