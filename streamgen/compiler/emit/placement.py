"""Choose the SLR of the card for each block of a design.

The memory is at one SLR. The blocks that are connected to it (masters, DMAs, control) are fixed there. All
other blocks are placed so that no SLR is filled above its share, if that is possible, and so that few bits
cross from SLR to SLR.

The placement is a mixed integer program, which HiGHS solves. The SLRs are in order. Block b is beyond
boundary k if y[b, k] = 1; y falls with k. Net l crosses boundary k if x[l, k] = 1, where x[l, k] >=
|y[source, k] - y[target, k]| for all its targets. These are nested minimal cuts under limits, which the
relaxation nearly solves. The program minimises the bits of all crossings. With a much larger weight it
minimises the shares by which each SLR lacks each resource and each boundary lacks wires. Every shortage has
its own variable, so an unavoidable shortage does not hide another one. Its relaxation, with shares of
blocks in place of whole blocks, takes a hundredth of the time and tells most designs that cannot fit
(`shortage`).

Two steps keep the program small. Blocks that wide links join are placed together. Twins, which are blocks
with equal needs on equal nets, like the columns of an engine, share one integer y, which counts them: only
the number of twins on an SLR matters.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from operator import add, mul

import numpy as np
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.platform.boards import Board
from streamgen.platform.capacity import RESOURCES, number

_GRAINS = (
    0.05,
    0.01,
)  # size of a cluster, as a share of an SLR's limit; the second if the first does not fit
_GAP = 0.05  # relative gap between the bits and a lower bound at which the solver stops
_NODES = 1000  # limit on the search tree, so that the search ends at the same node on any machine
_OVER = 100.0  # weight of a missing share against the share of all bits that cross
_ROUNDING = 1e-6  # rounding error of the solver
_LACK = 1e-4  # share of a limit from which on a shortage of the relaxation counts
_NAMES = tuple(field.name for field in fields(Resources))


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block that is placed as a whole. fixed: the block lies at the memory."""

    name: str
    kind: str
    resources: Resources
    fixed: bool = False


@dataclass(frozen=True)
class Link:
    """Wires between two blocks. source, target: names of the blocks. stream: whether the wires are a stream
    of tokens; if not, counters only observe them. net: name that links share if they carry the same bits from
    one source; together they cross a boundary once."""

    name: str
    source: str
    target: str
    bits: int
    stream: bool = True
    net: str | None = None


