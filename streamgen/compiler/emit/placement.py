"""Which SLR of the card each block of a design lies on.

The memory is at one SLR; what hangs on it (masters, DMAs, control) is fixed there. All other blocks lie such
that no SLR is filled above its share, if that can be, and that few bits cross from SLR to SLR.

It is a mixed integer program for HiGHS. The SLRs in order, block b is beyond boundary k when y[b, k] = 1, and
y falls with k; net l crosses boundary k when x[l, k] >= |y[source, k] - y[target, k]|, for all its targets,
is 1: nested minimal cuts under limits, which the relaxation nearly solves. Minimised are the bits of all
crossings, and above them the shares by which an SLR has too little of a resource, or a boundary too few
wires: each for itself, so that what cannot be had hides nothing else. Blocks joined by wide links are placed
together, so that the program stays small. Twins, blocks of equal needs on equal nets like the columns of an
engine, are one y that counts them: it matters how many lie where, not which.
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

_GRAINS = (0.05, 0.01)  # size of a cluster, as a share of an SLR's limit; the finer one if the first fails
_GAP = 0.05  # of the bits, to a bound of the fewest
_NODES = 1000  # of the search tree, so that it ends on any machine at the same place
_OVER = 100.0  # weight of a share that is lacking against the share of all bits that cross
_ROUNDING = 1e-6  # of the solver
_NAMES = tuple(field.name for field in fields(Resources))


@dataclass(frozen=True, kw_only=True)
class Block:
    """What is placed as a whole. fixed: it lies at the memory."""

    name: str
    kind: str
    resources: Resources
    fixed: bool = False


@dataclass(frozen=True)
class Link:
    """Wires between two blocks, by their names. stream: tokens pass there; else somebody only looks on.
    net: links of one name carry the same from one source, so that together they cross a boundary once."""

    name: str
    source: str
    target: str
    bits: int
    stream: bool = True
    net: str | None = None


@dataclass(frozen=True)
class _Net:
    """Wires from a block to others, all by number."""

    bits: int
    source: int
    targets: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """slrs: name of the SLR by block. used: resources by SLR. crossings: by stream, boundaries that it
    crosses, where it crosses any. bits: of the nets, times the boundaries. wires: by boundary."""

    slrs: Mapping[str, str]
    used: Mapping[str, Resources]
    crossings: Mapping[str, int]
    bits: int
    wires: tuple[int, ...]

    def fits(self, board: Board) -> bool:
        """Whether no SLR is filled above the share that a design may fill, nor the wires between any two."""
        full = all(_within(self.used[slr.name], slr.resources * board.fill) for slr in board.slrs)
        return full and all(wires <= board.room for wires in self.wires)


def placed(
    blocks: Sequence[Block], links: Sequence[Link], board: Board, slrs: Mapping[str, str]
) -> Placement:
    """The placement with each block where `slrs` says."""
    names = [slr.name for slr in board.slrs]
    return _placement(blocks, links, board, [names.index(slrs[block.name]) for block in blocks])


def place(blocks: Sequence[Block], links: Sequence[Link], board: Board) -> Placement:
    """Place all blocks; the same blocks and links in the same order give the same placement."""
    memory = [slr.name for slr in board.slrs].index(board.hbm.slr)
    found = _placement(blocks, links, board, [memory] * len(blocks))
    total = reduce(add, (block.resources for block in blocks))
    for grain in _GRAINS:
        if found.fits(board):
            break
        found = _placement(blocks, links, board, _place_clusters(blocks, links, board, grain))
        if not _within(total, board.resources * board.fill):
            break
    return found


def _place_clusters(blocks: Sequence[Block], links: Sequence[Link], board: Board, grain: float) -> list[int]:
    """The SLR of each block, by number, with blocks joined as `_clusters` does."""
    cluster = _clusters(blocks, links, [slr.resources * (board.fill * grain) for slr in board.slrs])
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
    at = _solve(list(joined.values()), [_Net(width, *ends) for ends, width in bits.items()], board)
    return [at[number[k]] for k in cluster]


def _nets(links: Sequence[Link], number: Mapping[str, int]) -> Iterator[_Net]:
    """What crosses boundaries together. number: of each block, or of what it belongs to."""
    found: dict[tuple[str, bool], list[Link]] = {}
    for link in links:
        found.setdefault((link.net or link.name, link.net is None), []).append(link)
    for together in found.values():
        targets = tuple(number[link.target] for link in together)
        yield _Net(together[0].bits, number[together[0].source], targets)


def _clusters(blocks: Sequence[Block], links: Sequence[Link], limits: Sequence[Resources]) -> list[int]:
    """The cluster of each block: all that is fixed is one; of the rest, the ends of the widest links are
    joined first, as long as a cluster keeps within all limits."""
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


def _solve(blocks: Sequence[Block], nets: Sequence[_Net], board: Board) -> list[int]:
    """The SLR of each block, by number. Columns of the program: y by boundary and group of twins, x by
    boundary and net, what is lacking by SLR and resource, then by boundary."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow to load, and most designs fit one SLR
    from scipy.sparse import coo_array

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

    share = [1 / len(group) for group in groups]  # of a group, that one is
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
            # a block lies here when it is beyond the boundary before and not beyond the one behind
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
    row, column, factor = zip(*rows, strict=True)
    result = milp(
        costs,
        integrality=whole,
        bounds=Bounds(lower, upper),
        constraints=LinearConstraint(
            coo_array((factor, (row, column)), (len(limits), columns)), -np.inf, limits
        ),
        options={"mip_rel_gap": _GAP, "node_limit": _NODES},
    )
    if result.x is None:
        raise AssertionError(f"no placement at all: {result.message}")
    beyond: ndarray = np.rint(result.x[:first_x]).reshape(cuts, count)
    at = [0] * len(blocks)
    for g, group in enumerate(groups):
        for n, k in enumerate(group):  # the first of a group lie nearest to the first SLR
            at[k] = sum(n >= len(group) - far for far in beyond[:, g])
    return at


def _twins(blocks: Sequence[Block], nets: Sequence[_Net]) -> list[list[int]]:
    """Blocks by number: together those that could change places, for what they need and hang on is equal."""
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
    """Nets between groups: those of twins are one, with the bits of all."""
    bits: dict[tuple[int, tuple[int, ...], int], int] = {}
    for n, net in enumerate(nets):
        targets = tuple(dict.fromkeys(group[target] for target in net.targets))
        several = n if len(net.targets) > 1 else -1
        key = group[net.source], targets, several
        bits[key] = bits.get(key, 0) + net.bits
    return [_Net(width, source, targets) for (source, targets, _), width in bits.items()]


def _placement(blocks: Sequence[Block], links: Sequence[Link], board: Board, at: Sequence[int]) -> Placement:
    """The placement with block k at SLR at[k]."""
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
