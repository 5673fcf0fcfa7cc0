"""Kernels that share a card: a memory bank for each of their buffers, an SLR for each of them, and whether
the card has room for all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from operator import add

from streamgen.artifact.manifest import Buffer, Manifest
from streamgen.base.errors import BudgetError
from streamgen.contract.cost import Resources
from streamgen.package.constraints import only_slr
from streamgen.platform.boards import Board
from streamgen.platform.capacity import RESOURCES, number, require_room, short_of, usage
from streamgen.runtime.card import Card, Kernel

_NOTHING = Resources(lut=0, ff=0)
_REGISTER_PINS = 32 + 32 + 4 + 12 + 12 + 2 + 2 + 10  # data, strobes, addresses, responses, handshakes
_MASTER_PINS = 2 * (512 + 64 + 8) + 64 + 2 + 2 + 2 + 10  # data, addresses, lengths; strobes, last, responses
_IDS = 4  # of a master, one on each channel but W


@dataclass(frozen=True, kw_only=True)
class LinkedKernel:
    """A kernel that is to be linked. folder: inside that of the package. slrs: what it takes of each.
    instances: the SLR of each in its top. wires: of its own, at each boundary of SLRs. meets: its inputs that
    another kernel writes, and which one, by its number."""

    folder: str
    manifest: Manifest
    board: Board
    slrs: Mapping[str, Resources]
    instances: Mapping[str, str]
    wires: tuple[int, ...]
    meets: Mapping[str, int]


def linked(name: str, models: Sequence[str], parts: Sequence[LinkedKernel]) -> Card:
    """What is linked of these kernels. name: of the binary. models: folders inside that of the package.

    ValueError for kernels of one name, of several boards or clocks; BudgetError when the board has too few
    memory channels, too little memory in one, too little of a resource, or too few wires between SLRs.
    """
    board = _one_board(parts)
    banks = _banks(parts, board)
    slrs = _slrs(name, parts, board)
    kernels = tuple(
        Kernel(folder=part.folder, name=part.manifest.top, slr=slr, banks=where)
        for part, slr, where in zip(parts, slrs, banks, strict=True)
    )
    if len(parts) > 1:
        require_room(name, list(_placed(parts, banks)), board)
    return Card(name=name, models=tuple(models), kernels=kernels)


def _one_board(parts: Sequence[LinkedKernel]) -> Board:
    """That of all kernels."""
    first, names = parts[0], [part.manifest.top for part in parts]
    if twice := sorted({one for one in names if names.count(one) > 1}):
        raise ValueError(
            f"several kernels of the card would be called {', '.join(map(repr, twice))}: compile each model "
            "with a name of its own (CompileConfig.name)"
        )
    for part in parts[1:]:
        if part.board != first.board:
            raise ValueError(
                f"{first.manifest.top!r} is compiled for board {first.board.name!r}, {part.manifest.top!r} "
                f"for {part.board.name!r}: "
                "one card takes kernels of one and the same board"
            )
        if part.manifest.clock_mhz != first.manifest.clock_mhz:
            raise ValueError(
                f"{first.manifest.top!r} is compiled for {first.manifest.clock_mhz:g} MHz, "
                f"{part.manifest.top!r} for {part.manifest.clock_mhz:g}: the kernels of a card have one clock"
            )
    return first.board


def _banks(parts: Sequence[LinkedKernel], board: Board) -> list[dict[str, int]]:
    """The bank of each buffer: every port has one for itself, that of its channel where it is free; an input
    that another kernel writes lies where that one writes it."""
    count = sum(len(part.manifest.ports) for part in parts)
    if len(parts) > 1 and count > board.hbm.channels:
        each = ", ".join(f"{part.manifest.top} {len(part.manifest.ports)}" for part in parts)
        raise BudgetError(
            f"the kernels have {count} memory ports together ({each}); board {board.name!r} has "
            f"{board.hbm.channels} memory channels, one for each: compile with fewer channels"
        )
    taken: set[int] = set()
    found: list[dict[str, int]] = []
    for part in parts:
        homes: dict[int, int] = {}
        for port in part.manifest.ports:
            free = (bank for bank in (port.channel, *range(board.hbm.channels)) if bank not in taken)
            homes[port.channel] = next(free, port.channel)
            taken.add(homes[port.channel])
        banks = {buffer.name: homes[buffer.channel] for buffer in part.manifest.buffers}
        found.append(banks | {name: found[writer][name] for name, writer in part.meets.items()})
    return found


def _placed(parts: Sequence[LinkedKernel], banks: Sequence[Mapping[str, int]]) -> list[Buffer]:
    """All buffers of the card, in their banks; those that kernels share once."""
    return [
        replace(buffer, name=f"{part.manifest.top}.{buffer.name}", channel=where[buffer.name])
        for part, where in zip(parts, banks, strict=True)
        for buffer in part.manifest.buffers
        if buffer.name not in part.meets
    ]


def wires(card: Card, parts: Sequence[LinkedKernel]) -> tuple[int, ...]:
    """About how many wires of the kernels cross each boundary of SLRs: those of blocks on several, and pins
    of kernels that lie away from the memory, to which all their ports lead."""
    board = parts[0].board
    counts = [_crossing(part, of.slr, board) for part, of in zip(parts, card.kernels, strict=True)]
    return tuple(map(sum, zip(*counts, strict=True)))


def told_wires(counts: Sequence[int], board: Board) -> str:
    """The wires at each boundary, of those that there are."""
    pairs = zip(pairwise(slr.name for slr in board.slrs), counts, strict=True)
    return ", ".join(f"{count:,} of {board.wires:,} between {a} and {b}" for (a, b), count in pairs)


def _crossing(part: LinkedKernel, slr: str | None, board: Board) -> tuple[int, ...]:
    """Wires of a kernel at each boundary, when it lies on this SLR; None where its blocks lie on several."""
    if slr is None:
        return part.wires
    pins = _REGISTER_PINS + sum(_MASTER_PINS + _IDS * port.id_bits for port in part.manifest.ports)
    order = [one.name for one in board.slrs]
    first, last = sorted((order.index(board.hbm.slr), order.index(slr)))
    return tuple(pins if first <= boundary < last else 0 for boundary in range(len(order) - 1))


def _slrs(name: str, parts: Sequence[LinkedKernel], board: Board) -> list[str | None]:
    """The SLR of each kernel, None for those on several. One that lies on a single SLR can be on any: the
    largest choose first, the nearest to the memory that has room."""
    used = {slr.name: _NOTHING for slr in board.slrs}
    crossing = (0,) * (len(board.slrs) - 1)
    totals = [reduce(add, part.slrs.values()) for part in parts]
    movable = [only_slr(part.instances) is not None for part in parts]

    def with_it(k: int, slr: str | None) -> tuple[dict[str, Resources], tuple[int, ...]]:
        """What is used when a kernel is put there, and the wires."""
        more = parts[k].slrs if slr is None else {slr: totals[k]}
        counts = zip(crossing, _crossing(parts[k], slr, board), strict=True)
        return {one: used[one] + more.get(one, _NOTHING) for one in used}, tuple(map(sum, counts))

    def fits(used: Mapping[str, Resources], crossing: Sequence[int]) -> bool:
        return not short_of(used, board) and max(crossing, default=0) <= board.room

    for k in range(len(parts)):
        if not movable[k]:
            used, crossing = with_it(k, None)
    found: list[str | None] = [None] * len(parts)
    for k in sorted((k for k in range(len(parts)) if movable[k]), key=lambda k: (-totals[k].lut, k)):
        near = [only_slr(parts[k].instances) or board.hbm.slr, *used]
        tried = {slr: with_it(k, slr) for slr in near}
        room = [slr for slr in near if not short_of(tried[slr][0], board)]
        found[k] = place = next((slr for slr in room if fits(*tried[slr])), [*room, *near][0])
        used, crossing = with_it(k, place)
    if len(parts) > 1 and not fits(used, crossing):
        raise BudgetError(_too_large(name, parts, totals, used, crossing, board))
    return found


def _too_large(
    name: str,
    parts: Sequence[LinkedKernel],
    totals: Sequence[Resources],
    used: Mapping[str, Resources],
    crossing: Sequence[int],
    board: Board,
) -> str:
    short = short_of(used, board)
    lines = [
        f"{name!r} does not fit the card. Kernels may fill {board.fill:.0%} of each SLR; placed as well as "
        "can be, they take",
        usage(used, board),
        *_too_many(crossing, board),
        *(
            f"most {RESOURCES[resource]}: "
            + ", ".join(
                f"{part.manifest.top} {number(getattr(total, resource))}"
                for part, total in sorted(
                    zip(parts, totals, strict=True), key=lambda pair: -getattr(pair[1], resource)
                )
            )
            for resource in short
        ),
        "What would help: fewer models on the card, or models compiled with fewer multipliers",
    ]
    return "\n".join(lines)


def _too_many(crossing: Sequence[int], board: Board) -> list[str]:
    """A line about the wires between SLRs when they are too many."""
    if max(crossing, default=0) <= board.room:
        return []
    return [f"wires between SLRs, of which {board.wires_fill:.0%} may be used: {told_wires(crossing, board)}"]
