"""streamgen generate."""

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import click

from streamgen.artifact.written import WRITTEN
from streamgen.base.folders import require_free, require_place
from streamgen.base.wording import counted
from streamgen.cli.group import changed_files_option, progress_line, streamgen
from streamgen.cli.options import (
    WEIGHTS_ARE_RIGHT,
    card_options,
    check_weights_option,
    config_options,
    device_of,
    model_options,
    require_used,
    trace_option,
)


@streamgen.command(short_help="Let a language model write a text.")
@click.argument("source")
@click.option("-p", "--prompt", metavar="TEXT", help="Text to continue; '-' reads it from standard input.")
@click.option(
    "--prompt-file", type=click.Path(exists=True, dir_okay=False, allow_dash=True), metavar="FILE",
    help="File with the text to continue (UTF-8).",
)  # fmt: skip
@click.option(
    "--max-new-tokens", type=click.IntRange(0), default=32, show_default=True, metavar="N",
    help="Largest number of tokens to write. The model may end the text earlier.",
)  # fmt: skip
@click.option(
    "--on", "place", type=click.Choice(["golden", "simulator", "card"]),
    help="Device that writes the text: golden takes seconds, simulator runs Verilog, card needs --xclbin. "
    "All devices write the same text.  [default: simulator, or card with --xclbin]",
)  # fmt: skip
@click.option("--chat", is_flag=True, help="Send the prompt as a message, in the chat template of the model.")
@click.option(
    "--stop", "stops", multiple=True, metavar="TEXT",
    help="End the text before this string. May be repeated.",
)  # fmt: skip
@click.option(
    "--temperature",
    default=0.0,
    show_default=True,
    help="Temperature of sampling; 0 always takes the likeliest token.",
)
@click.option(
    "--top-k",
    type=int,
    metavar="N",
    help="Sample from the N likeliest tokens. It needs a temperature above 0.",
)
@click.option(
    "--top-p",
    default=1.0,
    show_default=True,
    help="Sample from the likeliest tokens that together have this probability, 0 to 1. It needs a "
    "temperature above 0.",
)
@click.option("--seed", type=int, metavar="N", help="Seed of sampling. The same seed gives the same text.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object with prompt, text, ids and costs."
)
@click.option("--quiet", is_flag=True, help="Print the continuation of the prompt and nothing else.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path),
    help="New folder for the compiled accelerator. As SOURCE, it needs no compilation.",
)  # fmt: skip
@click.option(
    "--compare", "--golden", "compare", is_flag=True, help="Compare every token with the golden model."
)
@trace_option
@check_weights_option
@changed_files_option
@card_options
@model_options("checkpoint", "tokenizer")
@config_options
def generate(
    source: str,
    prompt: str | None,
    prompt_file: str | None,
    max_new_tokens: int,
    place: str | None,
    chat: bool,
    stops: tuple[str, ...],
    temperature: float,
    top_k: int | None,
    top_p: float,
    seed: int | None,
    as_json: bool,
    quiet: bool,
    output: Path | None,
    compare: bool,
    trace: Path | None,
    check_weights: bool,
    xclbin: Path | None,
    device: int,
    **options: Any,
) -> None:
    """Continue a text and print its costs: cycles, tokens per second and memory traffic.

    SOURCE (see `streamgen --help`) is a language model, or a folder with a compiled one. Without a tokenizer,
    the prompt and the text are ids: numbers with spaces between them. The first run builds the simulator,
    which takes minutes for a model like SmolLM2.

    \b
    Examples:
      streamgen generate default --on golden -p "Once upon a time"
      streamgen generate default -p "The sea" --max-new-tokens 8 -o smollm2
      streamgen generate smollm2 -p "Once upon a time" --temperature 0.8 --seed 1
      streamgen generate smollm2 -p "What is the sea?" --chat --stop .
    """
    from streamgen.cli.texts import Asked, Opened, prompt_of, require_golden  # the compiler takes a second
    from streamgen.text.continuation import Continuation

    place = place or ("simulator" if xclbin is None else "card")
    _require_place(place, xclbin)
    if as_json and quiet:
        raise click.UsageError("--json and --quiet cannot be combined; --json already prints only its object")
    if "" in stops:
        raise click.UsageError("--stop is empty; it needs at least one character")
    if compare and temperature and seed is None:
        raise click.UsageError("--compare at a temperature above 0 needs --seed")
    if output is not None:
        require_free(output, WRITTEN)
    if trace is not None:
        require_place(trace)
    choice = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    asked = Asked(prompt=prompt_of(prompt, prompt_file), chat=chat, new_tokens=max_new_tokens, choice=choice)
    card = device_of(xclbin, device, simulated=place == "simulator")
    on_screen = not (quiet or as_json)
    with progress_line(quiet=not on_screen) as progress:
        opened = Opened.of(source, asked, options, progress, golden=place == "golden")
        if output is not None:
            progress("writing")
            opened.write(output)
        chosen = opened.chosen(card, progress, profiled=trace is not None)
        if on_screen and (forecast := opened.forecast) is not None:
            print(forecast, file=sys.stderr, flush=True)  # click.echo would write through the progress bar
        tokenizer, pieces = opened.tokenizer, []
        continuation = Continuation(chosen, tokenizer, tokenizer.ends, stops)
        if on_screen:
            click.echo(asked.prompt, nl=chat)
        for piece in continuation:
            pieces.append(piece)
            if not as_json:
                click.echo(piece, nl=False)
        if not as_json:
            click.echo()
        costs = opened.costs
        if trace is not None:
            opened.write_trace(trace)
        if check_weights:
            progress("reading the weights back")
            opened.check_weights()
        if compare:
            progress("running the golden model")
            expected = [*islice(opened.golden(), len(continuation.ids))]
    if on_screen:
        for cost in costs:
            click.echo(cost)
        if check_weights:
            click.echo(WEIGHTS_ARE_RIGHT)
        if trace is not None:
            click.echo(f"timeline -> {trace}; https://ui.perfetto.dev shows it")
    if as_json:
        result = {
            "prompt": asked.prompt,
            "text": "".join(pieces),
            "ids": continuation.ids,
            "ended": continuation.ended,
            "on": place,
            "costs": [cost.values() for cost in costs],
        }
        click.echo(json.dumps(result, ensure_ascii=False, indent=1))
    if compare:
        require_golden(continuation.ids, expected)
        if on_screen:
            click.echo(f"{counted(len(expected), 'token equals', 'tokens equal')} the golden model's")


def _require_place(place: str, xclbin: Path | None) -> None:
    """Raise click's UsageError for options that have no effect on the chosen device."""
    unused = {} if xclbin is not None else {"device": "without --xclbin FILE"}
    if place == "golden":
        unused |= dict.fromkeys(
            ("output", "compare", "check_weights", "xclbin", "device"), "with --on golden"
        )
        unused["trace"] = "with --on golden; the golden model has no cycles"
    elif place == "simulator":
        unused["xclbin"] = "with --on simulator; use --on card"
    elif xclbin is None:
        raise click.UsageError("--on card needs --xclbin FILE, the linked design")
    else:
        unused["trace"] = "on a card; only a simulation has a timeline"
    require_used(unused)
