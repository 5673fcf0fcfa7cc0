"""Streams that come in tiles of all rows, as matmuls and attention make them."""

from collections.abc import Callable
from math import gcd

from streamgen.itensor import ITensor, same_stream, tile


def tile_as_made(made: ITensor, taken: Callable[[int], ITensor], unit: int = 1) -> int | None:
    """Features, a multiple of unit, of all rows that come before the next ones, where a kernel takes what is
    made in that order, whatever its tokens are; None where it does not, and where rows come one by one.

    taken: the order in which the kernel takes tiles of so many features.
    """
    rows, features = made.iter_map
    if not rows or not features or features[0] >= rows[0]:
        return None
    found = made.steps[features[0]]
    if found % unit:
        return None
    wanted = taken(found)
    each = (1, gcd(wanted.element_shape[1], made.element_shape[1]))
    return found if same_stream(tile(made, each), tile(wanted, each)) else None
