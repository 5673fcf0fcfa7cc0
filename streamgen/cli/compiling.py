"""streamgen estimate | compile | report | draw."""

from pathlib import Path
from typing import Any

import click

from streamgen.artifact.written import WRITTEN
from streamgen.base.folders import require_free, require_place
from streamgen.base.progress import PASSES
from streamgen.cli.group import accelerator_from, progress_line, source_options, streamgen
from streamgen.cli.options import calibration_options, config_options, model_options, require_used


@streamgen.command(short_help="Estimate speed and resources without compiling.")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--on", "boards", multiple=True, metavar="BOARD", help="Board to compare. May be repeated.")
@click.option(
    "--at", "clocks", multiple=True, type=float, metavar="MHZ", help="Clock to compare. May be repeated."
)
@click.option(
    "--position", "positions", multiple=True, type=int, metavar="N",
    help="Position in the text at which a step of a language model is estimated. May be repeated.  "
    "[default: first, middle, last]",
)  # fmt: skip
@click.option(
    "--prompt-tokens", "prompts", multiple=True, type=int, metavar="N",
    help="Number of prompt tokens for which the time to the first token is estimated. May be repeated.",
)  # fmt: skip
@click.option(
    "--phases", is_flag=True,
    help="Also print passes, phases, resources and memory in tables. Only one design can have them.",
)  # fmt: skip
@click.option("--explain", is_flag=True, help="Print each factor of the design, and why it is not more.")
@click.option("--json", "as_json", is_flag=True, help="Print all values as a JSON list.")
@click.option(
    "--fresh", is_flag=True,
    help="Estimate again, even if the result is kept. Set the variable STREAMGEN_ESTIMATES to `off` to keep "
    "no results, or to a folder to keep them there.",
)  # fmt: skip
@model_options("shapes")
@config_options
def estimate(
    sources: tuple[str, ...],
    boards: tuple[str, ...],
    clocks: tuple[float, ...],
    positions: tuple[int, ...],
    prompts: tuple[int, ...],
    phases: bool,
    explain: bool,
    as_json: bool,
    fresh: bool,
    **options: Any,
) -> None:
    """Estimate tokens per second, time to the first token, the bound of each phase, resources and memory of
    each SOURCE. No weights are needed, only a config.json of transformers.

    SOURCE is a config.json or a folder with one, a GGUF file, 'default', or module:function. Several sources,
    boards or clocks are ranked in a table, best first. The exit status is 1 if no model fits.

    Results are kept in the user's cache. The same command takes a second the next time, as long as the model,
    the options and streamgen itself are the same.

    \b
    Examples:
      streamgen estimate default
      streamgen estimate gpt2/config.json llama/config.json --at 250 --at 300
    """
    from streamgen.cli.estimation import estimates  # the values of an estimate take time to load
    from streamgen.observe.estimate import Estimate, NoEstimate
    from streamgen.observe.ranking import ranking

    with progress_line() as progress:
        ranked = estimates(sources, boards, clocks, options, positions, prompts, progress, fresh=fresh)
    results = [result for _, result in ranked]
    if as_json:
        click.echo(f"[{','.join(result.to_json() for result in results)}]")
    else:
        first, *others = results
        if others:
            click.echo(ranking(ranked))
        else:
            click.echo(first.text(phases=phases) if isinstance(first, Estimate) else first)
        for result in results:
            if explain and isinstance(result, Estimate):
                click.echo(f"\nplan of {result.name} on {result.board}, {result.plan}")
    if all(isinstance(result, NoEstimate) for result in results):
        click.get_current_context().exit(1)


