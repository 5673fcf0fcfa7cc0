"""The iterative tensor: in which order the tiles of a tensor pass a point."""

from streamgen.itensor.converter import Converter, infer_converter
from streamgen.itensor.operations import (
    broadcast,
    counted_as,
    permute_loops,
    reassociate,
    repeat,
    same_stream,
    split_loop,
    tile,
    transpose,
    vectorize,
    without_reuse,
)
from streamgen.itensor.type import ITensor

__all__ = [
    "Converter",
    "ITensor",
    "broadcast",
    "counted_as",
    "infer_converter",
    "permute_loops",
    "reassociate",
    "repeat",
    "same_stream",
    "split_loop",
    "tile",
    "transpose",
    "vectorize",
    "without_reuse",
]
