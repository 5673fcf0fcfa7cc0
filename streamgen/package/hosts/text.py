"""Continue a text with the language model in this folder, on a board.

    python host.py --prompt "The sea" --max-new-tokens 32

To write your own program, follow `main`: open, `session`, `generate`. `make` builds the binary that the
program loads onto the board.
"""

from pathlib import Path

import click

from streamgen.base.errors import StreamgenError
from streamgen.runtime.execution import Execution
from streamgen.runtime.generation import TextDevice
from streamgen.runtime.xrt import on_board
from streamgen.text.sampling import Sampler
from streamgen.text.stored import read_text

HERE = Path(__file__).resolve().parent


@click.command()
@click.option("--prompt", help="Text to continue.")
@click.option("--chat", is_flag=True, help="Send the prompt as a message, in the chat template of the model.")
@click.option("--ids", help="Token ids instead of a text, separated by spaces. The result is token ids, too.")
@click.option("--max-new-tokens", default=32, show_default=True, help="Largest number of tokens to write.")
@click.option(
    "--temperature",
    default=0.0,
    show_default=True,
    help="Temperature of sampling; 0 always takes the likeliest token.",
)
@click.option("--seed", type=int, help="Seed of sampling.")
@click.option("--board", default=0, show_default=True, help="Index of the board in XRT.")
def main(
    prompt: str | None,
    chat: bool,
    ids: str | None,
    max_new_tokens: int,
    temperature: float,
    seed: int | None,
    board: int,
) -> None:
    """Continue a text with the language model in this folder, on a board."""
    if (prompt is None) == (ids is None):
        raise click.UsageError("give either --prompt or --ids")
    try:
        text, config = read_text(HERE)
        tokenizer = None if prompt is None else text.tokenizer
        if prompt is not None and tokenizer is None:
            raise click.UsageError(f"{text.missing}; give --ids")
        sampler = Sampler(temperature=temperature, seed=seed) if temperature else None
        message = {"role": "user", "content": prompt or ""}
        if tokenizer is None:
            given = [int(word) for word in (ids or "").split()]
        else:
            given = tokenizer.chat([message]) if chat else tokenizer.encode(message["content"])
        stop = frozenset() if tokenizer is None else tokenizer.ends
        with Execution(HERE, on_board(board)) as execution:
            device = TextDevice(execution, text.vocabulary, config["context"])
            tokens = device.session().generate(given, max_new_tokens, sampler=sampler, stop=stop)
            stream = None if tokenizer is None else tokenizer.stream()
            for token in tokens:
                if stream is None:
                    click.echo(f"{token} ", nl=False)
                elif token not in stop:
                    click.echo(stream.push(token), nl=False)
            click.echo("" if stream is None else stream.finish())
            cycles, clock = sum(part.cycles for part in device.passes), execution.manifest.clock_mhz
            click.echo(f"{cycles} cycles, {cycles / clock / 1000:.1f} ms at {clock:g} MHz", err=True)
    except (StreamgenError, ValueError, TypeError, OSError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
