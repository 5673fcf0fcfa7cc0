"""Numbers and lists in messages."""

from collections.abc import Iterable


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 token`, `1,024 tokens`. plural: plural of the noun, if it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def duration(seconds: float) -> str:
    """`7 s`, `2 min 5 s`, `3 h 20 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def alternatives(values: Iterable[object]) -> str:
    """Values as a list of alternatives in a message: 'a', 'b' or 'c'; 1, 2 or 4."""
    *first, last = map(repr, values)
    return f"{', '.join(first)} or {last}" if first else last
