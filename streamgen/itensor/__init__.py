"""The iterative tensor: in which order the tiles of a tensor pass a point."""

from streamgen.itensor.canonical import same_stream
from streamgen.itensor.type import ITensor

__all__ = ["ITensor", "same_stream"]