@dataclass(frozen=True)
class _Net:
    """Wires from a block to other blocks. source, targets: numbers of the blocks."""

    bits: int
    source: int
    targets: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The SLRs of all blocks.

    slrs: SLR of each block. used: resources used on each SLR. crossings: number of boundaries that a stream
    crosses, for streams that cross any. bits: sum over all nets of their bits times the boundaries that they
    cross. wires: wires across each boundary.
    """

    slrs: Mapping[str, str]
    used: Mapping[str, Resources]
    crossings: Mapping[str, int]
    bits: int
    wires: tuple[int, ...]

    def fits(self, board: Board) -> bool:
        """Whether no SLR is filled above the share that a design may fill, and no boundary has too many
        wires."""
        full = all(_within(self.used[slr.name], slr.resources * board.fill) for slr in board.slrs)
        return full and all(wires <= board.room for wires in self.wires)

    def shortage(self, board: Board) -> str:
        """The need that most exceeds its limit, with both amounts: "402 of 380 BRAM in SLR0". Empty if the
        placement fits."""
        if self.fits(board):
            return ""
        needs = [
            (
                getattr(self.used[slr.name], name),
                getattr(slr.resources, name) * board.fill,
                RESOURCES[name],
                slr,
            )
            for slr in board.slrs
            for name in _NAMES
        ]
        over = [
            (need / room if room else np.inf, f"{number(need)} of {number(room)} {title} in {slr.name}")
            for need, room, title, slr in needs
            if need > room
        ]
        over += [
            (wires / board.room, f"{wires:,} of {int(board.room):,} wires between SLRs")
            for wires in self.wires
            if wires > board.room
        ]
        return max(over)[1]


def placed(
    blocks: Sequence[Block], links: Sequence[Link], board: Board, slrs: Mapping[str, str]
) -> Placement:
    """The placement with the SLR of each block as in `slrs`."""
    names = [slr.name for slr in board.slrs]
    return _placement(blocks, links, board, [names.index(slrs[block.name]) for block in blocks])


def place(blocks: Sequence[Block], links: Sequence[Link], board: Board) -> Placement:
    """Place all blocks. The same blocks and links in the same order give the same placement."""
    memory = [slr.name for slr in board.slrs].index(board.hbm.slr)
    placement = _placement(blocks, links, board, [memory] * len(blocks))
    total = reduce(add, (block.resources for block in blocks))
    for grain in _GRAINS:
        if placement.fits(board):
            break
        placement = _placement(blocks, links, board, _place_clusters(blocks, links, board, grain))
        if not _within(total, board.resources * board.fill):
            break
    return placement


def shortage(blocks: Sequence[Block], links: Sequence[Link], board: Board) -> str:
    """What every placement on the board lacks: the greatest shortage of the relaxation of the program. Empty
    if the relaxation lacks nothing; then there may be a placement."""
    cluster = _clusters(blocks, links, [slr.resources * 0 for slr in board.slrs])
    lacks = _program(*_joined_blocks(blocks, links, cluster), board).lacks()
    worst = int(np.argmax(lacks))
    if lacks[worst] <= _LACK:
        return ""
    if worst >= len(board.slrs) * len(_NAMES):
        return f"needs {lacks[worst]:.1%} more wires between SLRs than there are"
    slr, name = board.slrs[worst // len(_NAMES)], _NAMES[worst % len(_NAMES)]
    return f"needs {lacks[worst]:.1%} more {RESOURCES[name]} than {slr.name} has room for"


def _place_clusters(blocks: Sequence[Block], links: Sequence[Link], board: Board, grain: float) -> list[int]:
    """Number of the SLR of each block. Blocks of a cluster (`_clusters`) lie together."""
    cluster = _clusters(blocks, links, [slr.resources * (board.fill * grain) for slr in board.slrs])
    at = _program(*_joined_blocks(blocks, links, cluster), board).solve()
    number = {k: n for n, k in enumerate(dict.fromkeys(cluster))}
    return [at[number[k]] for k in cluster]


def _joined_blocks(
    blocks: Sequence[Block], links: Sequence[Link], cluster: Sequence[int]
) -> tuple[list[Block], list[_Net]]:
    """A block for each cluster, and the nets between these blocks."""
    joined: dict[int, Block] = {}
    for block, k in zip(blocks, cluster, strict=True):
        resources = joined[k].resources + block.resources if k in joined else block.resources
        joined[k] = Block(name=str(k), kind="", resources=resources, fixed=block.fixed)
    number = {k: n for n, k in enumerate(joined)}
    of = {block.name: number[k] for block, k in zip(blocks, cluster, strict=True)}
    bits: dict[tuple[int, tuple[int, ...]], int] = {}
    for net in _nets(links, of):
        if targets := tuple(sorted(set(net.targets) - {net.source})):
            bits[net.source, targets] = bits.get((net.source, targets), 0) + net.bits
    return list(joined.values()), [_Net(width, *ends) for ends, width in bits.items()]


def _nets(links: Sequence[Link], number: Mapping[str, int]) -> Iterator[_Net]:
    """The nets of links. number: number of each block, or of the cluster of each block."""
    by_net: dict[tuple[str, bool], list[Link]] = {}
    for link in links:
        by_net.setdefault((link.net or link.name, link.net is None), []).append(link)
    for together in by_net.values():
        targets = tuple(number[link.target] for link in together)
        yield _Net(together[0].bits, number[together[0].source], targets)


def _clusters(blocks: Sequence[Block], links: Sequence[Link], limits: Sequence[Resources]) -> list[int]:
    """The cluster of each block. All fixed blocks are cluster -1. The ends of other links are joined, widest
    link first, as long as the cluster stays within all limits."""
    number = {block.name: k for k, block in enumerate(blocks)}
    cluster = [-1 if block.fixed else k for k, block in enumerate(blocks)]
    members = {k: [k] for k in cluster if k >= 0}
    sizes = {k: blocks[k].resources for k in members}
    for link in sorted(links, key=lambda link: -link.bits):
        a, b = sorted((cluster[number[link.source]], cluster[number[link.target]]))
        if a < 0 or a == b or not all(_within(sizes[a] + sizes[b], limit) for limit in limits):
            continue
        sizes[a] += sizes.pop(b)
        members[a] += members.pop(b)
        for k in members[a]:
            cluster[k] = a
    return cluster


@dataclass(frozen=True, kw_only=True)
class _Program:
    """A mixed integer program. Columns: y by boundary and group of twins, x by boundary and net, then
    shortages by SLR and resource, then shortages by boundary.

    groups: numbers of the blocks of each group of twins. cuts: number of boundaries. first_x, first_lack:
    first columns of their kinds. entries: row, column and coefficient. limits: of the sum of each row. upper,
    lower, costs, whole: of each column.
    """

    groups: Sequence[Sequence[int]]
    cuts: int
    first_x: int
    first_lack: int
    entries: Sequence[tuple[int, int, float]]
    limits: Sequence[float]
    lower: ndarray
    upper: ndarray
    costs: ndarray
    whole: ndarray

    def solve(self) -> list[int]:
        """Number of the SLR of each block."""
        values = self._values(self.costs, self.whole)
        beyond: ndarray = np.rint(values[: self.first_x]).reshape(self.cuts, len(self.groups))
        at = [0] * sum(map(len, self.groups))
        for g, group in enumerate(self.groups):
            for n, k in enumerate(group):  # the first blocks of a group lie nearest to the first SLR
                at[k] = sum(n >= len(group) - far for far in beyond[:, g])
        return at

    def lacks(self) -> ndarray:
        """The shortages that the relaxation cannot avoid, as shares of the limits."""
        costs = np.where(np.arange(len(self.costs)) < self.first_lack, 0.0, self.costs)
        values: ndarray = self._values(costs, np.zeros_like(self.whole))[self.first_lack :]
        return values

    def _values(self, costs: ndarray, whole: ndarray) -> ndarray:
        """The value of each column in the solution. whole: which columns are integers."""
        # slow to load, and most designs fit one SLR
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array

        row, column, factor = zip(*self.entries, strict=True)
        shape = len(self.limits), len(costs)
        result = milp(
            costs,
            integrality=whole,
            bounds=Bounds(self.lower, self.upper),
            constraints=LinearConstraint(coo_array((factor, (row, column)), shape), -np.inf, self.limits),
            options={"mip_rel_gap": _GAP, "node_limit": _NODES},
        )
        if result.x is None:
            raise AssertionError(f"no placement at all: {result.message}")
        values: ndarray = result.x
        return values


def _program(blocks: Sequence[Block], nets: Sequence[_Net], board: Board) -> _Program:
    """The program that places blocks."""
    groups = _twins(blocks, nets)
    nets = _joined(nets, {k: g for g, group in enumerate(groups) for k in group})
    memory = [slr.name for slr in board.slrs].index(board.hbm.slr)
    cuts, count = len(board.slrs) - 1, len(groups)
    first_x = cuts * count
    first_lack = first_x + cuts * len(nets)
    columns = first_lack + len(board.slrs) * len(_NAMES) + cuts
    lacks = iter(range(first_lack, columns))
    rows: list[tuple[int, int, float]] = []  # row, column, coefficient; each row: sum <= limit
    limits: list[float] = []

    def below(limit: float, *terms: tuple[int, float]) -> None:
        rows.extend((len(limits), column, factor) for column, factor in terms if factor)
        limits.append(limit)

    share = [1 / len(group) for group in groups]  # share of one block in its group
    for cut in range(cuts):
        for k in range(count):
            if cut:
                below(0, (cut * count + k, 1), ((cut - 1) * count + k, -1))
        for k, net in enumerate(nets):
            x, source = first_x + cut * len(nets) + k, (cut * count + net.source, share[net.source])
            for target in net.targets:
                for sign in (1, -1):
                    end = cut * count + target, -sign * share[target]
                    below(0, (source[0], sign * source[1]), end, (x, -1))
    for place_, slr in enumerate(board.slrs):
        for name in _NAMES:
            limit = getattr(slr.resources, name) * board.fill
            needs = [getattr(blocks[group[0]].resources, name) for group in groups]
            scale = limit or max(*needs, 1)
            # a block lies here if it is beyond the boundary before and not beyond the boundary behind
            before = (
                [((place_ - 1) * count + k, need / scale) for k, need in enumerate(needs)] if place_ else []
            )
            behind = (
                [(place_ * count + k, -need / scale) for k, need in enumerate(needs)] if place_ < cuts else []
            )
            constant = 0 if place_ else sum(map(mul, needs, map(len, groups))) / scale
            below(limit / scale - constant, *before, *behind, (next(lacks), -1))
    room = board.room
    for cut in range(cuts):
        wires = [(first_x + cut * len(nets) + k, net.bits / room) for k, net in enumerate(nets)]
        below(1, *wires, (next(lacks), -1))
    total = sum(net.bits for net in nets) or 1
    costs = np.full(columns, _OVER)
    costs[:first_x] = 0
    costs[first_x:first_lack] = [net.bits / total for net in nets] * cuts
    lower, upper = np.zeros(columns), np.ones(columns)
    upper[first_lack:] = np.inf
    whole = np.arange(columns) < first_x
    for cut in range(cuts):
        for k, group in enumerate(groups):
            upper[cut * count + k] = len(group)
            if blocks[group[0]].fixed:
                lower[cut * count + k] = upper[cut * count + k] = len(group) * (cut < memory)
        for k, net in enumerate(nets):
            whole[first_x + cut * len(nets) + k] = len(net.targets) > 1
    return _Program(
        groups=groups,
        cuts=cuts,
        first_x=first_x,
        first_lack=first_lack,
        entries=rows,
        limits=limits,
        lower=lower,
        upper=upper,
        costs=costs,
        whole=whole,
    )


def _twins(blocks: Sequence[Block], nets: Sequence[_Net]) -> list[list[int]]:
    """Numbers of the blocks, in groups of twins: blocks with equal needs on equal nets, which could change
    places."""
    hangs: list[list[Hashable]] = [[] for _ in blocks]
    for n, net in enumerate(nets):
        hangs[net.source].append(("source", net.bits, net.targets))
        for target in net.targets:
            alone = ("target", net.bits, net.source)
            hangs[target].append(alone if len(net.targets) == 1 else ("one of", n))
    groups: dict[Hashable, list[int]] = {}
    for k, block in enumerate(blocks):
        groups.setdefault((block.resources, block.fixed, frozenset(Counter(hangs[k]).items())), []).append(k)
    return [*groups.values()]


def _joined(nets: Sequence[_Net], group: Mapping[int, int]) -> list[_Net]:
    """Nets between groups of blocks. The nets of twins become one net with the bits of all."""
    bits: dict[tuple[int, tuple[int, ...], int], int] = {}
    for n, net in enumerate(nets):
        targets = tuple(dict.fromkeys(group[target] for target in net.targets))
        several = n if len(net.targets) > 1 else -1
        key = group[net.source], targets, several
        bits[key] = bits.get(key, 0) + net.bits
    return [_Net(width, source, targets) for (source, targets, _), width in bits.items()]


def _placement(blocks: Sequence[Block], links: Sequence[Link], board: Board, at: Sequence[int]) -> Placement:
    """The placement with block k on SLR at[k]."""
    names = [slr.name for slr in board.slrs]
    where = {block.name: place for block, place in zip(blocks, at, strict=True)}
    crossed = {link.name: abs(where[link.source] - where[link.target]) for link in links}
    nothing = Resources(lut=0, ff=0)
    spans = [
        (net.bits, min(net.source, *net.targets), max(net.source, *net.targets))
        for net in _nets(links, where)
    ]
    return Placement(
        slrs={name: names[place] for name, place in where.items()},
        used={
            name: reduce(add, (block.resources for block in blocks if where[block.name] == place), nothing)
            for place, name in enumerate(names)
        },
        crossings={link.name: n for link in links if link.stream and (n := crossed[link.name])},
        bits=sum(bits * (high - low) for bits, low, high in spans),
        wires=tuple(
            sum(bits for bits, low, high in spans if low <= cut < high) for cut in range(len(names) - 1)
        ),
    )


def _within(used: Resources, limit: Resources) -> bool:
    return all(getattr(used, name) <= getattr(limit, name) * (1 + _ROUNDING) for name in _NAMES)
