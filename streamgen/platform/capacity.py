"""What a board has room for: whether each memory channel holds its buffers, before anything is packed or
written; what of each SLR is used."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import reduce
from operator import add

from streamgen.artifact.manifest import Buffer
from streamgen.artifact.roles import USES
from streamgen.base.errors import BudgetError
from streamgen.base.tables import rendered, table
from streamgen.base.wording import counted
from streamgen.contract.cost import Resources
from streamgen.platform.boards import Board

RESOURCES = {field.name: field.name.upper() for field in fields(Resources)}
"""Their titles, by the fields' names."""
_PAGE = 4096  # hosts give memory in pages
_LARGEST = 5  # buffers that an error names


def in_pages(count: int) -> int:
    """The bytes that a buffer takes from its channel."""
    return -(-count // _PAGE) * _PAGE


def bytes_by_channel(buffers: Iterable[Buffer]) -> dict[int, int]:
    """The bytes that buffers take from each channel, in whole pages."""
    taken: Counter[int] = Counter()
    for buffer in buffers:
        taken[buffer.channel] += in_pages(buffer.bytes)
    return dict(taken)


def require_room(name: str, buffers: Sequence[Buffer], board: Board, channels: int | None = None) -> None:
    """BudgetError when a channel has less room than its buffers need, or when the board has no such channel:
    with a table of the channels that are short, their largest buffers, and what would help. channels: those
    that the design may use; all of the board by default."""
    count, room = board.hbm.channels, board.hbm.channel_bytes
    missing = sorted({buffer.channel for buffer in buffers if buffer.channel >= count})
    if missing:
        raise BudgetError(
            f"{name!r} uses memory channel {missing[0]}; board {board.name!r} has channels 0 to {count - 1}"
        )
    by_channel = {buffer.channel: [b for b in buffers if b.channel == buffer.channel] for buffer in buffers}
    needs = dict(sorted(bytes_by_channel(buffers).items()))
    over = [channel for channel, need in needs.items() if need > room]
    if not over:
        return
    usable = max(channels or count, len(needs))
    needed, available = sum(needs.values()), usable * room
    largest = sorted((b for b in buffers if b.channel in over), key=lambda b: (-b.bytes, b.name))[:_LARGEST]
    lines = [
        f"{name!r} does not fit the memory of board {board.name!r}: it needs {needed:,} bytes; "
        f"{counted(usable, 'channel')} of {room:,} bytes have {available:,}"
        + (f", but {counted(len(over), 'channel')} would be too full" if needed <= available else ""),
        _table({channel: by_channel[channel] for channel in over}, room),
        f"largest there: {', '.join(f'{b.name} (channel {b.channel}) {b.bytes:,}' for b in largest)}",
        f"What frees room: {'; '.join(_advice(by_channel, over, needed, board))}",
    ]
    raise BudgetError("\n".join(lines), needed_bytes=needed, available_bytes=available)


def short_of(used: Mapping[str, Resources], board: Board) -> list[str]:
    """Resources of which some SLR has too little. used: by SLR."""
    return [
        resource
        for resource in RESOURCES
        if any(
            getattr(used[slr.name], resource) > getattr(slr.resources, resource) * board.fill
            for slr in board.slrs
        )
    ]


def usage(used: Mapping[str, Resources], board: Board) -> str:
    """Rows of what is used and allowed, SLR by SLR and in all; what is over its limit has a mark."""
    listed = table("", *RESOURCES.values(), lines=False)
    regions = [(slr.name, used[slr.name], slr.resources * board.fill) for slr in board.slrs]
    total, limit = (reduce(add, column) for column in list(zip(*regions, strict=True))[1:])
    for region, need, may in [*regions, ("all", total, limit)]:
        cells = []
        for resource in RESOURCES:
            over = "!" if getattr(need, resource) > getattr(may, resource) else " "
            cells.append(f"{number(getattr(need, resource))} of {number(getattr(may, resource))}{over}")
        listed.add_row(region, *cells)
    return rendered([listed])


def number(value: float) -> str:
    """Halves (of block memories) are exact, what is estimated is rounded."""
    return f"{value if float(2 * value).is_integer() else round(value):,}".removesuffix(".0")


def _table(by_channel: dict[int, list[Buffer]], room: int) -> str:
    """A row for each channel: bytes by use, in all, and over its room. Spills where there are any."""
    used = {buffer.role for buffers in by_channel.values() for buffer in buffers}
    parts = {title: roles for title, roles in USES.items() if roles != ("spill",) or "spill" in used}
    listed = table("channel", *parts, "all", "over by", texts=0, lines=False)
    runs: list[tuple[list[int], list[int]]] = []  # channels that hold the same, and its bytes by use
    for channel, buffers in by_channel.items():
        uses = [sum(in_pages(b.bytes) for b in buffers if b.role in roles) for roles in parts.values()]
        if runs and runs[-1][0][-1] == channel - 1 and runs[-1][1] == uses:
            runs[-1][0].append(channel)
        else:
            runs.append(([channel], uses))
    for channels, uses in runs:
        name = f"{channels[0]}" + (f" to {channels[-1]}" if len(channels) > 1 else "")
        total = sum(uses)
        listed.add_row(name, *(f"{use:,}" for use in (*uses, total, total - room)))
    return rendered([listed])


def _advice(by_channel: dict[int, list[Buffer]], over: list[int], total: int, board: Board) -> list[str]:
    """Changes of the configuration that free what is short."""
    advice = []
    roles = {buffer.role for channel in over for buffer in by_channel[channel]}
    if "weights" in roles and len(by_channel) < board.hbm.channels:
        least = -(-total // board.hbm.channel_bytes)
        advice.append(f"more channels ({len(by_channel)} are in use, all bytes need {least} at least)")
    if "weights" in roles:
        advice.append("weights of fewer bits")
    if "state" in roles:
        advice.append("a smaller context")
    if roles & {"input", "output", "spill"}:
        advice.append("a smaller max_tokens")
    if "spill" in roles:
        advice.append("a larger hold_bits, with which less goes through memory")
    return [*advice, "a board whose channels are larger"]
