"""Kernels that share a card: choose a memory bank for each buffer and an SLR for each kernel, and check that
the card has room for all kernels."""

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
_IDS = 4  # signals of a master that carry an id: one on each AXI channel except W


@dataclass(frozen=True, kw_only=True)
class LinkedKernel:
    """A kernel to be linked.

    folder: its folder inside the folder of the package. slrs: for each SLR, the resources that it takes.
    instances: for each instance in its top module, the SLR. wires: for each boundary between SLRs, the number
    of its own wires that cross it. meets: for each input that another kernel writes, the number of that
    kernel.
    """

    folder: str
    manifest: Manifest
    board: Board
    slrs: Mapping[str, Resources]
    instances: Mapping[str, str]
    wires: tuple[int, ...]
    meets: Mapping[str, int]


def linked(name: str, models: Sequence[str], parts: Sequence[LinkedKernel]) -> Card:
    """The card with these kernels. name: name of the binary. models: folders of the models inside the
    package.

    Raises ValueError for kernels of the same name and for kernels of different boards or clocks. Raises
    BudgetError if the board has too few memory channels, too little memory in a channel, too little of a
    resource, or too few wires between SLRs.
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
    """The board of all kernels."""
    first, names = parts[0], [part.manifest.top for part in parts]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"several kernels of the card would be called {', '.join(map(repr, twice))}: compile each model "
            "with its own name (CompileConfig.name)"
        )
    for part in parts[1:]:
        if part.board != first.board:
            raise ValueError(
                f"{first.manifest.top!r} is compiled for board {first.board.name!r}, {part.manifest.top!r} "
                f"for board {part.board.name!r}: all kernels of a card must be compiled for the same board"
            )
        if part.manifest.clock_mhz != first.manifest.clock_mhz:
            raise ValueError(
                f"{first.manifest.top!r} is compiled for {first.manifest.clock_mhz:g} MHz, "
                f"{part.manifest.top!r} for {part.manifest.clock_mhz:g} MHz: all kernels of a card have the "
                "same clock"
            )
    return first.board


def _banks(parts: Sequence[LinkedKernel], board: Board) -> list[dict[str, int]]:
    """For each kernel, the bank of each buffer. Every port has its own bank: the bank of its channel if it is
    free. An input that another kernel writes lies in the bank of that kernel's output."""
    count = sum(len(part.manifest.ports) for part in parts)
    if len(parts) > 1 and count > board.hbm.channels:
        each = ", ".join(f"{part.manifest.top} {len(part.manifest.ports)}" for part in parts)
        raise BudgetError(
            f"the kernels have {count} memory ports in all ({each}), and each port needs a memory channel; "
            f"board {board.name!r} has {board.hbm.channels} channels: compile with fewer channels"
        )
    taken: set[int] = set()
    banks: list[dict[str, int]] = []
    for part in parts:
        homes: dict[int, int] = {}
        for port in part.manifest.ports:
            free = (bank for bank in (port.channel, *range(board.hbm.channels)) if bank not in taken)
            homes[port.channel] = next(free, port.channel)
            taken.add(homes[port.channel])
        own = {buffer.name: homes[buffer.channel] for buffer in part.manifest.buffers}
        banks.append(own | {name: banks[writer][name] for name, writer in part.meets.items()})
    return banks


def _placed(parts: Sequence[LinkedKernel], banks: Sequence[Mapping[str, int]]) -> list[Buffer]:
    """All buffers of the card, in their banks. A buffer that kernels share is listed once."""
    return [
        replace(buffer, name=f"{part.manifest.top}.{buffer.name}", channel=where[buffer.name])
        for part, where in zip(parts, banks, strict=True)
        for buffer in part.manifest.buffers
        if buffer.name not in part.meets
    ]


def wires(card: Card, parts: Sequence[LinkedKernel]) -> tuple[int, ...]:
    """For each boundary between SLRs, an estimate of the wires of the kernels that cross it. For a kernel on
    several SLRs, these are the wires of its blocks. For a kernel away from the memory, these are the pins of
    its ports, which all lead to the memory."""
    board = parts[0].board
    counts = [_crossing(part, kernel.slr, board) for part, kernel in zip(parts, card.kernels, strict=True)]
    return tuple(map(sum, zip(*counts, strict=True)))


def told_wires(counts: Sequence[int], board: Board) -> str:
    """Text: for each boundary between SLRs, the wires used and the wires that the board has."""
    pairs = zip(pairwise(slr.name for slr in board.slrs), counts, strict=True)
    return ", ".join(f"{count:,} of {board.wires:,} between {a} and {b}" for (a, b), count in pairs)


def _crossing(part: LinkedKernel, slr: str | None, board: Board) -> tuple[int, ...]:
    """For each boundary, the wires of a kernel. slr: the SLR of the kernel; None if its blocks lie on
    several."""
    if slr is None:
        return part.wires
    pins = _REGISTER_PINS + sum(_MASTER_PINS + _IDS * port.id_bits for port in part.manifest.ports)
    order = [region.name for region in board.slrs]
    first, last = sorted((order.index(board.hbm.slr), order.index(slr)))
    return tuple(pins if first <= boundary < last else 0 for boundary in range(len(order) - 1))


def _slrs(name: str, parts: Sequence[LinkedKernel], board: Board) -> list[str | None]:
    """The SLR of each kernel; None for a kernel on several SLRs. A kernel on a single SLR can move to any
    SLR. The largest kernel chooses first, the SLR for which it was compiled before all others."""
    used = {slr.name: _NOTHING for slr in board.slrs}
    crossing = (0,) * (len(board.slrs) - 1)
    totals = [reduce(add, part.slrs.values()) for part in parts]
    compiled = [only_slr(part.instances) for part in parts]

    def placed(k: int, slr: str | None) -> tuple[dict[str, Resources], tuple[int, ...]]:
        """The used resources and the crossing wires with kernel k on `slr`."""
        more = parts[k].slrs if slr is None else {slr: totals[k]}
        counts = zip(crossing, _crossing(parts[k], slr, board), strict=True)
        return {name: used[name] + more.get(name, _NOTHING) for name in used}, tuple(map(sum, counts))

    def fits(used: Mapping[str, Resources], crossing: Sequence[int]) -> bool:
        return not short_of(used, board) and max(crossing, default=0) <= board.room

    for k in range(len(parts)):
        if compiled[k] is None:
            used, crossing = placed(k, None)
    homes: list[str | None] = [None] * len(parts)
    movable = [k for k, slr in enumerate(compiled) if slr is not None]
    for k in sorted(movable, key=lambda k: (-totals[k].lut, k)):
        near = [compiled[k], *used]
        tried = {slr: placed(k, slr) for slr in near}
        room = [slr for slr in near if not short_of(tried[slr][0], board)]
        homes[k] = home = next((slr for slr in room if fits(*tried[slr])), [*room, *near][0])
        used, crossing = placed(k, home)
    if len(parts) > 1 and not fits(used, crossing):
        raise BudgetError(_too_large(name, parts, totals, used, crossing, board))
    return homes


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
        f"{name!r} does not fit the card. Kernels may fill {board.fill:.0%} of each SLR; in the best "
        "placement found, they take",
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
    """A line about the wires between SLRs; empty if the board has enough of them."""
    if max(crossing, default=0) <= board.room:
        return []
    return [f"wires between SLRs, of which {board.wires_fill:.0%} may be used: {told_wires(crossing, board)}"]
