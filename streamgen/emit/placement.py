"""Which SLR of the card each block of a design lies on.

The memory is at one SLR; what hangs on it (masters, DMAs, control) is fixed there. All other blocks lie such
that no SLR is filled above its share, if that can be, and that few bits cross from SLR to SLR.

It is a mixed integer program for HiGHS. The SLRs in order, block b is beyond boundary k when y[b, k] = 1, and
y falls with k; link l crosses boundary k when x[l, k] >= |y[source, k] - y[target, k]| is 1: nested minimal
cuts under limits, which the relaxation nearly solves. Minimised are the bits of all crossings, and above
them t, by which share the fullest SLR is over its limit. Blocks joined by wide links are placed together, so
that the program stays small.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from operator import add

import numpy as np
from numpy import ndarray

from streamgen.boards import Board
from streamgen.cost import Resources

__all__ = ["Block", "Link", "Placement", "place", "placed"]

_GRAINS = (0.05, 0.01)  # size of a cluster, as a share of an SLR's limit; the finer one if the first fails
_GAP = 0.05  # of the bits, to a bound of the fewest
_NODES = 1000  # of the search tree, so that it ends on any machine at the same place
_OVER = 100.0  # weight of t against the share of all bits that cross
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
    """Wires between two blocks, by their names. stream: tokens pass there; else somebody only looks on."""

    name: str
    source: str
    target: str
    bits: int
    stream: bool = True


@dataclass(frozen=True, kw_only=True)
class Placement:
    """slrs: name of the SLR by block. used: resources by SLR. crossings: by stream, boundaries that it
    crosses, where it crosses any. bits: of the links, times the boundaries. wires: by boundary."""

    slrs: Mapping[str, str]
    used: Mapping[str, Resources]
    crossings: Mapping[str, int]
    bits: int
    wires: tuple[int, ...]

    def fits(self, board: Board) -> bool:
        """Whether no SLR is filled above the share that a design may fill, nor the wires between any two."""
        full = all(_within(self.used[slr.name], slr.resources * board.fill) for slr in board.slrs)
        return full and all(wires <= board.wires * board.fill for wires in self.wires)


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
    of = {block.name: str(k) for block, k in zip(blocks, cluster, strict=True)}
    bits: dict[tuple[str, str], int] = {}
    for link in links:
        ends = of[link.source], of[link.target]
        if ends[0] != ends[1]:
            bits[ends] = bits.get(ends, 0) + link.bits
    at = _solve(list(joined.values()), [Link("", *ends, width) for ends, width in bits.items()], board)
    place_of = dict(zip(joined, at, strict=True))
    return [place_of[k] for k in cluster]


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


def _solve(blocks: Sequence[Block], links: Sequence[Link], board: Board) -> list[int]:
    """The SLR of each block, by number. Columns of the program: y by boundary and block, x by boundary and
    link, t."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow to load, and most designs fit one SLR
    from scipy.sparse import coo_array

    memory = [slr.name for slr in board.slrs].index(board.hbm.slr)
    cuts, count = len(board.slrs) - 1, len(blocks)
    first_x = cuts * count
    t = first_x + cuts * len(links)
    number = {block.name: k for k, block in enumerate(blocks)}
    rows: list[tuple[int, int, float]] = []  # row, column, coefficient; each row: sum <= limit
    limits: list[float] = []

    def below(limit: float, *terms: tuple[int, float]) -> None:
        rows.extend((len(limits), column, factor) for column, factor in terms if factor)
        limits.append(limit)

    for cut in range(cuts):
        for k in range(count):
            if cut:
                below(0, (cut * count + k, 1), ((cut - 1) * count + k, -1))
        for k, link in enumerate(links):
            x = first_x + cut * len(links) + k
            source, target = cut * count + number[link.source], cut * count + number[link.target]
            below(0, (source, 1), (target, -1), (x, -1))
            below(0, (target, 1), (source, -1), (x, -1))
    for place_, slr in enumerate(board.slrs):
        for name in _NAMES:
            limit = getattr(slr.resources, name) * board.fill
            needs = [getattr(block.resources, name) for block in blocks]
            scale = limit or max(*needs, 1)
            # a block lies here when it is beyond the boundary before and not beyond the one behind
            before = (
                [((place_ - 1) * count + k, need / scale) for k, need in enumerate(needs)] if place_ else []
            )
            behind = (
                [(place_ * count + k, -need / scale) for k, need in enumerate(needs)] if place_ < cuts else []
            )
            constant = 0 if place_ else sum(needs) / scale
            below(limit / scale - constant, *before, *behind, (t, -1))
    room = board.wires * board.fill
    for cut in range(cuts):
        wires = [(first_x + cut * len(links) + k, link.bits / room) for k, link in enumerate(links)]
        below(1, *wires, (t, -1))
    total = sum(link.bits for link in links) or 1
    costs = np.zeros(t + 1)
    costs[first_x:t] = [link.bits / total for link in links] * cuts
    costs[t] = _OVER
    lower, upper = np.zeros(t + 1), np.ones(t + 1)
    upper[t] = np.inf
    for k, block in enumerate(blocks):
        if block.fixed:
            for cut in range(cuts):
                lower[cut * count + k] = upper[cut * count + k] = float(cut < memory)
    row, column, factor = zip(*rows, strict=True)
    result = milp(
        costs,
        integrality=np.arange(t + 1) < first_x,
        bounds=Bounds(lower, upper),
        constraints=LinearConstraint(
            coo_array((factor, (row, column)), (len(limits), t + 1)), -np.inf, limits
        ),
        options={"mip_rel_gap": _GAP, "node_limit": _NODES},
    )
    if result.x is None:
        raise AssertionError(f"no placement at all: {result.message}")
    beyond: ndarray = np.rint(result.x[:first_x]).reshape(cuts, count)
    return [int(n) for n in beyond.sum(0)]


def _placement(blocks: Sequence[Block], links: Sequence[Link], board: Board, at: Sequence[int]) -> Placement:
    """The placement with block k at SLR at[k]."""
    names = [slr.name for slr in board.slrs]
    where = {block.name: place for block, place in zip(blocks, at, strict=True)}
    crossed = {link.name: abs(where[link.source] - where[link.target]) for link in links}
    nothing = Resources(lut=0, ff=0)
    ends = [sorted((where[link.source], where[link.target])) for link in links]
    return Placement(
        slrs={name: names[place] for name, place in where.items()},
        used={
            name: reduce(add, (block.resources for block in blocks if where[block.name] == place), nothing)
            for place, name in enumerate(names)
        },
        crossings={link.name: n for link in links if link.stream and (n := crossed[link.name])},
        bits=sum(link.bits * crossed[link.name] for link in links),
        wires=tuple(
            sum(link.bits for link, (low, high) in zip(links, ends, strict=True) if low <= cut < high)
            for cut in range(len(names) - 1)
        ),
    )


def _within(used: Resources, limit: Resources) -> bool:
    return all(getattr(used, name) <= getattr(limit, name) * (1 + _ROUNDING) for name in _NAMES)
