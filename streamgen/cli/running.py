"""streamgen simulate."""

from collections.abc import Sequence
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
    WEIGHTS_ARE_RIGHT,
    card_options,
    check_weights_option,
    device_of,
    require_used,
)

__all__: list[str] = []


@streamgen.command(short_help="Run the Verilog cycle by cycle and compare with golden.")
@click.option(
    "-i", "--input", "inputs", multiple=True, type=click.Path(path_type=Path), metavar="FILE.npy",
    help="Array of an input, [..., features]; once for each input, in order. Without it inputs are random.",
)  # fmt: skip
@click.option(
    "-o", "--output", "outputs", multiple=True, type=click.Path(path_type=Path), metavar="FILE.npy",
    help="Where an output goes; once for each output, in order.",
)  # fmt: skip
@click.option("--tokens", type=click.IntRange(1), help="Tokens of random inputs.  [default: those of a pass]")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of random inputs, and of --delays."
)
@click.option(
    "--compare/--no-compare", "--golden/--no-golden", "compare", default=True, show_default=True,
    help="Compare the outputs with the golden model, bit for bit.",
)  # fmt: skip
@click.option(
    "--probe", is_flag=True, help="Compare every token on every edge too, and name the first that differs."
)
@click.option(
    "--probe-edge", "edges", multiple=True, metavar="EDGE",
    help="Probe this edge only, a FIFO of the report: 'a.o -> b.i'. May be repeated.",
)  # fmt: skip
@click.option("--waves", metavar="FIRST:LAST", help="Write the waves of these cycles to --waves-file.")
@click.option(
    "--waves-file", default="waves.fst", show_default=True, type=click.Path(path_type=Path), metavar="FILE",
    help="An FST file: a nanosecond there is a cycle.",
)  # fmt: skip
@click.option("--waves-run", default=1, show_default=True, help="Which run of the hardware, the first is 1.")
@click.option(
    "--delays",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Random cycles that the memory adds, at most.",
)
@click.option("--timeout", default=600.0, show_default=True, help="Seconds for each run of the hardware.")
@click.option("--report", is_flag=True, help="Print the report of the run.")
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE", help="Write the report of the run as a page."
)
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
    check_weights: bool,
    xclbin: Path | None,
    device: int,
    **options: Any,
) -> None:
    """Run SOURCE in a cycle-accurate simulation of its Verilog and compare with the golden model.

    \b
    examples:
      streamgen simulate mlp                               random inputs, compared with golden
      streamgen simulate mlp -i x.npy -o y.npy             arrays from and to files
      streamgen simulate mlp --probe                       which token differs first, on which edge
      streamgen simulate mlp --waves 100:400               waves of 300 cycles
      streamgen simulate mlp --xclbin mlp.xclbin           on a card instead
    """
    from streamgen.observe.waves import Waves
    from streamgen.runtime.memory import MemoryModel

    if inputs and tokens is not None:
        raise click.UsageError("--tokens is for random inputs; those of --input are given")
    unused = {} if not inputs or delays else {"seed": "inputs and delays of the memory are given"}
    if waves is None:
        unused |= dict.fromkeys(("waves_file", "waves_run"), "--waves FIRST:LAST is missing")
    if xclbin is None:
        unused |= {"device": "it is one of --xclbin FILE"}
    require_used(unused)
    if check_weights and (probe or edges or waves is not None):
        raise click.UsageError("--check-weights is for runs without probes and waves, whose device is closed")
    if html is not None:
        require_place(html)
    for file in (*outputs, *([waves_file] if waves else [])):
        if not file.absolute().parent.is_dir():
            raise click.UsageError(f"{file}: there is no folder {file.parent}")
    window = None if waves is None else Waves(waves_file, *_window(waves), run=waves_run)
    card = device_of(xclbin, device, simulated=xclbin is None)
    given = [read_array(file) for file in inputs]
    with progress_line() as progress:
        accelerator = accelerator_from(source, gguf, layer, options, progress)
        wanted, made = accelerator.inputs, accelerator.outputs
        if outputs and len(outputs) != len(made):
            names = ", ".join(info.name for info in made)
            raise click.UsageError(
                f"--output is needed once for each of {names}; it is given {counted(len(outputs), 'time')}"
            )
        if inputs:
            require_inputs(wanted, given)
            arrays = given
        else:
            arrays = accelerator.random_inputs(tokens or accelerator.manifests[0].max_tokens, seed)
        memory = MemoryModel(delays=delays, seed=seed) if delays else None
        result = accelerator.run(
            *arrays,
            memory=memory,
            timeout=timeout,
            probe=probe or edges,
            waves=window,
            progress=progress,
            device=card,
        )
        results = result if isinstance(result, tuple) else (result,)
        if check_weights:
            progress("reading the weights back")
            accelerator.check_weights()
        progress("computing golden" if compare else "")
        expected = accelerator.golden(*arrays) if compare else None
    if outputs:
        write_outputs(results, outputs)
    for info, array in zip(wanted, arrays, strict=True):
        origin = "" if inputs else f", random with seed {seed}"
        click.echo(f"input {info.name} {list(array.shape)} {array.dtype}{origin}")
    for k, (info, array) in enumerate(zip(made, results, strict=True)):
        click.echo(
            f"output {info.name} {list(array.shape)} {array.dtype}{f' -> {outputs[k]}' if outputs else ''}"
        )
    summary = accelerator.report()
    click.echo(f"{summary.cycles or 0} cycles")
    if check_weights:
        click.echo(WEIGHTS_ARE_RIGHT)
    if accelerator.probed is not None:
        click.echo(accelerator.probed)
    if window is not None:
        click.echo(f"cycles {window.first} to {window.last} of run {window.run} -> {window.path}")
    if report:
        click.echo(summary.text())
    if html is not None:
        click.echo(f"report -> {summary.html(html)}")
    if expected is not None:
        _compare(
            [info.name for info in made], results, expected if isinstance(expected, tuple) else (expected,)
        )


def _window(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal()):
        raise click.BadParameter(f"{text!r} is not FIRST:LAST, two cycles", param_hint="--waves")
    return int(first), int(last)


def _compare(names: Sequence[str], results: Sequence[np.ndarray], golden: Sequence[np.ndarray]) -> None:
    """Say that the results are golden's; StreamgenError when they are not."""
    wrong = []
    for name, result, expected in zip(names, results, golden, strict=True):
        if result.tobytes() != expected.tobytes():
            differ = result.view(f"u{result.itemsize}") != expected.view(f"u{expected.itemsize}")
            wrong.append(f"{int(differ.sum())} of {differ.size} elements of {name}")
    if wrong:
        raise StreamgenError(f"{', '.join(wrong)} differ from golden; --probe names the kernel at fault")
    click.echo("equal to golden bit for bit")
