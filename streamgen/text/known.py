"""What a reader of tokenizer files knows of the fields that it is given.

A reader names the fields that it computes with and those that cannot change a text, each with the reason. A
value that says nothing may stand in any field. All else is refused by name: a field that is dropped in
silence would be a text that differs in silence.
"""

from collections.abc import Collection, Mapping
from typing import Any

SHOWN = 60  # characters of a value that a message holds


def says_nothing(value: Any) -> bool:
    """Whether a value is none, false or empty. 0 is a number, and may be an id."""
    return value is None or value is False or (isinstance(value, (str, list, dict)) and not value)


def shown(value: Any) -> str:
    """A value as a message holds it, cut where it is long."""
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
    """ValueError for the first field that is not known, or has a value that is not.

    where: the file that the message names. computed: fields that the reader itself checks. allowed: values of
    fields that are known with these only. harmless: by the reason, fields that change no text.
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
