"""The command line: streamgen estimate | compile | simulate | report | package | emulate | generate.

Results go to standard output, progress to standard error when that is a terminal, an error is one message on
standard error. Exit code 1: the accelerator or a tool failed, or a result differs from golden; 2: what was
asked for cannot be done (options, inputs, files); 130: interrupted.
"""

import os
import sys
import traceback
from collections.abc import Sequence

import click

from streamgen.cli import cards, compiling, running  # noqa: F401, each adds its commands to the group
from streamgen.cli.group import streamgen
from streamgen.errors import StreamgenError
from streamgen.extras import needed

__all__ = ["main", "streamgen"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with needed("this command"):
            result = streamgen.main(given, prog_name="streamgen", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:  # whoever read the output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (StreamgenError, ValueError, TypeError, OSError) as error:
        if "--debug" in given:
            traceback.print_exc()
        click.echo(f"streamgen: {_message(error)}", err=True)
        return 1 if isinstance(error, StreamgenError) else 2


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def run() -> None:
    """Entry point of the command `streamgen`."""
    sys.exit(main())
