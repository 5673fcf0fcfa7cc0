"""One form for all ways to write a stream.

A loop is a trip count and a step vector over the data dimensions (zero for re-use). Loops of trip 1 are
dropped; neighbours merge when the outer step is the inner trip times the inner step. Two nests then give
the same sequence of offsets exactly when they are equal: the innermost loop can be read off the sequence
(its step is the first difference, its trip the length of the first run, which the loop outside cannot
prolong, or they would have merged), and so on outwards.
"""

from collections.abc import Iterable

Loop = tuple[int, tuple[int, ...]]


def scale(step: tuple[int, ...], factor: int) -> tuple[int, ...]:
    """The step vector times a number."""
    return tuple(factor * s for s in step)


def canonical(loops: Iterable[Loop]) -> tuple[Loop, ...]:
    """The canonical nest of these loops, outermost first."""
    result: list[Loop] = []
    for trip, step in loops:
        if trip == 1:
            continue
        if result and result[-1][1] == scale(step, trip):
            trip *= result.pop()[0]
        result.append((trip, step))
    return tuple(result)
