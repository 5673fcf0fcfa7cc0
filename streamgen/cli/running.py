"""streamgen simulate."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from streamgen.base.errors import StreamgenError
from streamgen.base.files import read_array
from streamgen.base.folders import require_place
from streamgen.base.wording import counted
from streamgen.cli.arrays import require_inputs, write_outputs
from streamgen.cli.group import accelerator_from, progress_line, source_options, streamgen
from streamgen.cli.options import (
    SIMULATED,
    WEIGHTS_ARE_RIGHT,
    card_options,
    check_weights_option,
    device_of,
    require_used,
    trace_option,
)


@streamgen.command(short_help="Simulate the Verilog and compare with the golden model.")
@click.option(
    "-i", "--input", "inputs", multiple=True, type=click.Path(path_type=Path), metavar="FILE.npy",
    help="Array of an input, [..., features]; once for each input, in order. The default is random inputs.",
)  # fmt: skip
@click.option(
    "-o", "--output", "outputs", multiple=True, type=click.Path(path_type=Path), metavar="FILE.npy",
    help="File for an output; once for each output, in order.",
)  # fmt: skip
@click.option(
    "--tokens",
    type=click.IntRange(1),
    metavar="N",
    help="Number of tokens of random inputs.  [default: one pass]",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seed of random inputs and of --delays.",
)
@click.option(
    "--compare/--no-compare", "--golden/--no-golden", "compare", default=True, show_default=True,
    help="Compare the outputs with the golden model, bit for bit.",
)  # fmt: skip
@click.option(
    "--probe", is_flag=True, help="Also compare every token on every edge, and name the first difference."
)
@click.option(
    "--probe-edge", "edges", multiple=True, metavar="EDGE",
    help="Probe only this edge, as the report names it: 'a.o -> b.i'. May be repeated.",
)  # fmt: skip
@click.option("--waves", metavar="FIRST:LAST", help="Write the waves of these cycles to --waves-file.")
@click.option(
    "--waves-file", default="waves.fst", show_default=True, type=click.Path(path_type=Path), metavar="FILE",
    help="With --waves: FST file, in which a nanosecond is a cycle.",
)  # fmt: skip
@click.option(
    "--waves-run",
    default=1,
    show_default=True,
    help="With --waves: number of the run of the hardware, from 1.",
)
@click.option(
    "--delays",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Largest random delay that memory adds to an access, in cycles.",
)
@click.option(
    "--timeout", default=600.0, show_default=True, help="Limit of each run of the hardware, in seconds."
)
@click.option("--report", is_flag=True, help="Print the report of the run.")
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE", help="Write the report of the run as a page."
)
@trace_option
@check_weights_option
@card_options
@source_options
def simulate(
    source: str | None,
    gguf: str | None,
    layer: int,
    inputs: tuple[Path, ...],
    outputs: tuple[Path, ...],
    tokens: int | None,
    seed: int,
    compare: bool,
    probe: bool,
    edges: tuple[str, ...],
    waves: str | None,
    waves_file: Path,
    waves_run: int,
    delays: int,
    timeout: float,
    report: bool,
    html: Path | None,
    trace: Path | None,
    check_weights: bool,
    xclbin: Path | None,
    device: int,
    **options: Any,
) -> None:
    """Simulate the Verilog of SOURCE cycle by cycle and compare the outputs with the golden model.

    \b
    Examples:
      streamgen simulate mlp --tokens 4
      streamgen simulate mlp -i x.npy -o y.npy
      streamgen simulate mlp --waves 100:400
      streamgen simulate mlp --trace run.json --html run.html
      streamgen simulate mlp --xclbin mlp.xclbin
    """
    from streamgen.observe.waves import Waves
    from streamgen.runtime.memory import MemoryModel

    if inputs and tokens is not None:
        raise click.UsageError("--tokens has no effect with --input")
    unused = {} if not inputs or delays else {"seed": "with --input and without --delays"}
    if waves is None:
        unused |= dict.fromkeys(("waves_file", "waves_run"), "without --waves FIRST:LAST")
    if xclbin is None:
        unused |= {"device": "without --xclbin FILE"}
    else:
        unused |= {"trace": "with --xclbin; only a simulation has a timeline"}
    require_used(unused)
    if check_weights and (probe or edges or waves is not None or trace is not None):
        raise click.UsageError(
            "--check-weights cannot be combined with probes, waves or a trace, which close their device"
        )
    for place in (html, trace):
        if place is not None:
            require_place(place)
    for file in (*outputs, *([waves_file] if waves else [])):
        if not file.absolute().parent.is_dir():
            raise click.UsageError(f"{file}: there is no folder {file.parent}")
    window = None if waves is None else Waves(waves_file, *_window(waves), run=waves_run)
    card = device_of(xclbin, device, simulated=xclbin is None)
    given = [read_array(file) for file in inputs]
    with progress_line() as progress:
        accelerator = accelerator_from(source, gguf, layer, options, progress, goal=SIMULATED)
        produced = accelerator.outputs
        if outputs and len(outputs) != len(produced):
            names = ", ".join(info.name for info in produced)
            raise click.UsageError(
                f"--output must be given once for each of {names}; it is given "
                f"{counted(len(outputs), 'time')}"
            )
        if inputs:
            require_inputs(accelerator.arguments.names, given)
            arguments = accelerator.arguments.nested(given)
        else:
            arguments = tuple(accelerator.random_inputs(tokens or accelerator.manifests[0].max_tokens, seed))
        memory = MemoryModel(delays=delays, seed=seed) if delays else None
        result = accelerator.run(
            *arguments,
            memory=memory,
            timeout=timeout,
            probe=probe or edges,
            waves=window,
            progress=progress,
            device=card,
            trace=trace,
        )
        results = accelerator.arguments.named_results(result)
        if check_weights:
            progress("reading the weights back")
            accelerator.check_weights()
        progress("running the golden model" if compare else "")
        expected = accelerator.arguments.named_results(accelerator.golden(*arguments)) if compare else None
    if outputs:
        write_outputs([*results.values()], outputs)
    for name, array in accelerator.arguments.named(arguments).items():
        origin = "" if inputs else f", random with seed {seed}"
        click.echo(f"input {name} {list(array.shape)} {array.dtype}{origin}")
    for k, (name, array) in enumerate(results.items()):
        click.echo(f"output {name} {list(array.shape)} {array.dtype}{f' -> {outputs[k]}' if outputs else ''}")
    summary = accelerator.report()
    click.echo(f"{summary.cycles or 0} cycles")
    if check_weights:
        click.echo(WEIGHTS_ARE_RIGHT)
    if accelerator.probed is not None:
        click.echo(accelerator.probed)
    if window is not None:
        click.echo(f"cycles {window.first} to {window.last} of run {window.run} -> {window.path}")
    if trace is not None:
        click.echo(f"timeline -> {trace}; https://ui.perfetto.dev shows it")
    if report:
        click.echo(summary.text())
    if html is not None:
        click.echo(f"report -> {summary.html(html)}")
    if expected is not None:
        _compare(results, expected)


def _window(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal()):
        raise click.BadParameter(f"{text!r} is not of the form FIRST:LAST (two cycles)", param_hint="--waves")
    return int(first), int(last)


def _compare(results: Mapping[str, np.ndarray], golden: Mapping[str, np.ndarray]) -> None:
    """Print that the results equal the golden model's. Raises StreamgenError if they differ."""
    wrong = []
    for name, result in results.items():
        expected = golden[name]
        if result.tobytes() != expected.tobytes():
            differ = result.view(f"u{result.itemsize}") != expected.view(f"u{expected.itemsize}")
            wrong.append(f"{int(differ.sum())} of {differ.size} elements of {name}")
    if wrong:
        raise StreamgenError(
            f"{', '.join(wrong)} differ from the golden model; --probe names the faulty kernel"
        )
    click.echo("The outputs equal the golden model's, bit for bit.")
