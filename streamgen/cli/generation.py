"""Text of a language model on the command line, and what it cost."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import click

from streamgen.buffers.packing import BEAT_BYTES
from streamgen.errors import StreamgenError
from streamgen.manifest import Manifest
from streamgen.runtime.generation import Pass
from streamgen.text.tokenizer import Tokenizer

__all__ = ["print_costs", "print_text", "require_golden"]


def print_text(prompt: str, ids: Iterator[int], tokenizer: Tokenizer) -> list[int]:
    """Print a prompt and what continues it, as it comes; returns the ids of the latter."""
    found, stream = [], tokenizer.stream()
    click.echo(prompt, nl=False)
    for one in ids:
        found.append(one)
        if one not in tokenizer.ends:
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
