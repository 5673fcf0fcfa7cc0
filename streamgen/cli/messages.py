"""Errors and warnings as the command line says them: in the words of its options."""

import re
from collections.abc import Collection, Mapping
from functools import partial

import click

from streamgen.base.errors import StreamgenError

__all__ = ["EXPECTED", "in_options", "message_of", "option_names"]

EXPECTED = (StreamgenError, ValueError, TypeError, OSError, MemoryError)
"""Errors that are messages, and no defects of streamgen."""

_COMPARED = {
    "board": "--on",
    "clock_mhz": "--at",
}  # where several values of a field are compared


def option_names(command: click.Command | None, given: Collection[str]) -> dict[str, str]:
    """The options of a command by the names that its arguments have in Python. given: words of the line."""
    options: dict[str, str] = {}
    for parameter in command.params if command else ():
        longest = max(parameter.opts, key=len)
        if longest.startswith("--"):
            options[str(parameter.name)] = options[longest[2:].replace("-", "_")] = longest
    used = {word.partition("=")[0] for word in given}
    compared = {name: option for name, option in _COMPARED.items() if option in used}
    return options | compared


def in_options(text: str, options: Mapping[str, str]) -> str:
    """A message that speaks of arguments in Python, in the options of a command: `CompileConfig.board`,
    `max_tokens` anywhere, and `seed` where a clause says what it is."""
    text = re.sub(r"CompileConfig\.(\w+)(=False)?", partial(_option, options), text)
    anywhere, clause = r"(?<![\w./'\"-]){}(?![\w./'\"=(-])", r"(?:^|(?<=[:;,] )){}(?= is )"
    for name, option in options.items():
        text = re.sub((anywhere if "_" in name else clause).format(name), option, text)
    return text


def _option(options: Mapping[str, str], field: re.Match[str]) -> str:
    """The option that sets a field, or that switches it off."""
    if field[2]:
        return f"--no-{field[1].replace('_', '-')}"
    return options.get(field[1], f"--{field[1].replace('_', '-')}")


def message_of(error: Exception, options: Mapping[str, str], *, verbose: bool = False) -> str:
    """What a user is told of an error. verbose: every operation of a model that cannot be compiled."""
    operations = getattr(error, "operations", ())
    if verbose and operations:
        return "\n  ".join([str(error).splitlines()[0], *operations])
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return ": ".join(filter(None, ("memory is full", str(error))))
    text = str(error).replace("more in the error's `operations`", "more; --verbose shows them")
    return in_options(text, options)
