"""Text of a language model on the command line, and what it cost."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click

from streamgen.cli.options import config_of, require_no_options
from streamgen.config import DecoderConfig
from streamgen.decoder import CONFIG, DecoderAccelerator, compile_decoder, open_decoder
from streamgen.errors import StreamgenError
from streamgen.manifest import Manifest
from streamgen.packing import BEAT_BYTES
from streamgen.progress import Progress
from streamgen.runtime.generation import Pass
from streamgen.tokenizer import Tokenizer
from streamgen.tokenizer_files import TOKENIZER

__all__ = ["decoder_of", "print_costs", "print_text", "require_golden"]


def decoder_of(model: str, options: Mapping[str, Any], progress: Progress) -> DecoderAccelerator:
    """The accelerator that a command line names; compiled unless `model` is a folder with a written one.

    options: those of the command. click's UsageError when they would change what is compiled already.
    """
    if Path(model, CONFIG).is_file():
        require_no_options(DecoderConfig, model, options)
        return open_decoder(model)
    if Path(model).is_dir() and not Path(model, TOKENIZER).is_file():
        raise click.UsageError(
            f"{model} holds neither what --output has written nor a checkpoint with a {TOKENIZER}"
        )
    config = config_of(DecoderConfig, options)
    if model == "default":
        from streamgen.frontend import default_checkpoint  # torch takes seconds to load

        return compile_decoder(default_checkpoint(), config, progress=progress)
    return compile_decoder(model, config, progress=progress)


def print_text(prompt: str, ids: Iterator[int], tokenizer: Tokenizer) -> list[int]:
    """Print a prompt and what continues it, as it comes; returns the ids of the latter."""
    found, stream = [], tokenizer.stream()
    click.echo(prompt, nl=False)
    for one in ids:
        found.append(one)
        if one != tokenizer.end:
            click.echo(stream.push(one), nl=False)
    click.echo(stream.finish())
    return found


def require_golden(found: Sequence[int], golden: Sequence[int]) -> None:
    """Say that the tokens are golden's; StreamgenError when they are not."""
    for index, (one, expected) in enumerate(zip_longest(found, golden)):
        if one != expected:
            raise StreamgenError(f"token {index} of the text has the id {one}; golden's has {expected}")
    click.echo(f"{len(found)} tokens equal golden's")


def print_costs(manifest: Manifest, passes: Sequence[Pass], prompt_tokens: int) -> None:
    """Of the passes of one text that began with a prompt of so many tokens."""
    clock = manifest.clock_mhz
    for what, some in (
        ("prompt", [one for one in passes if one.position < prompt_tokens]),
        ("each token after it", [one for one in passes if one.position >= prompt_tokens]),
    ):
        if not some:
            continue
        tokens, cycles = sum(one.tokens for one in some), sum(one.cycles for one in some)
        moved = sum(one.bytes or 0 for one in some)
        limit = cycles * len(manifest.ports) * BEAT_BYTES * manifest.memory.beats / manifest.memory.cycles
        click.echo(
            f"{what}: {tokens} tokens in {len(some)} passes, {cycles / tokens:,.0f} cycles a token, "
            f"{tokens * clock * 1e6 / cycles:,.1f} tokens/s at {clock:g} MHz, "
            f"{moved / tokens / 1e3:,.1f} kB a token, {moved / limit:.0%} of the memory limit"
        )
