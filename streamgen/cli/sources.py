"""Find the accelerator or model of a command line: a written folder, a checkpoint, a Python function, or one
layer of a GGUF file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from streamgen.api.accelerator import Accelerator
from streamgen.api.compiling import compile, load
from streamgen.base.progress import After, Progress
from streamgen.cli.calibration import calibrated_of
from streamgen.cli.models import CHECKPOINT, is_written, model_of
from streamgen.cli.options import (
    MODEL_OPTIONS,
    config_of,
    require_calibration,
    require_no_options,
    require_used,
)
from streamgen.text.tokenizer import Tokenizer
from streamgen.text.tokenizer_files import load_tokenizer

EXAMPLE_TOKENS = 2  # tokens of the example input of a GGUF layer; torch.export needs more than one


def accelerator_of(
    source: str | None,
    gguf: str | None,
    layer: int,
    options: Mapping[str, Any],
    progress: Progress,
    after: After | None = None,
    **defaults: Any,
) -> Accelerator:
    """The accelerator that a command line names. It is compiled unless `source` is a written folder.

    options: all options of the command. defaults: fields of the configuration whose options are not given.
    Raises click's UsageError if the line names no source or two.
    """
    if (source is None) == (gguf is None):
        raise click.UsageError("give either SOURCE (see `streamgen --help`) or --gguf FILE")
    require_calibration(options)
    if options.get("calibrate") is not None:
        return calibrated_of(_checkpoint(source), options, progress, after)
    if gguf is not None:
        from streamgen.model.frontend import (  # torch takes seconds to load
            default_checkpoint,
            load_feed_forward,
        )

        progress("reading the checkpoint")
        block = load_feed_forward(default_checkpoint() if gguf == "default" else gguf, layer)
        config = config_of(options, name=f"feed_forward_{layer}", **defaults)
        return compile(block, block.example_inputs(EXAMPLE_TOKENS), config, progress, after=after)
    assert source is not None
    if is_written(source):
        require_no_options(source, options)
        require_used({name: "with a written folder" for name in MODEL_OPTIONS if name in options})
        return load(source, options.get("trust", ()), changed_files=options.get("changed_files", False))
    config = config_of(options, **defaults)
    model, inputs = model_of(source, progress, options)
    return compile(model, inputs, config, progress, tokenizer=tokenizer_of(options), after=after)


def tokenizer_of(options: Mapping[str, Any]) -> Tokenizer | None:
    """The tokenizer that --tokenizer names."""
    place = options.get("tokenizer")
    return None if place is None else load_tokenizer(place)


def _checkpoint(source: str | None) -> str | Path:
    """The file or folder of a language model. Raises click's UsageError for any other source."""
    if source == "default":
        from streamgen.model.frontend import default_checkpoint

        return default_checkpoint()
    if source is None or not (Path(source).is_file() or Path(source, CHECKPOINT).is_file()):
        raise click.UsageError(
            "--calibrate needs a language model: a GGUF file, or a folder with config.json and safetensors"
        )
    return source
