"""streamgen explore: search a design space with one process or several."""

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import click

from streamgen.base.progress import Progress
from streamgen.base.wording import counted
from streamgen.cli.group import progress_line, streamgen
from streamgen.cli.options import config_options, model_options, words_of
from streamgen.compiler.config import CompileConfig


@streamgen.command(short_help="Search the design space; `search` is the same.")
@click.argument("sources", nargs=-1, required=True, metavar="MODEL...")
@click.option("--on", "boards", multiple=True, metavar="BOARD", help="Board to search. May be repeated.")
@click.option(
    "--trials", type=click.IntRange(1), metavar="N", help="Number of points of the study, over all processes."
)
@click.option(
    "--objective", "objectives", multiple=True, metavar="NAME",
    help="Objective: decode (most tokens/s), first-token (least time), luts (fewest) or energy (least). May "
    "be repeated.  [default: decode, luts]",
)  # fmt: skip
@click.option(
    "--sampler",
    type=click.Choice(["tpe", "nsga2"]),
    default="tpe",
    show_default=True,
    help="Sampler of Optuna.",
)
@click.option(
    "--storage", metavar="URL",
    help="Database or file of the study. Several machines can share it: postgresql+psycopg://user@host/base.",
)  # fmt: skip
@click.option(
    "--study", metavar="NAME", help="Name of the study in the storage.  [default: the name of the model]"
)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of processes on this machine.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Seed of the sampler. With one process, it makes a search repeatable.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="FACTOR=VALUES",
    help="Restrict a factor to these values, separated by commas. May be repeated.",
)
@click.option(
    "--factors",
    "listed",
    is_flag=True,
    help="Print all factors with their values and rules, and do not search.",
)
@click.option(
    "--rough", is_flag=True, help="Print the bounds of cycles that the search used, instead of exact cycles."
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Draw the front as an HTML page.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the front as a JSON list.")
@click.option("--work-only", is_flag=True, hidden=True)
@model_options("shapes")
@config_options
def explore(
    sources: tuple[str, ...],
    boards: tuple[str, ...],
    trials: int | None,
    objectives: tuple[str, ...],
    sampler: Any,
    storage: str | None,
    study: str | None,
    workers: int,
    seed: int,
    only: tuple[str, ...],
    listed: bool,
    rough: bool,
    plot: Path | None,
    as_json: bool,
    work_only: bool,
    **options: Any,
) -> None:
    """Search the design space of MODEL within the budgets and print the Pareto front: the designs that no
    other design beats in all objectives. Each design has a number and the command that builds it. The exit
    status is 1 if no model fits. `streamgen explore` and `streamgen search` are the same command.

    Several machines that share a --storage work on one study. A command that was stopped continues when you
    repeat it.

    \b
    Examples:
      streamgen explore examples/mlp.py:mlp --trials 50
      streamgen explore gpt2/config.json --trials 100 --plot front.html
      streamgen search default --trials 50 --objective energy --objective luts
      streamgen explore default --factors
    """
    from streamgen.api.search import space
    from streamgen.api.search.evaluation import OBJECTIVES
    from streamgen.api.search.front import front_table
    from streamgen.cli.messages import EXPECTED, message_of, option_names
    from streamgen.cli.models import compiled_source, model_of
    from streamgen.cli.options import config_of

    if trials is None and not listed:
        raise click.UsageError("give --trials N, the number of points, or --factors")
    if plot is not None and not plot.resolve().parent.is_dir():
        raise FileNotFoundError(f"there is no folder {plot.resolve().parent} for the plot")
    for objective in objectives:
        if objective not in OBJECTIVES:
            raise click.UsageError(f"--objective is {objective!r}; {', '.join(OBJECTIVES)} are allowed")
    base, values = config_of(options), _values(only)
    places = [
        (source, config)
        for source in sources
        for config in ([replace(base, board=board) for board in boards] or [base])
    ]
    several = len(places) > 1
    if several and (plot is not None or study is not None):
        raise click.UsageError("--plot and --study need a single MODEL and a single board")
    search = _Search(
        trials=trials or 0, objectives=objectives or ("decode", "luts"), sampler=sampler, storage=storage,
        workers=workers, seed=seed, only=only, rough=rough, plot=plot, work_only=work_only,
    )  # fmt: skip
    names = option_names(click.get_current_context().command, ["--on"] if boards else [])
    shown: list[dict[str, Any]] = []
    fits, number = False, 1
    with progress_line() as progress:
        for source, config in places:
            board = config.card.name
            title = {"model": source, "board": board} if several else {}
            front: list[Any] = []
            try:
                progress("reading the model")
                designs = space(*model_of(source, progress, options), config, only=values)
                name = f"{designs.name}-{board}" if several else study
                front = (
                    [] if listed else search.front(source, designs, name, config, options, progress, number)
                )
                number += len(front)
            except (*EXPECTED, click.ClickException) as error:
                if not several:
                    raise
                text = f"{source} on {board}: not searched, because {message_of(error, names)}"
                shown.append({**title, "reason": message_of(error, names)})
            else:
                text = "\n".join(map(str, designs.factors)) if listed else front_table(front)
                if front and compiled_source(source) is None:
                    text += f"\n{source} has no weights, so these commands only estimate the designs."
                text = f"{source} on {board}:\n{text}" if several else text
                shown += [title | _json(point) for point in front]
                fits = fits or listed or work_only or bool(front)
            progress("")
            if not (as_json or work_only) or listed:
                click.echo(text)
    if as_json and not listed and not work_only:
        click.echo(json.dumps(shown, indent=2))
    if not fits:
        click.get_current_context().exit(1)


@dataclass(frozen=True, kw_only=True)
class _Search:
    """Options of the command that say how to search."""

    trials: int
    objectives: tuple[str, ...]
    sampler: Any
    storage: str | None
    workers: int
    seed: int
    only: tuple[str, ...]
    rough: bool
    plot: Path | None
    work_only: bool

    def front(
        self,
        source: str,
        designs: Any,
        name: str | None,
        asked: CompileConfig,
        options: Mapping[str, Any],
        progress: Progress,
        number: int,
    ) -> list[Any]:
        """The Pareto front of a space; empty in a process that only works. name: name of the study. asked:
        the configuration of the command line. number: of the first point."""
        from streamgen.api.search.front import FrontPoint, chosen
        from streamgen.api.search.front import plot as draw
        from streamgen.api.search.study import Study

        shapes = [f"--example-shape={shape}" for shape in options["shapes"]]
        with tempfile.TemporaryDirectory() as folder:
            place = self.storage or (f"{folder}/journal" if self.workers > 1 else None)
            study = Study(
                designs, self.objectives, storage=place, name=name, sampler=self.sampler,
                seed=None if self.storage else self.seed,
            )  # fmt: skip
            again = [source, "--work-only", f"--trials={self.trials}", f"--sampler={self.sampler}"]
            again += [f"--storage={place}", *(f"--objective={objective}" for objective in self.objectives)]
            again += [f"--only={restriction}" for restriction in self.only] + (
                [f"--study={name}"] if name else []
            )
            with _beside(self.workers - 1, [*again, *shapes, *words_of(asked)]):
                study.run(self.trials, progress)
            if self.work_only:
                return []
            progress("evaluating the front")
            front = [
                FrontPoint(
                    number=place,
                    evaluation=point,
                    command=_command(source, place, [*shapes, *words_of(point.config)]),
                    chosen=chosen(point.config, designs.config),
                )
                for place, point in enumerate(study.front(exact=not self.rough), number)
            ]
            if self.plot is not None:
                title = f"{designs.name} on {designs.config.card.name}"
                draw(self.plot, title, study.objectives, study.tried, study.exact, front)
            return front


def _command(source: str, number: int, words: Sequence[str]) -> str:
    """The command that builds a point; for a model without weights, the command that estimates it."""
    from streamgen.cli.models import compiled_source

    if (compiled := compiled_source(source)) is None:
        return shlex.join(["streamgen", "estimate", source, *words])
    return shlex.join(["streamgen", "compile", compiled, "-o", f"design-{number}", *words])


def _json(point: Any) -> dict[str, Any]:
    found = point.evaluation
    figures = {f.name: getattr(found, f.name) for f in fields(found) if f.name not in ("config", "why")}
    numbered = {"number": point.number, "command": point.command}
    return {**numbered, **figures, "over": dict(found.over), "config": point.chosen}


def _values(only: Sequence[str]) -> dict[str, list[Any]]:
    """The values of --only by factor. Raises click's UsageError for a text of another form."""
    by_factor: dict[str, list[Any]] = {}
    for text in only:
        name, mark, values = text.partition("=")
        if not mark:
            raise click.UsageError(f"--only {text!r} is not of the form FACTOR=VALUES")
        by_factor[name] = [_value(value) for value in values.split(",") if value]
    return by_factor


def _value(text: str) -> Any:
    if text == "None":
        return None
    return int(text) if text.lstrip("-").isdigit() else text


@contextmanager
def _beside(count: int, arguments: Sequence[str]) -> Iterator[None]:
    """Run `count` other processes on the same study during the block, and wait for them at its end."""
    words = [sys.executable, "-c", "from streamgen.cli import run; run()", "explore", *arguments]
    others = [subprocess.Popen(words, stdout=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield
    except BaseException:
        for other in others:
            other.terminate()
        raise
    finally:
        codes = [other.wait() for other in others]
    if any(codes):
        click.echo(f"{sum(map(bool, codes))} of {counted(count, 'other worker')} failed", err=True)
