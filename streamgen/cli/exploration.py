"""streamgen explore: searches a design space, alone or with others."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from streamgen.cli.group import progress_line, streamgen
from streamgen.cli.options import config_options, given_options

__all__: list[str] = []


@streamgen.command(short_help="Search the design space of a model: speed against resources.")
@click.argument("source", metavar="MODEL")
@click.option(
    "--trials", type=click.IntRange(1), metavar="N", help="Points of the study, of all who work on it."
)
@click.option(
    "--objective", "objectives", multiple=True, metavar="NAME",
    help="tokens/s, first-token, luts or energy. May be repeated.  [default: tokens/s, luts]",
)  # fmt: skip
@click.option(
    "--sampler", type=click.Choice(["tpe", "nsga2"]), default="tpe", show_default=True, help="Of Optuna."
)
@click.option(
    "--storage", metavar="URL",
    help="Where others find the study: a database, as postgresql+psycopg://user@host/base, or a file.",
)  # fmt: skip
@click.option("--study", metavar="NAME", help="Its name in the storage.  [default: that of the model]")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes here.")
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Of the sampler, where one process searches."
)
@click.option(
    "--only",
    multiple=True,
    metavar="FACTOR=VALUES",
    help="Values to choose from, with commas. May be repeated.",
)
@click.option(
    "--factors",
    "listed",
    is_flag=True,
    help="Print all factors with their values and laws, and search nothing.",
)
@click.option("--rough", is_flag=True, help="Leave the front as the search has seen it: bounds of cycles.")
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Draw it, as HTML."
)
@click.option("--json", "as_json", is_flag=True, help="Print the front as a JSON list.")
@click.option("--work-only", is_flag=True, hidden=True)
@config_options
def explore(
    source: str,
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
    """Search the design space of MODEL under the budgets that the options say. The front is what no other
    point beats: each of its lines is a configuration that `streamgen compile` builds. The first point is the
    compiler's own choice.

    The same command on several machines with one --storage works on one study; so does a command that is
    repeated after it was stopped.

    \b
    examples:
      streamgen explore examples/mlp.py:mlp --trials 50
      streamgen explore gpt2/config.json --channels 32 --multipliers 8192 --trials 100 --plot front.html
      streamgen explore default --factors
    """
    from streamgen.cli.options import config_of
    from streamgen.cli.sources import model_of
    from streamgen.search import space
    from streamgen.search.front import front_table
    from streamgen.search.front import plot as draw
    from streamgen.search.study import Study

    if trials is None and not listed:
        raise click.UsageError("--trials says how many points; or take --factors")
    if plot is not None and not plot.resolve().parent.is_dir():
        raise FileNotFoundError(f"there is no folder {plot.resolve().parent} for the plot")
    with progress_line() as progress:
        progress("reading the model")
        model, inputs = model_of(source, progress)
        found = space(model, inputs, config_of(options), only=_values(only))
        if listed:
            progress("")
            click.echo("\n".join(map(str, found.factors)))
            return
        assert trials is not None
        with tempfile.TemporaryDirectory() as folder:
            place = storage or (f"{folder}/journal" if workers > 1 else None)
            search = Study(
                found, objectives or ("tokens/s", "luts"),
                storage=place, name=study, sampler=sampler, seed=None if storage else seed,
            )  # fmt: skip
            again = [
                source,
                "--work-only",
                f"--trials={trials}",
                f"--sampler={sampler}",
                f"--storage={place}",
            ]
            again += [f"--objective={name}" for name in objectives] + [f"--only={one}" for one in only]
            again += [f"--study={study}"] if study else []
            with _beside(workers - 1, again, options):
                search.run(trials, progress)
            if work_only:
                return
            progress("evaluating the front")
            front = search.front(exact=not rough)
            if plot is not None:
                draw(plot, search.objectives, search.tried, front, found.config)
        progress("")
    if as_json:
        click.echo(json.dumps([_json(one, found.config) for one in front], indent=2))
    else:
        click.echo(front_table(front, found.config))


def _json(one: Any, base: Any) -> dict[str, Any]:
    from streamgen.search.front import chosen

    figures = {f.name: getattr(one, f.name) for f in fields(one) if f.name not in ("config", "why")}
    return {**figures, "over": dict(one.over), "config": chosen(one.config, base)}


def _values(only: Sequence[str]) -> dict[str, list[Any]]:
    """By factor, the values of --only; click's UsageError for what is none."""
    found: dict[str, list[Any]] = {}
    for text in only:
        name, mark, values = text.partition("=")
        if not mark:
            raise click.UsageError(f"--only {text!r} is no FACTOR=VALUES")
        found[name] = [_value(one) for one in values.split(",") if one]
    return found


def _value(text: str) -> Any:
    if text == "None":
        return None
    return int(text) if text.lstrip("-").isdigit() else text


@contextmanager
def _beside(count: int, arguments: Sequence[str], options: Mapping[str, Any]) -> Iterator[None]:
    """So many processes that work on the same study meanwhile; they end with this one."""
    words = [sys.executable, "-c", "from streamgen.cli import run; run()", "explore", *arguments]
    for name, value in given_options(options).items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{option}")
        else:
            words.append(f"--{option}={value if isinstance(value, str | int | float) else json.dumps(value)}")
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
        click.echo(f"{sum(map(bool, codes))} of {count} workers beside this one failed", err=True)
