"""Group units into accelerators under a budget of converter memory.

A unit is an operation, or several kernels that must stay together. It reads and writes values. Units of a
group pass values through FIFOs and converters. A value that other groups read is written to memory once, and
each of these groups reads it once:

    traffic = sum over groups (bits of values read from outside + bits of values that other groups read)

Results of the whole model are written anyway, so they cost nothing more if a group reads them. The goal is
the least traffic, then the fewest groups, with the converters of each group within the budget. Groups run one
after the other, so no value may go to an earlier group.

Growing groups in topological order while converters fit is the method of StreamTensor (arXiv 2509.13694,
kernel fusion). Here growth also counts the cost of edges to earlier groups: their traffic, and the converters
at the edges of a group. A unit may join any group that does not run before the groups that it reads from. It
joins the group where traffic grows least. Growth does not know later units, so its groups only give an order.
A dynamic program then cuts three orders (as given, depth first, as grown) where traffic is least. A chain has
only one order, so its cuts are optimal if the memory of a group follows from its units. Of random graphs,
nine in ten get the optimum (tests/unit/compiler/explore/test_fusion.py).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from streamgen.base.errors import BudgetError

_PATIENCE = 4  # a group over the budget may fit again with more units, because a cut may need a converter


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A unit. reads, writes: names of values."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FusedGroup:
    """A group. units: names of its units, in topological order. converter_bits: bits of its converters, at
    most `budget`. ended: why it has no more units."""

    units: tuple[str, ...]
    converter_bits: int
    budget: int
    ended: str


def group_traffic(
    members: Collection[str], units: Sequence[Unit], sizes: Mapping[str, int], results: Collection[str]
) -> int:
    """Bits that a group moves to and from other groups and from the inputs of the model. members: names of
    its units."""
    inside = [unit for unit in units if unit.name in members]
    written = {value for unit in inside for value in unit.writes}
    read = {value for unit in inside for value in unit.reads} - written
    wanted = {value for unit in units if unit.name not in members for value in unit.reads}
    return sum(sizes[value] for value in read) + sum(sizes[v] for v in written & wanted if v not in results)


def fuse(
    units: Sequence[Unit],
    sizes: Mapping[str, int],
    results: Collection[str],
    measure: Callable[[tuple[str, ...]], int],
    budget: int,
) -> tuple[FusedGroup, ...]:
    """Groups in the order in which they run.

    units: all units in topological order. sizes: bits in memory of every value. results: results of the
    model. measure: returns the converter bits of an accelerator of some units; raises BudgetError if there is
    no such accelerator for another reason. budget: limit on the converter bits of a group.

    Raises BudgetError with the name of a unit that is too large on its own.
    """
    return _Fusion(units, sizes, results, measure, budget).groups()


class _Fusion:
    def __init__(
        self,
        units: Sequence[Unit],
        sizes: Mapping[str, int],
        results: Collection[str],
        measure: Callable[[tuple[str, ...]], int],
        budget: int,
    ) -> None:
        self._units, self._budget = {unit.name: unit for unit in units}, budget
        self._place = {name: i for i, name in enumerate(self._units)}
        writers = {value: unit.name for unit in units for value in unit.writes}
        self._before = {
            unit.name: tuple(dict.fromkeys(writers[v] for v in unit.reads if v in writers)) for unit in units
        }

        @cache
        def bits(members: tuple[str, ...]) -> int | BudgetError:
            try:
                return measure(members)
            except BudgetError as error:
                return error

        @cache
        def traffic(members: tuple[str, ...]) -> int:
            return group_traffic(members, units, sizes, results)

        self._measured, self._traffic = bits, traffic

    def groups(self) -> tuple[FusedGroup, ...]:
        whole = tuple(self._units)
        cuts = [whole] if self._fits(whole) else self._best()
        return tuple(
            FusedGroup(
                units=members,
                converter_bits=self._bits(members),
                budget=self._budget,
                ended=self._ended(members, after),
            )
            for members, after in zip(cuts, [*cuts[1:], ()], strict=True)
        )

    def _best(self) -> list[tuple[str, ...]]:
        orders = [tuple(self._units), self._depth_first()]
        orders.append(tuple(name for group in self._grown() for name in group))
        candidates = [cuts for order in dict.fromkeys(orders) if (cuts := self._cut(order)) is not None]
        if not candidates:
            self._refuse()
        return min(candidates, key=lambda cuts: (sum(map(self._traffic, cuts)), len(cuts)))

    def _grown(self) -> list[tuple[str, ...]]:
        """Groups grown unit by unit. A unit joins the group where it adds the least traffic, then the least
        converter memory, then the latest group."""
        groups: list[tuple[str, ...]] = []
        at: dict[str, int] = {}
        for name in self._units:
            earliest = max((at[other] for other in self._before[name]), default=0)
            choices = []
            for i in range(earliest, len(groups)):
                if self._fits(joined := (*groups[i], name)):
                    # reads by later units count from the beginning, whichever group those units join
                    added = self._traffic(joined) - self._traffic(groups[i])
                    choices.append((added, self._bits(joined) - self._bits(groups[i]), -i))
            at[name] = -min(choices)[2] if choices else len(groups)
            if choices:
                groups[at[name]] += (name,)
            else:
                groups.append((name,))
        return groups

    def _depth_first(self) -> tuple[str, ...]:
        """Units depth first: from the last units backwards, branch after branch. A unit comes as soon as
        everything that it reads is there."""
        order: dict[str, None] = {}
        stack = list(self._units)
        while stack:
            name = stack.pop()
            waits = [other for other in self._before[name] if other not in order]
            if waits:
                stack += [name, *reversed(waits)]
            else:
                order[name] = None
        return tuple(order)

    def _cut(self, order: tuple[str, ...]) -> list[tuple[str, ...]] | None:
        """The cuts of an order with the least traffic, then the fewest cuts; None if no cuts fit."""
        best: list[tuple[int, int, int] | None] = [(0, 0, 0)] + [None] * len(order)
        for first in range(len(order)):
            if (here := best[first]) is None:
                continue
            misses = 0
            for end in range(first + 1, len(order) + 1):
                members = self._sorted(order[first:end])
                if not self._fits(members):
                    misses += 1
                    if misses == _PATIENCE:
                        break
                    continue
                misses = 0
                cost = (here[0] + self._traffic(members), here[1] + 1, first)
                if (known := best[end]) is None or cost[:2] < known[:2]:
                    best[end] = cost
        cuts: list[tuple[str, ...]] = []
        end = len(order)
        while end:
            if (last := best[end]) is None:
                return None
            cuts.append(self._sorted(order[last[2] : end]))
            end = last[2]
        return cuts[::-1]

    def _sorted(self, members: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(members, key=self._place.__getitem__))

    def _bits(self, members: tuple[str, ...]) -> int:
        measured = self._measured(self._sorted(members))
        return self._budget + 1 if isinstance(measured, BudgetError) else measured

    def _fits(self, members: tuple[str, ...]) -> bool:
        return self._bits(members) <= self._budget

    def _ended(self, members: tuple[str, ...], after: tuple[str, ...]) -> str:
        if not after:
            return "no units are left"
        measured = self._measured(self._sorted((*members, after[0])))
        if isinstance(measured, BudgetError):
            return f"with {after[0]} there is no design: {measured}"
        if measured > self._budget:
            return f"with {after[0]} the converters would hold {measured} bits; the budget is {self._budget}"
        return (
            f"a cut before {after[0]} gives the least traffic, although {after[0]} would fit: {measured} of "
            f"{self._budget} bits"
        )

    def _refuse(self) -> None:
        for name in self._units:
            measured = self._measured((name,))
            if isinstance(measured, BudgetError):
                raise measured
        name, needed = max(((n, self._bits((n,))) for n in self._units), key=lambda pair: pair[1])
        raise BudgetError(
            f"{name!r} alone needs converters of {needed} bits; the budget is {self._budget} bits, "
            f"{needed - self._budget} too few. Raise CompileConfig.converter_bits, or lower max_tokens or "
            "fixed factors"
        )
