"""streamgen embed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamgen.base.folders import require_place
from streamgen.base.progress import Progress
from streamgen.cli.group import changed_files_option, progress_line, streamgen
from streamgen.cli.models import is_written
from streamgen.cli.options import (
    SIMULATED,
    card_options,
    config_of,
    config_options,
    device_of,
    require_no_options,
    require_used,
)

if TYPE_CHECKING:
    import numpy as np


@streamgen.command(short_help="Turn texts into rows of numbers.")
@click.argument("source")
@click.argument("texts", nargs=-1, required=True, metavar="TEXT...")
@click.option(
    "--on", "place", type=click.Choice(["golden", "simulator", "card"]),
    help="Device that computes the rows: golden needs no simulator, simulator runs Verilog, card needs "
    "--xclbin. All devices give the same bits.  [default: simulator, or card with --xclbin]",
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE.npy",
    help="File for the rows, float32 [texts, features].",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with texts and rows.")
@changed_files_option
@card_options
@config_options
def embed(
    source: str,
    texts: tuple[str, ...],
    place: str | None,
    output: Path | None,
    as_json: bool,
    xclbin: Path | None,
    device: int,
    **options: Any,
) -> None:
    """Compute a row of numbers for each TEXT, and print the cosines between the rows.

    SOURCE is the folder of an encoder of sentences, as sentence-transformers writes it, or a folder with a
    compiled one.

    \b
    Examples:
      streamgen embed all-MiniLM-L6-v2 --on golden "A man eats." "A bird sings."
      streamgen embed all-MiniLM-L6-v2 --on golden "The sea is calm." -o rows.npy
    """
    place = place or ("simulator" if xclbin is None else "card")
    if (place == "card") != (xclbin is not None):
        raise click.UsageError("--on card and --xclbin FILE, the linked design, need each other")
    require_used({} if xclbin is not None else {"device": "without --xclbin FILE"})
    if output is not None:
        require_place(output)
    card = device_of(xclbin, device, simulated=place == "simulator")
    with progress_line(quiet=as_json) as progress:
        rows = _rows(source, texts, place, card, options, progress)
    if output is not None:
        import numpy as np

        with output.open("wb") as file:
            np.save(file, rows)
    if as_json:
        click.echo(json.dumps({"texts": texts, "rows": rows.tolist(), "on": place}, ensure_ascii=False))
        return
    _print(texts, rows)
    if output is not None:
        click.echo(f"rows -> {output}")


def _rows(
    source: str,
    texts: Sequence[str],
    place: str,
    card: Any,
    options: Mapping[str, Any],
    progress: Progress,
) -> "np.ndarray":
    """The rows of texts. The model is compiled unless the source is a written folder or the golden model
    computes."""
    from streamgen.api.compiling import compile, golden_encoder, load  # the compiler takes a second
    from streamgen.api.sentence_encoder import SentenceEncoder
    from streamgen.compiler.config import MOST_TOKENS
    from streamgen.text.sentences import SentenceTokenizer, is_sentence_encoder

    if is_written(source):
        require_no_options(source, options)
        model = load(source, changed_files=options["changed_files"])
        if not isinstance(model, SentenceEncoder):
            raise click.UsageError(f"{source} is no encoder of sentences; `streamgen simulate` runs it")
        if place == "golden":
            return model.embed(texts, golden=True)
        return model.embed(texts, progress=progress, device=card)
    if not is_sentence_encoder(source):
        raise click.UsageError(
            f"{source} is no encoder of sentences: a folder that sentence-transformers wrote"
        )
    require_used({"changed_files": "without a written folder"})
    config = config_of(options, goal=SIMULATED)
    tokenizer = SentenceTokenizer.of_folder(Path(source), config.max_tokens or MOST_TOKENS)
    longest = max(len(ids) for ids in tokenizer.ids(texts))
    config = replace(config, max_tokens=config.max_tokens or longest)
    if place == "golden":
        return golden_encoder(source, config, progress).embed(texts)
    compiled = compile(source, config=config, progress=progress)
    assert isinstance(compiled, SentenceEncoder)
    return compiled.embed(texts, progress=progress, device=card)


def _print(texts: Sequence[str], rows: "np.ndarray") -> None:
    """Print the cosines of each row to all rows."""
    lengths = (rows.astype(float) ** 2).sum(axis=1) ** 0.5
    click.echo(f"{rows.shape[1]} numbers for each text; cosines of the rows:")
    for row, length, text in zip(rows, lengths, texts, strict=True):
        cosines = rows.astype(float) @ row / (lengths * length)
        click.echo(" ".join(f"{value:6.3f}" for value in cosines) + f"  {text}")
