"""Loop nests of a stream, split and joined without changing the stream.

A unit is one or more neighbouring loops that act as one. Two nests share a prefix when their outer loops
are equal; a unit may be cut in parts for that, outermost first.
"""

from collections.abc import Callable, Iterator
from math import gcd, isqrt

from streamgen.itensor.canonical import Loop, canonical, scale
from streamgen.itensor.type import ITensor

Unit = tuple[int, ...]
"""Neighbouring loops of an itensor that act as one loop."""


def with_trips(stream: ITensor, tripcounts: tuple[int, ...] | list[int]) -> ITensor:
    """The same loops with other trips."""
    return ITensor(stream.element_shape, stream.dtype, tripcounts, stream.steps, stream.iter_map, stream.base)


def inner(nest: ITensor, count: int) -> ITensor:
    """One iteration, the first, of the outer `count` loops."""
    return ITensor(
        nest.element_shape,
        nest.dtype,
        nest.tripcounts[count:],
        nest.steps[count:],
        [[loop - count for loop in loops if loop >= count] for loops in nest.iter_map],
        nest.base,
    )


def single_units(stream: ITensor) -> list[tuple[Unit, Loop]]:
    """Every loop by itself."""
    return [((index,), loop) for index, loop in enumerate(stream.loops) if loop[0] > 1]


def merged_units(stream: ITensor) -> list[tuple[Unit, Loop]]:
    """Neighbours merged as far as they do."""
    units: list[tuple[Unit, Loop]] = []
    for unit, (trip, step) in single_units(stream):
        if units and len(merged := canonical([units[-1][1], (trip, step)])) == 1:
            units[-1] = (units[-1][0] + unit, merged[0])
        else:
            units.append((unit, (trip, step)))
    return units


def shared_prefix(
    source: list[Loop], target: list[Loop], legal: Callable[[list[Loop], list[Loop]], bool]
) -> list[int]:
    """Trips of the longest legal common prefix; `legal` is asked about what is left inside."""
    parts: list[int] = []
    undo: list[tuple[list[Loop], list[Loop]]] = []
    while source and target:
        (a, u), (b, v) = source[0], target[0]
        if scale(u, a) != scale(v, b):
            break
        common = gcd(a, b)
        for part in _divisors(common):
            rests = ([(a // part, u), *source[1:]], [(b // part, v), *target[1:]])
            if legal(*rests):
                break
        else:
            break
        undo.append((source, target))
        parts.append(part)
        source, target = ([loop for loop in rest if loop[0] > 1] for rest in rests)
        if part < common:
            break
    # A part of a re-use loop at the end of the prefix makes the buffer no smaller.
    while parts and _splits_reuse(undo[-1], parts[-1]):
        parts.pop()
        undo.pop()
    return parts


def _divisors(number: int) -> Iterator[int]:
    """Divisors above 1, the greatest first."""
    small = (d for d in range(1, isqrt(number) + 1) if number % d == 0)
    low = []
    for d in small:
        if number // d > 1:
            yield number // d
        if 1 < d < number // d:
            low.append(d)
    yield from reversed(low)


def _splits_reuse(before: tuple[list[Loop], list[Loop]], part: int) -> bool:
    """Whether this part leaves something of a re-use loop."""
    (a, u), (b, _) = before[0][0], before[1][0]
    return not any(u) and (a > part or b > part)


def cut(
    stream: ITensor, units: list[tuple[Unit, Loop]], parts: list[int]
) -> tuple[ITensor, tuple[Unit, ...]]:
    """The nest whose outer loops have these trips, and what its loops are parts of."""
    loops: list[Loop] = []
    origin: list[Unit] = []
    left = list(units)
    for part in parts:
        unit, (trip, step) = left.pop(0)
        loops.append((part, scale(step, trip // part)))
        origin.append(unit)
        if trip > part:
            left.insert(0, (unit, (trip // part, step)))
    return nest_of(stream, loops + [loop for _, loop in left]), (*origin, *(unit for unit, _ in left))


def nest_of(stream: ITensor, loops: list[Loop]) -> ITensor:
    """Tokens of the stream in another nest."""
    return ITensor(
        stream.element_shape,
        stream.dtype,
        [trip for trip, _ in loops],
        [max(*step, 1) for _, step in loops],
        [[index for index, (_, step) in enumerate(loops) if step[r]] for r in range(stream.rank)],
        stream.base,
    )
