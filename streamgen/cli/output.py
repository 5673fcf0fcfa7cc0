"""Standard output of commands, whose errors name "standard output" as errors of files name their path."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, cast


@contextmanager
def named_output() -> Iterator[None]:
    """In the block, an OSError of standard output has "standard output" as its file name. Text that could not
    be written is dropped, so that the end of the process does not try again."""
    if sys.stdout is None:  # closed before the process began
        yield
        return
    output = _Output(sys.stdout)
    try:
        with redirect_stdout(cast(Any, output)):
            yield
    finally:
        if output.lost:
            output.give_up()


class _Output:
    def __init__(self, stream: Any) -> None:
        self._stream, self.lost = stream, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._named():
            return cast(int, self._stream.write(text))

    def flush(self) -> None:
        with self._named():
            self._stream.flush()

    def give_up(self) -> None:
        """Drop the text in the buffer."""
        with suppress(OSError):  # no file of the system
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename, self.lost = "standard output", True
            raise
