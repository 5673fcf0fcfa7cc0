"""The command line: streamgen estimate | explore (search) | compile | simulate | report | draw | package |
emulate | cocotb | generate.

Results go to standard output. Progress and errors go to standard error. The exit status is 1 if the
accelerator or a tool failed or a result differs from the golden model, 2 for wrong options, inputs or files,
and 130 if interrupted.
"""

import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

__all__ = ["main", "run", "streamgen"]

# Seconds after the first Ctrl-C in which another one has no effect, because files are being removed.
PATIENCE = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given)
    except KeyboardInterrupt:  # also while modules are imported
        print("interrupted", file=sys.stderr)
        return 130


def _run(given: list[str]) -> int:
    import click

    from streamgen.base.errors import StreamgenError
    from streamgen.base.extras import needed
    from streamgen.cli.messages import EXPECTED, message_of, option_names
    from streamgen.cli.output import named_output

    options: dict[str, str] = {}
    try:
        with needed("this command"), warnings.catch_warnings(), named_output():
            from streamgen.cli.commands import streamgen

            called = next(filter(None, (streamgen.get_command(None, word) for word in given)), None)
            options = option_names(called, given)
            warnings.showwarning = partial(_warn, options)
            arguments = [word for word in given if word != "--verbose"]  # allowed anywhere
            result = streamgen.main(arguments, prog_name="streamgen", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    except BrokenPipeError:  # the reader of the output has closed it
        return 1
    except EXPECTED as error:
        if "--debug" in given:
            traceback.print_exc()
        message = message_of(error, options, verbose="--verbose" in given)
        click.echo(f"streamgen: {message}", err=True)
        return 1 if isinstance(error, StreamgenError) else 2


def _warn(options: Mapping[str, str], message: Any, kind: type[Warning], *where: Any, **more: Any) -> None:
    from streamgen.base.errors import GenerationWarning
    from streamgen.cli.messages import in_options

    of_file = issubclass(kind, GenerationWarning)  # names settings of a file, not options
    text = str(message) if of_file else in_options(str(message), options)
    print(f"streamgen: warning: {text}", file=sys.stderr)


def run() -> None:
    """Entry point of the command `streamgen`."""
    signal.signal(signal.SIGINT, _Interrupts())
    sys.exit(main())


class _Interrupts:
    """The first Ctrl-C ends the work, which then removes unfinished files. Another within `PATIENCE` seconds
    has no effect. A later one ends the process."""

    first: float | None = None

    def __call__(self, *_: object) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first = now
            raise KeyboardInterrupt
        if now - self.first > PATIENCE:
            os._exit(130)


def __getattr__(name: str) -> Any:
    """The group of commands, imported on first use."""
    if name != "streamgen":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from streamgen.cli.commands import streamgen

    return streamgen
