"""Help of a command: `--help` shows the options that most people use, `--help-all` shows all options in
groups.

`COMMON` and `GROUPS` are the only places that say which option belongs where. An option that no group names
is in the first group, "Options".
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import click

COMMON = {
    "compile": ("output", "board", "goal", "explain", "context", "weights"),
    "cocotb": ("inputs", "seed", "simulator", "test", "files_only"),
    "draw": ("output", "full", "board", "goal"),
    "embed": ("place", "output", "as_json", "max_tokens", "weights"),
    "estimate": ("boards", "clocks", "goal", "context", "explain", "as_json"),
    "explore": ("trials", "objectives", "workers", "storage", "plot", "as_json"),
    "generate": ("prompt", "max_new_tokens", "place", "chat", "temperature", "output"),
    "package": ("output", "name", "files_only"),
    "report": ("html", "full", "as_json", "board", "goal"),
    "simulate": ("inputs", "outputs", "tokens", "probe", "trace", "xclbin"),
}
"""The names of the parameters that `--help` of a command shows."""


@dataclass(frozen=True)
class OptionGroup:
    """A title of `--help-all`, an explanation below it, and the names of the parameters in the group."""

    title: str
    text: str
    names: tuple[str, ...]


GROUPS = (
    OptionGroup("Options", "", ()),
    OptionGroup(
        "Text",
        "",
        ("prompt", "prompt_file", "max_new_tokens", "chat", "stops", "temperature", "top_k", "top_p"),
    ),
    OptionGroup(
        "Debugging",
        "",
        ("probe", "edges", "trace", "waves", "waves_file", "waves_run", "delays", "timeout", "shown"),
    ),
    OptionGroup("Card", "", ("xclbin", "device", "check_weights")),
    OptionGroup(
        "Source",
        "",
        ("tokenizer", "checkpoint", "shapes", "gguf", "layer", "changed_files", "trust", "check_import"),
    ),
    OptionGroup(
        "Calibration",
        "Calibration rounds the float weights of a language model so that the results for a sample text stay "
        "accurate.",
        ("calibrate", "calibrate_tokens", "calibrate_folder", "bits"),
    ),
    OptionGroup(
        "Design",
        "",
        (
            "goal",
            "plan",
            "explain",
            "name",
            "board",
            "clock_mhz",
            "max_tokens",
            "context",
            "policy",
            "sizing",
        ),
    ),
    OptionGroup(
        "Budgets",
        "A budget is an upper limit. The compiler looks for the fastest design within all budgets. If it "
        "splits a model into several accelerators, each accelerator has the full budgets.",
        ("multipliers", "channels", "converter_bits", "hold_bits", "fill"),
    ),
    OptionGroup("Numbers", "", ("weights", "head", "formats", "group", "scale_bits", "minimum", "p_bits")),
    OptionGroup(
        "Parallelism",
        "The compiler chooses these factors. Give one to fix it.",
        ("token_lanes", "n_lanes", "lanes", "attention_lanes", "fixed"),
    ),
    OptionGroup("Memory", "", ("cache_channels", "prefetch_beats")),
)


def grouped(command: click.Command) -> Iterator[tuple[OptionGroup, list[click.Option]]]:
    """The options of a command that are not hidden, by group; groups without options are left out."""
    options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    own = {option.name for option in options} if command.name in ("package", "cocotb") else set()
    group_of = {name: group for group in GROUPS for name in group.names if name not in own}
    for group in GROUPS:
        if members := [option for option in options if group_of.get(str(option.name), GROUPS[0]) is group]:
            yield group, members


class Command(click.Command):
    """A command whose `--help` fits a screen."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), _HELP_ALL]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The common options, with the first sentence of each text."""
        by_name = {option.name: option for option in self.params}
        options = [by_name[name] for name in COMMON.get(str(self.name), ())]  # KeyError for a wrong name
        helps = [option for option in super().get_params(ctx) if option not in self.params]
        with formatter.section("Options"):
            formatter.write_dl([(names, _first(text)) for names, text in _records(ctx, [*options, *helps])])
        if len(options) < sum(len(members) for _, members in grouped(self)):
            formatter.write_paragraph()
            formatter.write_text(f"More options: {ctx.command_path} --help-all")

    def format_all(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The whole help: usage, description, and all options in groups."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        for group, options in grouped(self):
            with formatter.section(group.title):
                if group.text:
                    formatter.write_text(group.text)
                    formatter.write_paragraph()
                formatter.write_dl([*_records(ctx, options)])
        with formatter.section("Help"):
            helps = [option for option in self.get_params(ctx) if option not in self.params]
            formatter.write_dl([*_records(ctx, helps)])


ALIASES = {"search": "explore"}
"""Second names of commands."""


class CommandGroup(click.Group):
    """The command `streamgen`."""

    command_class = Command

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:
        """The command of a name, or of its second name."""
        return self.commands.get(ALIASES.get(cmd_name, cmd_name))


def _records(ctx: click.Context, options: Iterable[click.Parameter]) -> Iterator[tuple[str, str]]:
    for option in options:
        if (record := option.get_help_record(ctx)) is not None:
            yield record


def _first(text: str) -> str:
    """The first sentence of an option's text, and its default."""
    sentences, *extra = re.split(r"  (?=\[)", text, maxsplit=1)
    return "  ".join([re.split(r"(?<=\.) ", sentences)[0], *extra])


def _show_all(ctx: click.Context, _: click.Parameter, value: Any) -> None:
    if value and not ctx.resilient_parsing:
        formatter = ctx.make_formatter()
        assert isinstance(ctx.command, Command)
        ctx.command.format_all(ctx, formatter)
        click.echo(formatter.getvalue().rstrip("\n"))
        ctx.exit()


_HELP_ALL = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all,
    help="Show all options and exit.",
)
