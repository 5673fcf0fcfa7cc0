"""Group equal rows of a report, such as those of 32 columns, into one line with their range of values."""

import re
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import TypeVar

FEWEST = 3  # rows that share a line
Row = TypeVar("Row")


def gathered(
    rows: Sequence[Row], name: Callable[[Row], str], kind: Callable[[Row], Hashable]
) -> list[list[Row]]:
    """Group rows of one kind whose names differ in a single number. Groups keep the order of their first
    rows. Every other row is a group of its own."""
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault((re.sub(r"\d+", "#", name(row)), kind(row)), []).append(row)
    return [
        part
        for several in groups.values()
        for part in ([several] if _is_line([name(row) for row in several]) else [[row] for row in several])
    ]


def rows(
    values: Sequence[Row],
    kind: Callable[[Row], Hashable],
    full: bool,
    name: Callable[[Row], str] = attrgetter("name"),
) -> list[list[Row]]:
    """Rows of a table by line. full: every row has its own line."""
    return [[row] for row in values] if full else gathered(values, name, kind)


def named(names: Sequence[str]) -> str:
    """One name for several names: `column0..31`."""
    first, last = (re.split(r"(\d+)", name) for name in (names[0], names[-1]))
    pairs = zip(first, last, strict=True)
    return "".join(a if a == b else f"{a}..{b}" for a, b in pairs)


def spread(values: Sequence[int]) -> str:
    """The least and the greatest value, or the single value."""
    least, most = min(values), max(values)
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"


def _is_line(names: Sequence[str]) -> bool:
    """Whether there are at least `FEWEST` names, and only one number tells them apart, at one place or
    several."""
    numbers = [re.findall(r"\d+", name) for name in names]
    changing = [column for column in zip(*numbers, strict=True) if len(set(column)) > 1]
    return len(names) >= FEWEST and bool(changing) and all(column == changing[0] for column in changing)
