"""Options that commands share: those of a configuration, one for each field with its text as help; a card."""

import dataclasses
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import click

from streamgen.compiler.config import CompileConfig
from streamgen.numbers.weights import TITLES
from streamgen.platform.boards import BOARDS

__all__ = [
    "WEIGHTS_ARE_RIGHT",
    "calibration_options",
    "card_options",
    "config_of",
    "config_options",
    "device_of",
    "require_calibration",
    "require_no_options",
    "require_used",
]

Command = Callable[..., Any]
WEIGHTS_ARE_RIGHT = "weights on the device are those that were written"
CALIBRATION = ("bits", "calibrate_tokens", "calibrate_folder")  # what --calibrate can be told


class _Json(click.ParamType):
    """A value of a field that is no number and no word, written as JSON."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value, object_hook=dict)
        except json.JSONDecodeError as error:
            self.fail(f"{value!r} is not JSON: {error}", param, ctx)


def config_options(command: Command) -> Command:
    """Gives a command an option for every field of `CompileConfig`; None where it is not given."""
    texts, hints = _texts(), typing.get_type_hints(CompileConfig)
    texts["weights"] += f" Known are {TITLES}."
    texts["board"] += f" Known are {', '.join(BOARDS)}."
    for field in reversed(dataclasses.fields(CompileConfig)):
        name = field.name.replace("_", "-")
        kind = _kind(hints[field.name])
        default = field.default if field.default is not dataclasses.MISSING else None
        shown = f"  [default: {default}]" if default is not None else ""
        option = click.option(
            f"--{name}/--no-{name}" if kind is bool else f"--{name}",
            field.name,
            type=kind,
            default=None,
            metavar="JSON" if isinstance(kind, _Json) else None,
            help=f"{texts[field.name]}{shown}",
        )
        command = option(command)
    return command


def calibration_options(command: Command) -> Command:
    """--calibrate and what goes with it."""
    for option in (
        click.option(
            "--bits", type=float, metavar="BITS",
            help="With --calibrate: bits of a weight on average, 4-bit scales and minimums included; matmuls "
            "for which it saves most have 8.",
        ),
        click.option(
            "--calibrate-folder", type=click.Path(path_type=Path), metavar="DIR",
            help="With --calibrate: where matmuls that are done wait, so that the same command goes on where "
            "it was stopped.",
        ),
        click.option(
            "--calibrate-tokens", type=click.IntRange(2), metavar="N",
            help="With --calibrate: how many tokens of the text.  [default: 8192, or all]",
        ),
        click.option(
            "--calibrate", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE",
            help="Round float weights of a language model for this text (UTF-8), of the kind that it meets.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def require_calibration(options: Mapping[str, Any]) -> None:
    """click's UsageError for an option that means nothing without --calibrate."""
    for name in CALIBRATION:
        if options.get(name) is not None and options.get("calibrate") is None:
            raise click.UsageError(
                f"--{name.replace('_', '-')} says how to calibrate; --calibrate FILE is missing"
            )


def require_used(useless: Mapping[str, str]) -> None:
    """click's UsageError for an option that is given though it does nothing. useless: why, by parameter."""
    context = click.get_current_context()
    for name, why in useless.items():
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            option = next(one for one in context.command.params if one.name == name)
            raise click.UsageError(f"{max(option.opts, key=len)} would do nothing: {why}")


def given_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Of the parameters of a command, those of the configuration that were given."""
    names = {field.name for field in dataclasses.fields(CompileConfig)}
    return {name: value for name, value in values.items() if name in names and value is not None}


def config_of(values: Mapping[str, Any], **defaults: Any) -> CompileConfig:
    """The configuration that the options say; `defaults` where they say nothing."""
    return CompileConfig(**{**defaults, **given_options(values)})


def require_no_options(source: str, values: Mapping[str, Any]) -> None:
    """click's UsageError when a folder, which is compiled already, is to be changed."""
    if given := given_options(values):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(f"{source} is compiled already; {names} cannot change it")


def _kind(hint: Any) -> Any:
    """click's type for an annotation; JSON for all that it has none for."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(hint) if part is not type(None)]
        return str if str in parts else _kind(parts[0])  # what has a name is given by it
    if typing.get_origin(hint) is Literal:
        return click.Choice(typing.get_args(hint))
    return hint if hint in (bool, int, float, str) else _Json()


def _texts() -> dict[str, str]:
    """What the docstring of the configuration says of each field."""
    names = [field.name for field in dataclasses.fields(CompileConfig)]
    body = re.sub(r"\s+", " ", inspect.getdoc(CompileConfig) or "")
    found = re.split(rf"(?:^|(?<=[.\]}}}}]) )({'|'.join(names)}): ", body)
    return {
        name: text[:1].upper() + text[1:].strip() for name, text in zip(found[1::2], found[2::2], strict=True)
    }


check_weights_option = click.option(
    "--check-weights", is_flag=True,
    help="Then read the weights back from the memory of the device, and compare them with the written ones.",
)  # fmt: skip


def card_options(command: Any) -> Any:
    """--xclbin, --device: a card in the place of the simulator."""
    command = click.option(
        "--device", type=click.IntRange(0), default=0, show_default=True, metavar="N",
        help="With --xclbin: index of the card, as XRT counts them.",
    )(command)  # fmt: skip
    return click.option(
        "--xclbin", type=click.Path(path_type=Path), metavar="FILE",
        help="Run on a card, through XRT: the linked design.",
    )(command)  # fmt: skip


def device_of(xclbin: Path | None, index: int, *, simulated: bool) -> Any:
    """What opens a card with a linked design; None where none is named. FileNotFoundError without that file,
    MissingToolError without what drives cards, or where runs are `simulated`, without a compiler."""
    if xclbin is None:
        if simulated:
            from streamgen.runtime.verilator import require_tools

            require_tools()
        return None
    from streamgen.runtime.xrt import on_board, require_xrt

    if not xclbin.exists():
        raise FileNotFoundError(f"{xclbin}: there is no such file; --xclbin takes the linked design")
    require_xrt()
    return on_board(index, xclbin)
