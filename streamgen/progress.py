"""What takes long says what it does: callbacks for whoever waits, and for whoever wants to see each pass."""

import sys
from collections.abc import Callable
from typing import Any

__all__ = ["PASSES", "After", "Progress", "terminal_progress"]

Progress = Callable[[str], None]
"""Told what is being done, in a few words; an empty text means that nothing is, for now."""

PASSES = (
    *("import", "quantise", "explore", "schedule", "bind", "steer"),
    *("forks", "converters", "place", "size", "emit"),
)
"""The passes of the compiler, in order; those from `explore` on once for each group."""

After = Callable[[str, Any], None]
"""Told what each pass has made, when it has: its name in `PASSES`, and a value whose str is for people."""


def terminal_progress() -> Progress:
    """Keep one line on standard error up to date, when that is a terminal; say nothing else."""

    def tell(message: str) -> None:
        if sys.stderr.isatty():
            print(f"\033[K{message}\r", end="", file=sys.stderr, flush=True)

    return tell
