"""What takes long says what it does: a callback for whoever waits."""

import sys
from collections.abc import Callable

__all__ = ["Progress", "terminal_progress"]

Progress = Callable[[str], None]
"""Told what is being done, in a few words; an empty text means that nothing is, for now."""


def terminal_progress() -> Progress:
    """Keep one line on standard error up to date, when that is a terminal; say nothing else."""

    def tell(message: str) -> None:
        if sys.stderr.isatty():
            print(f"\033[K{message}\r", end="", file=sys.stderr, flush=True)

    return tell