@streamgen.command(short_help="Compile SOURCE to Verilog and packed weights.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="New folder for the accelerator."
)
@click.option(
    "--print-after", "shown", multiple=True, type=click.Choice([*PASSES, "all"]), metavar="PASS",
    help=f"Print the result of a pass: {', '.join(PASSES)}, or all. May be repeated.",
)  # fmt: skip
@click.option("--explain", is_flag=True, help="Print each factor of the design, and why it is not more.")
@calibration_options
@source_options
def compile(
    source: str | None,
    gguf: str | None,
    layer: int,
    output: Path,
    shown: tuple[str, ...],
    explain: bool,
    **options: Any,
) -> None:
    """Compile SOURCE and write Verilog, packed weights, manifest and golden model to a new folder.

    \b
    Examples:
      streamgen compile examples/mlp.py:mlp -o mlp --max-tokens 8 --multipliers 64
      streamgen compile --gguf default --layer 0 -o block --multipliers 768
      streamgen compile examples/mlp.py:mlp -o mlp --print-after explore
      streamgen compile CHECKPOINT -o model --calibrate prose.txt --bits 5
    """

    def show(name: str, result: Any) -> None:
        if name in shown or "all" in shown:
            click.echo(f"== {name}\n{result}")

    require_free(output, WRITTEN)
    with progress_line() as progress:
        accelerator = accelerator_from(source, gguf, layer, options, progress, show if shown else None)
        progress("writing")
        folder = accelerator.write(output)
    if explain:
        click.echo(accelerator.plan)
    click.echo(f"written to {folder}")


@streamgen.command(short_help="Print choices, FIFOs, resources and schedule.")
@click.option(
    "--full", is_flag=True, help="Print a line for each kernel and FIFO, without grouping equal ones."
)
@click.option("--json", "as_json", is_flag=True, help="Print all values as JSON.")
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE",
    help="Write a page with pictures instead. It shows the graph, cycles, roofline, FIFOs, card and memory "
    "in one file, which needs no network.",
)  # fmt: skip
@click.option(
    "--storage", metavar="URL",
    help="Also report the trials of a search. URL is the storage that `streamgen explore` used.",
)  # fmt: skip
@click.option("--study", metavar="NAME", help="With --storage: name of the study.  [default: the only study]")
@source_options
def report(
    source: str | None,
    gguf: str | None,
    layer: int,
    full: bool,
    as_json: bool,
    html: Path | None,
    storage: str | None,
    study: str | None,
    **options: Any,
) -> None:
    """Print the choices of the compiler for SOURCE, and its FIFOs, converters, resources and schedule.

    \b
    Examples:
      streamgen report mlp
      streamgen report mlp --html mlp.html
      streamgen report examples/mlp.py:mlp --channels 4
      streamgen report mlp --html mlp.html --storage searches.log
    """
    require_used({"study": "without --storage URL"} if storage is None else {})
    if html is not None:
        require_place(html)
    searched = None
    if storage is not None:
        from streamgen.api.search.stored import read_study  # takes a second to load

        searched = read_study(storage, study)
    with progress_line() as progress:
        accelerator = accelerator_from(source, gguf, layer, options, progress)
        progress("report")
        summary = accelerator.report()
        if searched is not None:
            summary = summary.with_study(searched)
        if html is not None:
            summary.html(html)
    if as_json:
        click.echo(summary.to_json())
    elif html is None:
        click.echo(summary.text(full=full))
    if html is not None:
        click.echo(f"written to {html}", err=as_json)


@streamgen.command(short_help="Draw the graph of kernels as SVG.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FILE.svg",
    help="File for the picture. Several groups become several files.",
)  # fmt: skip
@click.option("--full", is_flag=True, help="Draw a box for each kernel, without grouping equal ones.")
@source_options
def draw(source: str | None, gguf: str | None, layer: int, output: Path, full: bool, **options: Any) -> None:
    """Draw the graph of kernels of SOURCE. Each stream shows its tile and the depth of its FIFO. Equal
    kernels, such as the columns of an engine, share a box.

    \b
    Examples:
      streamgen draw examples/mlp.py:mlp -o mlp.svg --channels 4
      streamgen draw mlp -o mlp.svg --full
    """
    from streamgen.observe.drawing import require_picture, write_picture

    require_picture(output)
    with progress_line() as progress:
        groups = accelerator_from(source, gguf, layer, options, progress).groups
        progress("drawing")
        for group in groups:
            name = output if len(groups) == 1 else output.with_stem(f"{output.stem}_{group.graph.name}")
            write_picture(group.graph, name, full=full)
            click.echo(f"written to {name}")
