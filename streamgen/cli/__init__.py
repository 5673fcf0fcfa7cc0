"""The command line: streamgen estimate | explore | compile | simulate | report | draw | package | emulate |
cocotb | generate.

Results go to standard output, progress to standard error when that is a terminal, an error is one message on
standard error. Exit code 1: the accelerator or a tool failed, or a result differs from golden; 2: what was
asked for cannot be done (options, inputs, files); 130: interrupted.
"""

import os
import re
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

__all__ = ["main", "run", "streamgen"]

PATIENCE = 5.0  # seconds after the first Ctrl-C in which others change nothing: files are being removed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given)
    except KeyboardInterrupt:  # also while modules are imported
        print("interrupted", file=sys.stderr)
        return 130


def _run(given: list[str]) -> int:
    import click

    from streamgen.cli.output import named_output
    from streamgen.errors import StreamgenError
    from streamgen.extras import needed

    try:
        with needed("this command"), warnings.catch_warnings(), named_output():
            from streamgen.cli.commands import streamgen

            warnings.showwarning = _warn
            result = streamgen.main(given, prog_name="streamgen", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    except BrokenPipeError:  # whoever read the output has enough
        return 1
    except (StreamgenError, ValueError, TypeError, OSError, MemoryError) as error:
        if "--debug" in given:
            traceback.print_exc()
        click.echo(f"streamgen: {_message(error)}", err=True)
        return 1 if isinstance(error, StreamgenError) else 2


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return ": ".join(filter(None, ("memory is full", str(error))))
    return _options(str(error))


def _options(text: str) -> str:
    """Fields of the configuration as the options of the command line that they are."""

    def option(found: re.Match[str]) -> str:
        return f"--{'no-' if found[2] else ''}{found[1].replace('_', '-')}"

    return re.sub(r"CompileConfig\.(\w+)(=False)?", option, text)


def _warn(message: Any, *where: Any, **more: Any) -> None:
    print(f"streamgen: warning: {_options(str(message))}", file=sys.stderr)


def run() -> None:
    """Entry point of the command `streamgen`."""
    signal.signal(signal.SIGINT, _Interrupts())
    sys.exit(main())


class _Interrupts:
    """The first Ctrl-C ends what runs, which then removes what is half done; those that follow at once, of a
    user without patience, do not disturb that. A later one ends the process."""

    first: float | None = None

    def __call__(self, *_: object) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first = now
            raise KeyboardInterrupt
        if now - self.first > PATIENCE:
            os._exit(130)


def __getattr__(name: str) -> Any:
    """The group of commands, imported when it is first asked for."""
    if name != "streamgen":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from streamgen.cli.commands import streamgen

    return streamgen
