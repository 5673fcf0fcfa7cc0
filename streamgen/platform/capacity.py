"""What a board has room for: whether each memory channel holds its tables and its buffers, before anything is
packed or written; what of each SLR is used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import add

from streamgen.artifact.manifest import Buffer
from streamgen.artifact.roles import USES
from streamgen.base.errors import BudgetError
from streamgen.base.tables import rendered, table
from streamgen.contract.cost import Resources
from streamgen.platform.boards import Board

RESOURCES = {field.name: field.name.upper() for field in fields(Resources)}
"""Their titles, by the fields' names."""
_PAGE = 4096  # hosts give memory in pages
_LARGEST = 5  # buffers that an error names


@dataclass(frozen=True, kw_only=True)
class StoredTable:
    """A table of rows that are found by numbers. rows: with that of unknown numbers. row_bytes: of a row in
    memory, by the formats that the table may have. format: what it has."""

    rows: int
    row_bytes: Mapping[str, int]
    format: str

    @property
    def bytes(self) -> int:
        """In memory."""
        return self.rows * self.row_bytes[self.format]


def require_tables(name: str, tables: Mapping[str, StoredTable], board: Board, *, together: bool) -> None:
    """BudgetError when a channel has less room than a table needs, or than all need that lie together in one:
    with a table of them, and what would help. tables: by the paths of their operations."""
    room = board.hbm.channel_bytes
    held = [tables] if together else [{path: one} for path, one in tables.items()]
    over = [some for some in held if _sum(some) > room]
    if not over:
        return
    listed = table("table", "format", "rows", "bytes a row", "all", "over by", texts=2, lines=False)
    for some in over:
        excess = f"{_sum(some) - room:,}"
        for path, one in some.items():
            sizes = (f"{one.rows:,}", f"{one.row_bytes[one.format]:,}", f"{one.bytes:,}")
            listed.add_row(path, one.format, *sizes, excess if len(some) == 1 else "")
        if len(some) > 1:
            listed.add_row("all", "", "", "", f"{_sum(some):,}", excess)
    least = [{path: _least(one) for path, one in some.items()} for some in over]
    smaller = {
        path: one.format for some in least for path, one in some.items() if one.bytes < tables[path].bytes
    }
    advice = [f"formats={smaller}"] if smaller else []
    if any(_sum(some) > room for some in least):
        advice.append("a board whose channels are larger")
    lines = [
        f"{_short(name, board)}; {'all tables lie' if together else 'a table lies'} in one",
        rendered([listed]),
        f"What would help: {' and '.join(advice)}",
    ]
    raise BudgetError("\n".join(lines))


def require_room(name: str, buffers: Sequence[Buffer], board: Board) -> None:
    """BudgetError when a channel has less room than its buffers need, or when the board has no such channel:
    with a table of the channels that are short, their largest buffers, and what would help."""
    count, room = board.hbm.channels, board.hbm.channel_bytes
    missing = sorted({buffer.channel for buffer in buffers if buffer.channel >= count})
    if missing:
        raise BudgetError(
            f"{name!r} uses memory channel {missing[0]}; board {board.name!r} has channels 0 to {count - 1}"
        )
    by_channel = {buffer.channel: [b for b in buffers if b.channel == buffer.channel] for buffer in buffers}
    needs = {channel: _bytes(its) for channel, its in sorted(by_channel.items())}
    over = [channel for channel, need in needs.items() if need > room]
    if not over:
        return
    largest = sorted((b for b in buffers if b.channel in over), key=lambda b: (-b.bytes, b.name))[:_LARGEST]
    lines = [
        _short(name, board),
        _table({channel: by_channel[channel] for channel in over}, room),
        f"largest there: {', '.join(f'{b.name} (channel {b.channel}) {b.bytes:,}' for b in largest)}",
        f"What would help: {'; '.join(_advice(by_channel, over, sum(needs.values()), board))}",
    ]
    raise BudgetError("\n".join(lines))


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


def _least(one: StoredTable) -> StoredTable:
    """In the format that takes the fewest bytes."""
    return replace(one, format=min(one.row_bytes, key=one.row_bytes.__getitem__))


def _sum(tables: Mapping[str, StoredTable]) -> int:
    return sum(entry.bytes for entry in tables.values())


def _short(name: str, board: Board) -> str:
    room = board.hbm.channel_bytes
    return f"{name!r} does not fit the memory of board {board.name!r}: a channel has {room:,} bytes"


def _bytes(buffers: Sequence[Buffer]) -> int:
    return sum(-(-buffer.bytes // _PAGE) * _PAGE for buffer in buffers)


def _table(by_channel: dict[int, list[Buffer]], room: int) -> str:
    """A row for each channel: bytes by use, in all, and over its room. Spills where there are any."""
    used = {buffer.role for buffers in by_channel.values() for buffer in buffers}
    parts = {title: roles for title, roles in USES.items() if roles != ("spill",) or "spill" in used}
    listed = table("channel", *parts, "all", "over by", texts=0, lines=False)
    for channel, buffers in by_channel.items():
        uses = [_bytes([b for b in buffers if b.role in roles]) for roles in parts.values()]
        total = _bytes(buffers)
        listed.add_row(str(channel), *(f"{use:,}" for use in (*uses, total, total - room)))
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
