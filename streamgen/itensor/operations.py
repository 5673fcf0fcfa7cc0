"""From one itensor to another. Each operation is defined by the offsets of its result.

With o = stream.offsets() and q = result.offsets():

    permute_loops   q is o, its iterations taken in the new order of loops
    split_loop      q = o
    repeat          q[k] = o of the iteration without the new loop
    transpose       q = o[:, order]
    tile            each token is sent as its tiles, row-major: q[k * n + j] = o[k] + start of tile j
    vectorize       n neighbouring tokens become one, whatever their order: q[k] = o[k * n]
    reassociate     the tensor is reshaped, the tokens stay: they start at the same flat index
    counted_as      the same bits in narrower or wider elements
    broadcast       one row that meets every row: loops over dimension 0 re-send it
    without_reuse   each tile is sent once: loops that no dimension uses run once

`same_stream` compares two.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import gcd, prod
from typing import Any

from streamgen.itensor.canonical import Loop, canonical
from streamgen.itensor.type import ITensor

_KEPT = 1 << 12  # nests: passes compare the same streams again and again


def same_stream(a: ITensor, b: ITensor) -> bool:
    """Whether both send the same tiles, of one dtype, in the same order; nothing is enumerated."""
    return (
        a.element_shape == b.element_shape
        and a.dtype == b.dtype
        and a.base == b.base
        and _nest(a) == _nest(b)
    )


@lru_cache(maxsize=_KEPT)
def _nest(itensor: ITensor) -> tuple[Loop, ...]:
    return canonical(itensor.loops)


def broadcast(stream: ITensor) -> ITensor:
    """The stream of one row of the first dimension, again for each row of `stream`."""
    element, iter_map = (1, *stream.element_shape[1:]), ((), *stream.iter_map[1:])
    return replace(stream, element_shape=element, iter_map=iter_map)


def without_reuse(stream: ITensor) -> ITensor:
    """The same tiles, each sent once."""
    mapped = {loop for loops in stream.iter_map for loop in loops}
    trips = tuple(trip if loop in mapped else 1 for loop, trip in enumerate(stream.tripcounts))
    return replace(stream, tripcounts=trips)


def permute_loops(stream: ITensor, order: Sequence[int]) -> ITensor:
    """Loop l of the result is loop order[l]; ValueError unless `order` is a permutation of the loops."""
    _check_permutation(order, len(stream.tripcounts), "loops")
    place = {old: new for new, old in enumerate(order)}
    return _with(
        stream,
        tripcounts=[stream.tripcounts[loop] for loop in order],
        steps=[stream.steps[loop] for loop in order],
        iter_map=[[place[loop] for loop in loops] for loops in stream.iter_map],
    )


def split_loop(stream: ITensor, loop: int, inner: int) -> ITensor:
    """A loop becomes an outer one and one of `inner` trips within; ValueError unless it divides the trip."""
    _check_loop(stream, loop)
    trip, step = stream.tripcounts[loop], stream.steps[loop]
    if inner < 1 or trip % inner:
        raise ValueError(f"inner must divide the trip {trip} of loop {loop}; it is {inner}")
    return _with(
        stream,
        tripcounts=(*stream.tripcounts[:loop], trip // inner, inner, *stream.tripcounts[loop + 1 :]),
        steps=(*stream.steps[:loop], step * inner, step, *stream.steps[loop + 1 :]),
        iter_map=[
            [*(old + (old > loop) for old in loops), *[loop + 1 for old in loops if old == loop]]
            for loops in stream.iter_map
        ],
    )


def repeat(stream: ITensor, count: int, loop: int = 0) -> ITensor:
    """A new re-use loop with this number, by default around everything: what is inside is sent again."""
    if not 0 <= loop <= len(stream.tripcounts):
        raise ValueError(f"loop must lie in 0..{len(stream.tripcounts)}; it is {loop}")
    return _with(
        stream,
        tripcounts=(*stream.tripcounts[:loop], count, *stream.tripcounts[loop:]),
        steps=(*stream.steps[:loop], 1, *stream.steps[loop:]),
        iter_map=[[old + (old >= loop) for old in loops] for loops in stream.iter_map],
    )


def transpose(stream: ITensor, order: Sequence[int]) -> ITensor:
    """Data dimension r of the result is dimension order[r]."""
    _check_permutation(order, stream.rank, "dimensions")
    return _with(
        stream,
        element_shape=[stream.element_shape[r] for r in order],
        iter_map=[stream.iter_map[r] for r in order],
        base=[stream.base[r] for r in order],
    )


def tile(stream: ITensor, element_shape: Sequence[int]) -> ITensor:
    """Smaller tokens: each is cut in tiles, sent row-major by one new inner loop per dimension.

    Raises ValueError unless the extents divide those of the token.
    """
    _check_factors("element_shape", element_shape, stream.element_shape)
    count = len(stream.tripcounts)
    return _with(
        stream,
        element_shape=element_shape,
        tripcounts=(
            *stream.tripcounts,
            *(old // new for old, new in zip(stream.element_shape, element_shape, strict=True)),
        ),
        steps=(*stream.steps, *element_shape),
        iter_map=[(*loops, count + r) for r, loops in enumerate(stream.iter_map)],
    )


def vectorize(stream: ITensor, element_shape: Sequence[int]) -> ITensor:
    """Larger tokens: innermost loops are absorbed, or the inner part of the last of them.

    Raises ValueError unless each larger token is exactly a run of neighbouring tokens.
    """
    _check_factors("the token", stream.element_shape, element_shape)
    extents = list(stream.element_shape)
    trips, steps = list(stream.tripcounts), list(stream.steps)
    dropped = len(trips)
    while extents != list(element_shape):
        loop = dropped = dropped - 1
        served = stream.dimensions[loop] if loop >= 0 else None
        part = 1 if served is None else gcd(trips[loop], element_shape[served] // extents[served])
        if loop < 0 or (trips[loop] > 1 and (part == 1 or served is None or steps[loop] != extents[served])):
            raise ValueError(f"neighbouring tokens of {stream} do not form tokens of {tuple(element_shape)}")
        if served is not None:
            extents[served] *= part
        trips[loop] //= part
        steps[loop] *= part
        if trips[loop] > 1:
            dropped += 1
            if extents != list(element_shape):
                raise ValueError(
                    f"neighbouring tokens of {stream} do not form tokens of {tuple(element_shape)}"
                )
    return _with(
        stream,
        element_shape=element_shape,
        tripcounts=trips[:dropped],
        steps=steps[:dropped],
        iter_map=[[loop for loop in loops if loop < dropped] for loops in stream.iter_map],
    )


def reassociate(stream: ITensor, shape: Sequence[int]) -> ITensor:
    """The stream of the tensor reshaped (row-major) from `stream.shape` to `shape`: heads split or merged.

    Raises ValueError when the sizes differ, or when a token is no box in the new shape.
    """
    if min(shape, default=0) < 1 or prod(shape) != prod(stream.shape):
        raise ValueError(
            f"shape must have the {prod(stream.shape)} elements of {stream.shape}; it is {shape}"
        )
    result, start = stream, 0
    for old, new in _groups(stream.shape, shape):
        for _ in range(old - 1):
            result = _merge(result, start)
        for extent in reversed(shape[start + 1 : start + new]):
            result = _split(result, start, extent)
        start += new
    return result


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[int, int]]:
    """How many dimensions of each shape stand for one another, in the smallest groups."""
    groups: list[tuple[int, int]] = []
    i = j = 0
    while i < len(old) and j < len(new):
        first = (i, j)
        left, right = old[i], new[j]
        while left != right:
            if left < right:
                i += 1
                left *= old[i]
            else:
                j += 1
                right *= new[j]
        i, j = i + 1, j + 1
        groups.append((i - first[0], j - first[1]))
    groups[-1] = (groups[-1][0] + len(old) - i, groups[-1][1] + len(new) - j)
    return groups


def _merge(stream: ITensor, r: int) -> ITensor:
    """Dimensions r and r + 1 become one."""
    (outer, inner), width = stream.element_shape[r : r + 2], stream.shape[r + 1]
    if outer > 1 and inner != width:
        raise ValueError(
            f"tokens of {stream} are no boxes when dimensions {r} and {r + 1} of {stream.shape} are merged"
        )
    loops = stream.iter_map[r]
    return _with(
        stream,
        element_shape=(*stream.element_shape[:r], outer * inner, *stream.element_shape[r + 2 :]),
        steps=[step * (width if loop in loops else 1) for loop, step in enumerate(stream.steps)],
        iter_map=(*stream.iter_map[:r], loops + stream.iter_map[r + 1], *stream.iter_map[r + 2 :]),
        base=(*stream.base[:r], stream.base[r] * width + stream.base[r + 1], *stream.base[r + 2 :]),
    )


def _split(stream: ITensor, r: int, width: int) -> ITensor:
    """Dimension r becomes two, the inner one `width` wide."""
    extent, (above, below) = stream.element_shape[r], divmod(stream.base[r], width)
    for loop in reversed(stream.iter_map[r]):  # a loop that runs on over the edge is cut at the edge
        trip, step = stream.tripcounts[loop], stream.steps[loop]
        if step < width < trip * step and width % step == 0 and trip % (width // step) == 0:
            stream = split_loop(stream, loop, width // step)
    outer = [loop for loop in stream.iter_map[r] if stream.steps[loop] % width == 0]
    inner = [loop for loop in stream.iter_map[r] if loop not in outer]
    reach = below + sum((stream.tripcounts[loop] - 1) * stream.steps[loop] for loop in inner) + extent
    if extent % width == 0 and reach == extent:
        box = (extent // width, width)
    elif reach <= width:
        box = (1, extent)
    else:
        raise ValueError(f"tokens of {stream} are no boxes when dimension {r} is split by {width}")
    return _with(
        stream,
        element_shape=(*stream.element_shape[:r], *box, *stream.element_shape[r + 1 :]),
        steps=[step // (width if loop in outer else 1) for loop, step in enumerate(stream.steps)],
        iter_map=(*stream.iter_map[:r], outer, inner, *stream.iter_map[r + 1 :]),
        base=(*stream.base[:r], above, below, *stream.base[r + 1 :]),
    )


def _with(stream: ITensor, **changes: Any) -> ITensor:
    """The itensor with other arguments."""
    return replace(stream, **changes)


def _check_loop(stream: ITensor, loop: int) -> None:
    if not 0 <= loop < len(stream.tripcounts):
        raise ValueError(f"there is no loop {loop} in {stream}")


def _check_permutation(order: Sequence[int], count: int, what: str) -> None:
    if sorted(order) != list(range(count)):
        raise ValueError(f"order must be a permutation of the {count} {what}; it is {tuple(order)}")


def _check_factors(name: str, small: Sequence[int], large: Sequence[int]) -> None:
    if len(small) != len(large) or any(n < 1 or m % n for n, m in zip(small, large, strict=True)):
        raise ValueError(f"{name} {tuple(small)} must divide {tuple(large)} in each dimension")


def counted_as(itensor: ITensor, like: ITensor) -> ITensor:
    """The same tokens with the elements of `like`, where these are integers that fill the same bits: 16 of
    eight bits along a dimension are 32 of four. ValueError where they do not."""
    if (itensor.dtype, itensor.element_shape) == (like.dtype, like.element_shape):
        return itensor
    ratios = [Fraction(new, old) for new, old in zip(like.element_shape, itensor.element_shape, strict=False)]
    integers = itensor.dtype[0] in "iu" and like.dtype[0] in "iu"
    scaled = [dim for dim, ratio in enumerate(ratios) if ratio != 1]
    if not integers or itensor.token_bits != like.token_bits or itensor.rank != like.rank or len(scaled) != 1:
        raise ValueError(f"the tokens of {itensor} are not those of {like}")
    (dim,) = scaled
    steps = list(itensor.steps)
    for loop in itensor.iter_map[dim]:
        steps[loop] = _whole(steps[loop] * ratios[dim])
    base = tuple(_whole(b * ratios[dim]) if d == dim else b for d, b in enumerate(itensor.base))
    return ITensor(like.element_shape, like.dtype, itensor.tripcounts, tuple(steps), itensor.iter_map, base)


def _whole(number: Fraction) -> int:
    if number.denominator != 1:
        raise ValueError(f"{number} is no whole number of elements")
    return int(number)
