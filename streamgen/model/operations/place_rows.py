"""PlaceRows: a row of a table for the place of each token in its sequence, such as learned positions.

The places 0, 1, 2 ... are an input of ids, which the host fills (`model.nests`).
"""

from dataclasses import dataclass

from streamgen.model.graph.logical import Form
from streamgen.model.operations.embedding import Embedding

PLACES = "places"
"""The name of the input."""


@dataclass(frozen=True, eq=False)
class PlaceRows(Embedding):
    """A table with a row for each place. A sequence is not divided between runs, since each begins at 0."""

    mixes_tokens = True

    def form(self) -> Form:
        """Tables of different lengths are alike: a longer one has rows for more tokens."""
        return type(self), (("features", self.extents[1]),)

    def __str__(self) -> str:
        return f"place_rows[{self.sizes}]"
