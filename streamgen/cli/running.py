"""streamgen simulate | generate."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from streamgen.cli.arrays import read_inputs, write_outputs
from streamgen.cli.group import (
    accelerator_from,
    changed_files_option,
    progress_line,
    source_options,
    streamgen,
)
from streamgen.cli.options import (
    card_of,
    card_options,
    check_weights_option,
    config_options,
    require_used,
)
from streamgen.errors import StreamgenError
from streamgen.folders import require_free, require_place
from streamgen.written import WRITTEN

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
    golden: bool,
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
    with progress_line() as progress:
        accelerator = accelerator_from(source, gguf, layer, options, progress)
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
            *arrays,
            memory=memory,
            timeout=timeout,
            probe=probe or edges,
            waves=window,
            progress=progress,
            device=card_of(xclbin, device),
        )
        results = result if isinstance(result, tuple) else (result,)
        if check_weights:
            progress("reading the weights back")
            accelerator.check_weights()
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
    click.echo(f"{summary.cycles or 0} cycles")
    if check_weights:
        click.echo(_WEIGHTS_ARE_RIGHT)
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


@streamgen.command(short_help="Text from a language model on its accelerator, simulated cycle by cycle.")
@click.argument("source")
@click.option("--prompt", required=True, help="Text that is to be continued.")
@click.option("--chat", is_flag=True, help="The prompt is a message, to be answered as the model was taught.")
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
@check_weights_option
@changed_files_option
@card_options
@config_options
def generate(
    source: str,
    prompt: str,
    chat: bool,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float,
    seed: int | None,
    output: Path | None,
    golden: bool,
    check_weights: bool,
    xclbin: Path | None,
    device: int,
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
      streamgen generate smollm2 --prompt "What is the sea?" --chat
    """
    require_used({"device": "it is one of --xclbin FILE"} if xclbin is None else {})
    from streamgen.cli.generation import print_costs, print_text, require_golden
    from streamgen.cli.sources import language_model_of  # the compiler takes a second to load
    from streamgen.text.sampling import Sampler

    if output is not None:
        require_free(output, WRITTEN)
    if golden and temperature and seed is None:
        raise click.UsageError("--golden draws the same tokens only with a --seed")
    choice: Any = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    Sampler(**choice)  # bad choices are told before anything is compiled
    with progress_line() as progress:
        accelerator = language_model_of(source, options, progress)
        tokenizer = accelerator.tokenizer
        if tokenizer is None:
            raise click.UsageError(f"a text needs a tokenizer; {accelerator.text.missing}")
        messages, context = [{"role": "user", "content": prompt}], accelerator.config.context
        ids = tokenizer.chat(messages) if chat else tokenizer.encode(prompt)
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
        card = card_of(xclbin, device)
        pieces = accelerator.generate(ids, max_new_tokens, device=card, **choice)
        progress("building the simulator" if card is None else "loading the card")
        texts = accelerator.device(device=card)
        texts.open()
    found = print_text(f"{prompt}\n" if chat else prompt, map(int, pieces), tokenizer)
    print_costs(texts.execution.manifest, texts.passes, len(ids))
    if check_weights:
        with progress_line() as progress:
            progress("reading the weights back")
            accelerator.check_weights()
        click.echo(_WEIGHTS_ARE_RIGHT)
    if golden:
        with progress_line() as progress:
            progress("computing golden")
            expected = [*map(int, accelerator.generate(ids, max_new_tokens, golden=True, **choice))]
        require_golden(found, expected)


_WEIGHTS_ARE_RIGHT = "weights on the device are those that were written"


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
