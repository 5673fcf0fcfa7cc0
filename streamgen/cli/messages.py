"""Errors and warnings of the command line, with the names of its options."""

import re
from collections.abc import Collection, Mapping
from functools import partial

import click

from streamgen.base.errors import StreamgenError

EXPECTED = (StreamgenError, ValueError, TypeError, OSError, MemoryError)
"""Errors that become messages. Any other exception is a defect of streamgen."""

# The options that compare several values of a field.
_COMPARED = {"board": "--on", "clock_mhz": "--at"}


def option_names(command: click.Command | None, given: Collection[str]) -> dict[str, str]:
    """The options of a command by the names of the Python arguments. given: words of the command line."""
    options: dict[str, str] = {}
    for parameter in command.params if command else ():
        longest = max(parameter.opts, key=len)
        if longest.startswith("--"):
            options[str(parameter.name)] = options[longest[2:].replace("-", "_")] = longest
    used = {word.partition("=")[0] for word in given}
    compared = {name: option for name, option in _COMPARED.items() if option in used}
    return options | compared


def in_options(text: str, options: Mapping[str, str]) -> str:
    """Replace the names of Python arguments in a message by options: `CompileConfig.board`,
    `CompileConfig.weights='w8'`, `channels=32` in a line "What helps: ..." or "Tried in vain: ...",
    `max_tokens` anywhere, and `seed` at the start of a clause "seed is ..."."""
    text = re.sub(r"CompileConfig\.(\w+)(?:=(False|True|'[^']*'|[\w.]*\w))?", partial(_option, options), text)
    text = re.sub(r"^(?:What helps|Tried in vain): .*", partial(_advice, options), text, flags=re.MULTILINE)
    command = "--calibrate FILE" if "calibrate" in options else "streamgen compile --calibrate FILE"
    text = text.replace("streamgen.model.calibration", command)
    anywhere, clause = r"(?<![\w./'\"-]){}(?![\w./'\"=(-])", r"(?:^|(?<=[:;,] )){}(?= is )"
    for name, option in options.items():
        text = re.sub((anywhere if "_" in name else clause).format(name), option, text)
    return text


def _advice(options: Mapping[str, str], line: re.Match[str]) -> str:
    """A line of changes of the configuration, `channels=32 and head='w4'`, as options."""
    field = r"\b(" + "|".join(options) + r")=('[^']*'|[\w.]*\w)"
    return re.sub(field, partial(_option, options), line[0]) if options else line[0]


def _option(options: Mapping[str, str], field: re.Match[str]) -> str:
    """The option of a field, with the value that the message gives it."""
    name, value = field.groups()
    option = options.get(name, f"--{name.replace('_', '-')}")
    if value is None or value == "True":
        return option
    if value == "False":
        return f"--no-{option.removeprefix('--')}"
    return f"{option} {value.strip(chr(39))}"


def message_of(error: Exception, options: Mapping[str, str], *, verbose: bool = False) -> str:
    """The message of an error. verbose: name every unsupported operation of a model."""
    operations = getattr(error, "operations", ())
    if verbose and operations:
        return "\n  ".join([str(error).splitlines()[0], *operations])
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return ": ".join(filter(None, ("out of memory", str(error))))
    text = str(error).replace("more in the error's `operations`", "more; --verbose shows them")
    return in_options(text, options)
