"""Kernels that share a card: a memory bank for each of their buffers, an SLR for each of them, and whether
the card has room for all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

from streamgen.boards import Board
from streamgen.capacity import RESOURCES, number, require_room, short_of, usage
from streamgen.cost import Resources
from streamgen.errors import BudgetError
from streamgen.manifest import Buffer, Manifest
from streamgen.package.constraints import only_slr
from streamgen.runtime.card import Card, Kernel

__all__ = ["Part", "linked"]

_NOTHING = Resources(lut=0, ff=0)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A kernel that is to be linked. folder: inside that of the package. slrs: what it takes of each.
    instances: the SLR of each in its top. meets: its inputs that another kernel writes, and which one, by
    its number."""

    folder: str
    manifest: Manifest
    board: Board
    slrs: Mapping[str, Resources]
    instances: Mapping[str, str]
    meets: Mapping[str, int]


def linked(name: str, models: Sequence[str], parts: Sequence[Part]) -> Card:
    """What is linked of these kernels. name: of the binary. models: folders inside that of the package.

    ValueError for kernels of one name, of several boards or clocks; BudgetError when the board has too few
    memory channels, too little memory in one, or too little of a resource.
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


def _one_board(parts: Sequence[Part]) -> Board:
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


def _banks(parts: Sequence[Part], board: Board) -> list[dict[str, int]]:
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


def _placed(parts: Sequence[Part], banks: Sequence[Mapping[str, int]]) -> list[Buffer]:
    """All buffers of the card, in their banks; those that kernels share once."""
    return [
        replace(buffer, name=f"{part.manifest.top}.{buffer.name}", channel=where[buffer.name])
        for part, where in zip(parts, banks, strict=True)
        for buffer in part.manifest.buffers
        if buffer.name not in part.meets
    ]


def _slrs(name: str, parts: Sequence[Part], board: Board) -> list[str | None]:
    """The SLR of each kernel, None for those on several. One that lies on a single SLR can be on any: the
    largest choose first, the nearest to the memory that has room."""
    used = {slr.name: _NOTHING for slr in board.slrs}
    totals = [reduce(add, part.slrs.values()) for part in parts]
    movable = [only_slr(part.instances) is not None for part in parts]
    for part, moves in zip(parts, movable, strict=True):
        if not moves:
            used = {slr: used[slr] + part.slrs[slr] for slr in used}
    found: list[str | None] = [None] * len(parts)
    for k in sorted((k for k in range(len(parts)) if movable[k]), key=lambda k: (-totals[k].lut, k)):
        near = [only_slr(parts[k].instances) or board.hbm.slr, *used]
        room = (slr for slr in near if not short_of({**used, slr: used[slr] + totals[k]}, board))
        found[k] = place = next(room, near[0])
        used[place] += totals[k]
    if len(parts) > 1 and short_of(used, board):
        raise BudgetError(_too_large(name, parts, totals, used, board))
    return found


def _too_large(
    name: str,
    parts: Sequence[Part],
    totals: Sequence[Resources],
    used: Mapping[str, Resources],
    board: Board,
) -> str:
    short = short_of(used, board)
    lines = [
        f"{name!r} does not fit the card. Kernels may fill {board.fill:.0%} of each SLR; placed as well as "
        "can be, they take",
        usage(used, board),
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
