"""Groups of units: which share an accelerator, under a budget of converter memory.

A unit is an operation, or kernels that cannot be parted; it reads and writes values. Units of one group
hand values to one another through FIFOs and converters. A value that another group reads is written to
memory once and read once by each group that reads it:

    traffic = sum over groups (bits of values read from outside + bits of values that others read)

Results of the whole are written anyway and cost no more when a group reads them. The task: as little
traffic as possible, then as few groups as possible, with the converters of each group within the budget.
Groups run one after the other, so no value may go back to an earlier one.

Growth in topological order while converters fit is that of StreamTensor (arXiv 2509.13694, kernel fusion).
Counted here in addition is what edges to earlier groups cost: traffic, and converters at the edges of a
group. A unit may join any group that runs no earlier than those it reads from, and joins the one where
traffic grows least. Growth does not know what comes later, so its groups only give an order: a dynamic
program then cuts three orders (as given, depth first, as grown) where traffic is least. A chain has one
order, so its cuts are the optimum when a group needs what its units need; of random graphs nine in ten are
at the optimum (tests/unit/compiler/explore/test_fusion.py).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from streamgen.base.errors import BudgetError

_PATIENCE = 4  # a group over the budget may fit again with more units: a cut value may need a converter


@dataclass(frozen=True, kw_only=True)
class Unit:
    """name: of the unit. reads, writes: names of values."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FusedGroup:
    """units: names, in topological order. converter_bits: of the group, at most `budget`. ended: why it holds
    no more."""

    units: tuple[str, ...]
    converter_bits: int
    budget: int
    ended: str


def group_traffic(
    members: Collection[str], units: Sequence[Unit], sizes: Mapping[str, int], results: Collection[str]
) -> int:
    """Bits that a group of these units moves to and from other groups and the inputs of the whole."""
    inside = [unit for unit in units if unit.name in members]
    made = {value for unit in inside for value in unit.writes}
    read = {value for unit in inside for value in unit.reads} - made
    wanted = {value for unit in units if unit.name not in members for value in unit.reads}
    return sum(sizes[value] for value in read) + sum(sizes[v] for v in made & wanted if v not in results)


def fuse(
    units: Sequence[Unit],
    sizes: Mapping[str, int],
    results: Collection[str],
    measure: Callable[[tuple[str, ...]], int],
    budget: int,
) -> tuple[FusedGroup, ...]:
    """Groups in the order in which they run.

    units: in topological order. sizes: bits in memory of every value. results: values that are kept.
    measure: converter bits of an accelerator of these units (in the given order); BudgetError when there
    is none for another reason. budget: greatest converter bits of a group.

    BudgetError when the units cannot be grouped: names the unit that is too large on its own.
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
        found = [cuts for order in dict.fromkeys(orders) if (cuts := self._cut(order)) is not None]
        if not found:
            self._refuse()
        return min(found, key=lambda cuts: (sum(map(self._traffic, cuts)), len(cuts)))

    def _grown(self) -> list[tuple[str, ...]]:
        """Each unit where it adds least traffic, then least converter memory, then in the latest group."""
        groups: list[tuple[str, ...]] = []
        at: dict[str, int] = {}
        for name in self._units:
            earliest = max((at[other] for other in self._before[name]), default=0)
            choices = []
            for i in range(earliest, len(groups)):
                if self._fits(joined := (*groups[i], name)):
                    # what others read of a group counts from the beginning, whoever they will be with
                    added = self._traffic(joined) - self._traffic(groups[i])
                    choices.append((added, self._bits(joined) - self._bits(groups[i]), -i))
            at[name] = -min(choices)[2] if choices else len(groups)
            if choices:
                groups[at[name]] += (name,)
            else:
                groups.append((name,))
        return groups

    def _depth_first(self) -> tuple[str, ...]:
        """Every unit as soon as what it reads is there, branch after branch, back from the last ones."""
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
        """The cuts of an order with least traffic, then the fewest; None when no cuts fit."""
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
        found = self._measured(self._sorted(members))
        return self._budget + 1 if isinstance(found, BudgetError) else found

    def _fits(self, members: tuple[str, ...]) -> bool:
        return self._bits(members) <= self._budget

    def _ended(self, members: tuple[str, ...], after: tuple[str, ...]) -> str:
        if not after:
            return "nothing is left"
        found = self._measured(self._sorted((*members, after[0])))
        if isinstance(found, BudgetError):
            return f"with {after[0]} no design: {found}"
        if found > self._budget:
            return f"with {after[0]} converters would hold {found} bits of {self._budget}"
        return f"least traffic with a cut before {after[0]}, which would fit: {found} of {self._budget} bits"

    def _refuse(self) -> None:
        for name in self._units:
            found = self._measured((name,))
            if isinstance(found, BudgetError):
                raise found
        name, needed = max(((n, self._bits((n,))) for n in self._units), key=lambda pair: pair[1])
        raise BudgetError(
            f"{name!r} alone needs converters of {needed} bits, the budget is {self._budget}: "
            f"{needed - self._budget} too few. Raise CompileConfig.converter_bits, or lower max_tokens or "
            "factors that are fixed"
        )
