"""Options that several commands share.

Every field of `CompileConfig` becomes an option. Its text in the docstring of the class is the help of the
option.
"""

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
from streamgen.platform.boards import BOARDS, Board

Command = Callable[..., Any]
WEIGHTS_ARE_RIGHT = "The weights on the device equal the written weights."
SIMULATED = "small"  # goal of designs that the same command simulates
CALIBRATION = ("bits", "calibrate_tokens", "calibrate_folder")  # options that need --calibrate


class _Json(click.ParamType):
    """The value of a field that is neither a number nor a word, written as JSON."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value, object_hook=dict)
        except json.JSONDecodeError as error:
            self.fail(f"{value!r} is not JSON: {error}", param, ctx)


def config_options(command: Command) -> Command:
    """Add an option for every field of `CompileConfig` to a command. Its value is None if it is not given."""
    texts, hints = _texts(), typing.get_type_hints(CompileConfig)
    texts["weights"] += f" Known are {TITLES}."
    texts["board"] += f" Known are {', '.join(BOARDS)}."
    for field in reversed(dataclasses.fields(CompileConfig)):
        name = field.name.replace("_", "-")
        kind = _kind(hints[field.name])
        default = field.default if field.default is not dataclasses.MISSING else None
        if isinstance(default, bool):
            default = "on" if default else "off"
        shown = f"  [default: {default}]" if default is not None else ""
        option = click.option(
            f"--{name}/--no-{name}" if kind is bool else f"--{name}",
            field.name,
            type=kind,
            default=None,
            metavar="JSON" if isinstance(kind, _Json) else "N" if kind in (int, float) else None,
            help=f"{texts[field.name]}{shown}",
        )
        command = option(command)
    return click.option(
        "--plan", "plan", type=click.Path(path_type=Path), metavar="FILE",
        help="Build the design of this plan, which a compiled folder has in plan.json. Other options change "
        "the plan.",
    )(command)  # fmt: skip


def calibration_options(command: Command) -> Command:
    """Add --calibrate and the options that need it to a command."""
    for option in (
        click.option(
            "--bits", type=float, metavar="BITS",
            help="With --calibrate: average number of bits of a weight, with its share of scales and "
            "minimums. The matmuls that gain most have 8 bits, all others 4.",
        ),
        click.option(
            "--calibrate-folder", type=click.Path(path_type=Path), metavar="DIR",
            help="With --calibrate: folder for finished matmuls. If the command is stopped, the same command "
            "continues from there.",
        ),
        click.option(
            "--calibrate-tokens", type=click.IntRange(2), metavar="N",
            help="With --calibrate: number of tokens of the text to use.  [default: 8192, or all]",
        ),
        click.option(
            "--calibrate", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE",
            help="Round the weights for this text (UTF-8). Choose a text like those that the model will "
            "read.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


MODEL_OPTIONS = {
    "tokenizer": click.option(
        "--tokenizer", type=click.Path(path_type=Path, exists=True), metavar="DIR|FILE",
        help="Tokenizer of a language model: a folder with tokenizer.json, a JSON file of the library "
        "tokenizers, a GGUF file, a SentencePiece file (*.model), or a JSON table of characters.  "
        "[default: that of SOURCE]",
    ),
    "shapes": click.option(
        "--example-shape", "shapes", multiple=True, metavar="N,N,...[:ids]",
        help="Shape of an input of the module that a Python SOURCE returns; :ids for an input of ids. Repeat "
        "it for each input.",
    ),
    "checkpoint": click.option(
        "--checkpoint", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE",
        help="Trained tensors of the module that a Python SOURCE returns: a file of torch.save or of "
        "safetensors. No code of the file runs.",
    ),
}  # fmt: skip


def model_options(*names: str) -> Callable[[Command], Command]:
    """Add some of `MODEL_OPTIONS` to a command."""

    def add(command: Command) -> Command:
        for name in names:
            command = MODEL_OPTIONS[name](command)
        return command

    return add


def require_calibration(options: Mapping[str, Any]) -> None:
    """Raise click's UsageError for an option that needs --calibrate, if that is missing."""
    for name in CALIBRATION:
        if options.get(name) is not None and options.get("calibrate") is None:
            raise click.UsageError(f"--{name.replace('_', '-')} has no effect without --calibrate FILE")


