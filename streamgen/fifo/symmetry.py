"""Which members of a system do the same at the same time: the columns of an engine, say.

Members are in one class when they are of one kind and, label by label, hear from the same classes and tell
the same classes: the coarsest such partition, found by refinement (Paige and Tarjan, SIAM J. Comput. 16,
1987; in the simple form of rounds). How many of a class a member hears from does not count. So a system whose
times are the least ones that obey max-plus equations has the same times with one member for each class: what
two links of one label between the same classes ask for is the same, from the beginning on.
"""

from collections.abc import Hashable, Iterable, Sequence

import numpy as np

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
    numbers = _numbered(kinds)
    count = len(set(numbers))
    while True:
        numbers = _numbered(
            [
                (own, frozenset((label, numbers[other]) for label, other in others))
                for own, others in zip(numbers, around, strict=True)
            ]
        )
        if len(set(numbers)) == count:
            return numbers
        count = len(set(numbers))


def firsts(keys: Iterable[Hashable]) -> list[int]:
    """The place of the first of those that are equal, for each."""
    seen = dict[Hashable, int]()
    return [seen.setdefault(key, place) for place, key in enumerate(keys)]


class Contents:
    """Numbers for arrays of integers: equal ones for equal arrays."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[np.ndarray, int]] = {}  # by id: an array in here stays alive
        self._alike: dict[Hashable, list[tuple[np.ndarray, int]]] = {}
        self._count = 0

    def of(self, array: np.ndarray) -> int:
        """The number of an array."""
        if id(array) not in self._known:
            self._known[id(array)] = array, self._number(array)
        return self._known[id(array)][1]

    def _number(self, array: np.ndarray) -> int:
        ends = (int(array[0]), int(array[-1])) if len(array) else ()
        alike = self._alike.setdefault((len(array), *ends, int(array.sum())), [])
        for other, number in alike:
            if np.array_equal(array, other):
                return number
        self._count += 1
        alike.append((array, self._count))
        return self._count


def _numbered(keys: Iterable[Hashable]) -> list[int]:
    numbers = dict[Hashable, int]()
    return [numbers.setdefault(key, len(numbers)) for key in keys]
