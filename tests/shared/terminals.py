"""Commands on a pseudo-terminal, and what its screen shows."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyte

__all__ = ["Seen", "run_on_terminal", "shown"]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """code: of the exit. lines: what has scrolled away and the screen, in the end, without blank lines at the
    end. screens: the lines after each piece of output. output: of a standard output that is a pipe."""

    code: int
    lines: list[str]
    screens: list[list[str]]
    output: bytes


def run_on_terminal(
    command: Sequence[str],
    *,
    columns: int = 80,
    rows: int = 24,
    piped: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Seen:
    """Run a command whose standard streams are a terminal. piped: but standard output, which is a pipe."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    given = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=subprocess.PIPE if piped else theirs,
        stderr=theirs,
        env=given | {"TERM": "xterm"} | dict(environment or {}),
    )
    os.close(theirs)
    screen, screens = pyte.HistoryScreen(columns, rows, history=10_000), []
    stream = pyte.ByteStream(screen)
    while data := _read(ours):
        stream.feed(data)
        screens.append(_lines(screen))
    os.close(ours)
    output = b"" if process.stdout is None else process.stdout.read()
    if process.stdout is not None:
        process.stdout.close()
    return Seen(code=process.wait(), lines=_lines(screen), screens=screens, output=output)


def shown(text: str, *, columns: int = 80, rows: int = 24) -> list[str]:
    """What a terminal shows of a text alone."""
    screen = pyte.HistoryScreen(columns, rows, history=10_000)
    pyte.Stream(screen).feed(text.replace("\n", "\r\n"))
    return _lines(screen)


def _lines(screen: pyte.HistoryScreen) -> list[str]:
    gone = ["".join(line[column].data for column in range(screen.columns)) for line in screen.history.top]
    lines = [line.rstrip() for line in (*gone, *screen.display)]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""
