"""Which members of a system do the same at the same time: the columns of an engine, say.

Members are in one class when they are of one kind and, label by label, hear from the same classes and tell
the same classes: the coarsest such partition, found by refinement (Paige and Tarjan, SIAM J. Comput. 16,
1987; in the simple form of rounds). How many of a class a member hears from does not count. So a system whose
times are the least ones that obey max-plus equations has the same times with one member for each class: what
two links of one label between the same classes ask for is the same, from the beginning on.
"""

from collections.abc import Hashable, Iterable, Sequence
from hashlib import blake2b

import numpy as np

__all__ = ["Digests", "classes", "firsts"]

Link = tuple[int, int, Hashable]
"""From a member, to a member, label."""


def classes(kinds: Sequence[Hashable], links: Iterable[Link]) -> list[int]:
    """The class of each member, numbered in the order of their first members."""
    labels = dict[Hashable, int]()
    around: list[list[tuple[int, int]]] = [[] for _ in kinds]  # label with direction, and the other end
    for source, target, label in links:
        number = 2 * labels.setdefault(label, len(labels))
        around[source].append((number, target))
        around[target].append((number + 1, source))
    found = _numbered(kinds)
    count = len(set(found))
    while True:
        found = _numbered(
            [
                (own, frozenset((label, found[other]) for label, other in others))
                for own, others in zip(found, around, strict=True)
            ]
        )
        if len(set(found)) == count:
            return found
        count = len(set(found))


def firsts(keys: Iterable[Hashable]) -> list[int]:
    """The place of the first of those that are equal, for each."""
    seen = dict[Hashable, int]()
    return [seen.setdefault(key, place) for place, key in enumerate(keys)]


class Digests:
    """Of arrays of integers; each array is read once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[np.ndarray, bytes]] = {}  # by id: an array in here stays alive

    def of(self, numbers: np.ndarray) -> bytes:
        """Equal for arrays of equal integers."""
        if id(numbers) not in self._known:
            content = np.ascontiguousarray(numbers, np.int64).data
            self._known[id(numbers)] = numbers, blake2b(content, digest_size=16).digest()
        return self._known[id(numbers)][1]


def _numbered(keys: Iterable[Hashable]) -> list[int]:
    numbers = dict[Hashable, int]()
    return [numbers.setdefault(key, len(numbers)) for key in keys]
