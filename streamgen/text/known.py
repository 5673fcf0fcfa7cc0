"""Checks the fields of tokenizer files against those that a reader knows.

A reader names the fields that it uses and the fields that cannot change a text, each with the reason. Any
field may have a value without effect. All other fields are refused by name, because ignoring a field could
change a text without a message.
"""

from collections.abc import Collection, Mapping
from typing import Any

SHOWN = 60  # characters of a value that a message holds


def says_nothing(value: Any) -> bool:
    """Whether a value is null, false or empty. 0 is a number, and may be an id."""
    return value is None or value is False or (isinstance(value, (str, list, dict)) and not value)


def shown(value: Any) -> str:
    """A value for a message, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def require_known(
    fields: Mapping[str, Any],
    where: str,
    *,
    computed: Collection[str],
    allowed: Mapping[str, Collection[Any]],
    harmless: Mapping[str, Collection[str]],
) -> None:
    """Raise ValueError for the first field that is unknown, or that has an unknown value.

    where: the file, for the message. computed: fields that the reader checks itself. allowed: by field, its
    only known values. harmless: by reason, fields that change no text.
    """
    idle = {name for names in harmless.values() for name in names}
    for name, value in fields.items():
        if name in computed or name in idle or says_nothing(value):
            continue
        if name not in allowed:
            raise ValueError(
                f"{where} has the field {name} = {shown(value)}, which is not known; only null, false or an "
                "empty value is allowed"
            )
        if value not in allowed[name]:
            values = ", ".join(map(repr, allowed[name])) or "null, false or an empty value"
            raise ValueError(f"{name} of {where} is {shown(value)}; allowed: {values}")
