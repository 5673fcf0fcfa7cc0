"""Text of a language model on the command line, and what it cost."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from streamgen.cli.options import config_of, require_no_options
from streamgen.config import DecoderConfig
from streamgen.decoder import CONFIG, DecoderAccelerator, compile_decoder, open_decoder
from streamgen.manifest import Manifest
from streamgen.packing import BEAT_BYTES
from streamgen.progress import Progress
from streamgen.runtime.generation import Pass

__all__ = ["decoder_of", "print_costs", "print_text"]


def decoder_of(model: str, options: Mapping[str, Any], progress: Progress) -> DecoderAccelerator:
    """The accelerator that a command line names; compiled unless `model` is a folder with a written one.

    options: those of the command. click's UsageError when they would change what is compiled already.
    """
    if Path(model, CONFIG).is_file():
        require_no_options(DecoderConfig, model, options)
        return open_decoder(model)
    config = config_of(DecoderConfig, options)
    if model == "default":
        from streamgen.frontend import default_checkpoint  # torch takes seconds to load

        return compile_decoder(default_checkpoint(), config, progress=progress)
    return compile_decoder(model, config, progress=progress)


def print_text(prompt: str, pieces: Iterator[str | int]) -> str:
    """Print a prompt and what continues it, as it comes; returns the latter."""
    text = ""
    click.echo(prompt, nl=False)
    for piece in pieces:
        click.echo(piece, nl=False)
        text += str(piece)
    click.echo()
    return text


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
            f"{moved / tokens / 1e6:,.1f} MB a token, {moved / limit:.0%} of the memory limit"
        )
