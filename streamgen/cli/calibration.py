"""Calibration on the command line: round the weights of a float checkpoint for a text, then compile it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from streamgen.api.compiling import compile
from streamgen.api.language_model import LanguageModel
from streamgen.base.errors import CheckpointError
from streamgen.base.progress import After, Progress
from streamgen.base.wording import counted
from streamgen.cli.options import config_of

WINDOW = 512  # tokens; fewer if the context is shorter


def calibrated_of(
    checkpoint: str | Path, options: Mapping[str, Any], progress: Progress, after: After | None
) -> LanguageModel:
    """The compiled language model of a checkpoint whose float weights are rounded for a text."""
    import numpy as np

    from streamgen.model.calibration import calibrated, within_bits
    from streamgen.model.frontend import load_decoder
    from streamgen.text.tokenizer_files import load_tokenizer
    from streamgen.text.windows import windows_of

    config = config_of(options)
    file: Path = options["calibrate"]
    try:
        text = file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file} is not UTF-8: {error}") from error
    progress("reading the checkpoint")
    graph, tokenizer = load_decoder(checkpoint, config.size("context")), load_tokenizer(checkpoint)
    begin = tokenizer.encode("")
    ids = np.array(tokenizer.encode(text)[len(begin) :])
    tokens = min(options["calibrate_tokens"] or 16 * WINDOW, len(ids))
    if tokens < 2:
        raise click.UsageError(
            f"{file} has {counted(tokens, 'token')}; calibration needs at least 2, and works better with "
            "thousands"
        )
    window = min(WINDOW, graph.context, tokens + len(begin))
    texts = [{"ids": part} for part in windows_of(ids, tokens, window, begin)]
    numbers = config.numbers(True)
    if options["bits"] is not None:
        numbers = within_bits(graph, texts, numbers, options["bits"], progress)
    rounded = calibrated(graph, texts, numbers, options["calibrate_folder"], progress)
    model = compile(rounded, None, config, progress, tokenizer=tokenizer, after=after)
    assert isinstance(model, LanguageModel)
    return model
