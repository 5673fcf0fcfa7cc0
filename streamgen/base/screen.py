"""Standard output on a terminal that also shows progress. The text stays; the progress is below it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.cells import chop_cells
from rich.console import Console
from rich.progress import Progress
from rich.text import Text


class Above:
    """A standard output that writes its text above a rich `Progress` on the same terminal.

    line: the unfinished line, as when a text comes word by word. The progress shows it as its first row.
    Parts of the line that fill a row of the terminal are written above.
    """

    def __init__(self, stream: Any) -> None:
        self._stream, self.line = stream, ""
        self._display: Progress | None = None
        self._console = Console(stderr=True, force_terminal=True, force_jupyter=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        *lines, rest = (self.line + text).expandtabs().split("\n")
        *rows, self.line = chop_cells(rest, self._console.width) or [""]
        if self._display is None:
            return int(self._stream.write(text))
        # the last row has no line end, because the terminal continues in the next row by itself
        if whole := "".join(f"{line}\n" for line in lines) + "".join(rows):
            self._display.console.print(Text(whole), end="", soft_wrap=True)
        else:
            self._display.refresh()
        return len(text)

    def show(self, display: Progress | None) -> None:
        """Show the unfinished line in a display; None: write it to the stream."""
        self._display = display
        self._stream.write("\r\033[K" if display else self.line)
        self._stream.flush()


@contextmanager
def above() -> Iterator[None]:
    """Replace standard output by an `Above` for the block, if it is the same terminal as standard error."""
    stream = sys.stdout
    if isinstance(stream, Above) or not _one_terminal():
        yield
        return
    sys.stdout = Above(stream)
    try:
        yield
    finally:
        sys.stdout = stream


def _one_terminal() -> bool:
    """Whether standard output and standard error are the same terminal."""
    try:
        return sys.stdout.isatty() and os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # closed, or not a file of the system
        return False
