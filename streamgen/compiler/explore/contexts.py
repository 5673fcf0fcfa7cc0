"""Which steps of a long run are enough to know all of them.

A step takes as long as another that does the same, where the steps before it and those behind it do the same
too: as far as its context reaches. Between two steps of equal contexts lies a loop. It can be left out, since
what then follows one another has followed one another before; it is, where all contexts in it are kept
elsewhere. So of 24 equal layers three are left, and of layers of two kinds one of each transition.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def contexts(steps: Sequence[Hashable], before: int, behind: int) -> list[Hashable]:
    """Of each step what it does, with so many steps before it and behind it; None where there are none."""
    padded = [None] * before + list(steps) + [None] * behind
    return [tuple(padded[k : k + before + 1 + behind]) for k in range(len(steps))]


def without_loops(found: Sequence[Hashable]) -> list[int]:
    """Numbers of the steps that are kept, in order: one at least of every context."""
    kept: list[int] = []
    places: dict[Hashable, list[int]] = {}  # in `kept`
    for step, context in enumerate(found):
        kept.append(step)
        before = places.setdefault(context, [])
        if before:
            loop = Counter(found[one] for one in kept[before[-1] + 1 :])
            loop[context] -= 1  # not in `places` yet
            if all(len(places[one]) > times for one, times in loop.items()):
                del kept[before[-1] + 1 :]
                for one, times in loop.items():
                    del places[one][len(places[one]) - times :]
                continue
        before.append(len(kept) - 1)
    return kept


def spread(found: Sequence[Hashable], known: Mapping[int, _T], *, first: bool = False) -> list[_T]:
    """What is known of some steps, for all: that of the last one of the same context, or of the first."""
    by_context: dict[Hashable, _T] = {}
    for step, value in known.items():
        if not first or found[step] not in by_context:
            by_context[found[step]] = value
    return [by_context[context] for context in found]
