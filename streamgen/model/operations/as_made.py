"""Streams in tiles of all rows, in the order in which matmuls and attention make them."""

from collections.abc import Callable
from math import gcd

from streamgen.itensor import ITensor, same_stream, tile


def tile_as_made(made: ITensor, taken: Callable[[int], ITensor], unit: int = 1) -> int | None:
    """The number of features, a multiple of unit, that come of all rows before the next features, if a kernel
    takes this order, with tokens of any size. None if it does not, and if the stream comes row by row.

    taken: returns the order in which the kernel takes tiles of that many features.
    """
    rows, features = made.iter_map
    if not rows or not features or features[0] >= rows[0]:
        return None
    features_first = made.steps[features[0]]
    if features_first % unit:
        return None
    wanted = taken(features_first)
    each = (1, gcd(wanted.element_shape[1], made.element_shape[1]))
    return features_first if same_stream(tile(made, each), tile(wanted, each)) else None