def require_used(useless: Mapping[str, str]) -> None:
    """Raise click's UsageError for a given option that has no effect.

    useless: for each parameter without effect, the end of the sentence "--option has no effect ...".
    """
    context = click.get_current_context()
    for name, why in useless.items():
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            option = next(option for option in context.command.params if option.name == name)
            raise click.UsageError(f"{max(option.opts, key=len)} has no effect {why}")


def given_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a command that are fields of the configuration and were given."""
    names = {field.name for field in dataclasses.fields(CompileConfig)}
    return {name: value for name, value in values.items() if name in names and value is not None}


def config_of(values: Mapping[str, Any], **defaults: Any) -> CompileConfig:
    """The configuration of the given options and of --plan. `defaults` apply to fields whose option is not
    given. Raises ValueError for a file that holds no plan."""
    of_plan: Mapping[str, Any] = {}
    if values.get("plan") is not None:
        from streamgen.compiler.plan.record import DesignPlan  # the compiler takes a second to load

        of_plan = DesignPlan.read(values["plan"]).config
    return CompileConfig(**{**defaults, **of_plan, **given_options(values)})


def words_of(config: CompileConfig) -> list[str]:
    """The options that make this configuration, as words of a command line."""
    default, words = CompileConfig(), []
    for field in dataclasses.fields(CompileConfig):
        value = getattr(config, field.name)
        if value == getattr(default, field.name):
            continue
        option = field.name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{option}")
        else:
            value = value.name if isinstance(value, Board) else value
            words += [
                f"--{option}",
                f"{value}" if isinstance(value, str | int | float) else json.dumps(value),
            ]
    return words


def require_no_options(source: str, values: Mapping[str, Any]) -> None:
    """Raise click's UsageError if options of the configuration are given for a folder that is already
    compiled."""
    if given := given_options(values):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(f"{source} is already compiled; {names} cannot change it")


def _kind(hint: Any) -> Any:
    """click's type for an annotation. An annotation without such a type takes JSON."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(hint) if part is not type(None)]
        return str if str in parts else _kind(parts[0])  # a board is given by its name
    if typing.get_origin(hint) is Literal:
        return click.Choice(typing.get_args(hint))
    return hint if hint in (bool, int, float, str) else _Json()


def _texts() -> dict[str, str]:
    """The text of each field in the docstring of the configuration, with options for the names of fields."""
    names = [field.name for field in dataclasses.fields(CompileConfig)]
    body = re.sub(r"\s+", " ", inspect.getdoc(CompileConfig) or "")
    parts = re.split(rf"(?:^|(?<=[.\]}}}}]) )({'|'.join(names)}): ", body)
    return {
        name: _in_options(text.strip(), names) for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def _in_options(text: str, names: list[str]) -> str:
    """The text of a field without sentences for Python, and with `--option` for each field that it names."""
    text = re.sub(r" From Python,[^.]*\.", "", text)
    return re.sub(rf"`({'|'.join(names)})`", lambda field: f"--{field[1].replace('_', '-')}", text)


check_weights_option = click.option(
    "--check-weights", is_flag=True,
    help="After the run, read the weights back from the device and compare them with the written weights.",
)  # fmt: skip


def card_options(command: Any) -> Any:
    """Add --xclbin and --device to a command. They replace the simulator by a card."""
    command = click.option(
        "--device", type=click.IntRange(0), default=0, show_default=True, metavar="N",
        help="With --xclbin: index of the card in XRT.",
    )(command)  # fmt: skip
    return click.option(
        "--xclbin", type=click.Path(path_type=Path), metavar="FILE",
        help="Run on a card through XRT, with this linked design.",
    )(command)  # fmt: skip


def trace_option(command: Any) -> Any:
    """Add --trace to a command that simulates."""
    return click.option(
        "--trace", type=click.Path(path_type=Path), metavar="FILE",
        help="Write a timeline of the simulation, which https://ui.perfetto.dev shows.",
    )(command)  # fmt: skip


def device_of(xclbin: Path | None, index: int, *, simulated: bool) -> Any:
    """A function that opens the card with a linked design; None if there is no `xclbin`.

    Raises FileNotFoundError if the file is missing. Raises MissingToolError if XRT is missing, or, for
    `simulated` runs, the C++ compiler or Verilator.
    """
    if xclbin is None:
        if simulated:
            from streamgen.runtime.verilator import require_tools

            require_tools()
        return None
    from streamgen.runtime.xrt import on_board, require_xrt

    if not xclbin.exists():
        raise FileNotFoundError(f"{xclbin}: there is no such file; --xclbin needs the linked design")
    require_xrt()
    return on_board(index, xclbin)
