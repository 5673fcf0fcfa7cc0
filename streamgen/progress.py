"""What takes long says what it does: callbacks for whoever waits, and for whoever wants to see each pass.

A step that takes more than two seconds shows its time and what is left: on a terminal in one line that
changes, in a log in a line now and then. What is left follows from the count ("compiled 3 of 17 files",
"12 of at least 40 cycles"); of a step that counts nothing, from the last time on this machine, by the MB
where it says how many ("translating 6.0 MB").
"""

import json
import re
import shutil
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from streamgen.folders import new_file

__all__ = ["PASSES", "After", "Counted", "Progress", "step", "terminal_progress", "told"]

Progress = Callable[[str], None]
"""Told what is being done, in a few words; an empty text means that nothing is, for now."""

PASSES = (
    *("import", "quantise", "explore", "schedule", "bind", "steer"),
    *("forks", "converters", "place", "size", "emit"),
)
"""The passes of the compiler, in order; those from `explore` on once for each group."""

After = Callable[[str, Any], None]
"""Told what each pass has made, when it has: its name in `PASSES`, and a value whose str is for people."""

Counted = Callable[[str, int, int], None]
"""Told by a pass that takes long what it does, how many of them are done, and of how many."""

FIRST = 2.0  # seconds after which a log has a line about a step
_TICK = 0.5
_STEP = re.compile(r"^step (\d+) of (\d+): ")
_COUNT = re.compile(r"([\d,]+) of (?:at least )?([\d,]+)")
_SIZE = re.compile(r"\b\d+\.\d (?=MB\b)")
_KEPT = 200  # steps whose time is remembered; the longest ago go first


def step(number: int, steps: int, message: str) -> str:
    """A message that also says how many steps there are."""
    return f"step {number} of {steps}: {message}"


def terminal_progress() -> Progress:
    """Tell of each step on standard error: in one line when that is a terminal, else in lines of those that
    take long."""
    return _Line()


@contextmanager
def told(progress: Progress | None) -> Iterator[Progress]:
    """Whom to tell, by default `terminal_progress()`; at the end, also of an error, that nothing is done."""
    tell = progress or terminal_progress()
    try:
        yield tell
    finally:
        tell("")


class _Line:
    """Steps that count go on as one: their messages differ in numbers alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._message, self._since, self._next = "", 0.0, 0.0
        self._first = (0.0, 0)  # when a step was first seen to count, and how far
        self._done = 0  # how far it was when it was last told
        self._watched = False

    def __call__(self, message: str) -> None:
        with self._lock:
            now = time.monotonic()
            counted = _COUNT.search(_STEP.sub("", message))
            done = _number(counted[1]) if counted else 0
            if not _same(message, self._message):
                self._end(now)
                self._since = now
                self._next = now + FIRST
                self._first = (now, done)
            elif done < self._done:  # it counts anew
                self._first = (now, done)
            self._done = done
            self._message = message
            if message and sys.stderr.isatty():
                self._draw(now)
            if message and not self._watched:
                self._watched = True
                # it must not keep this alive: who tells may be gone without saying so
                threading.Thread(target=_watch, args=(weakref.ref(self),), daemon=True).start()

    def tick(self) -> bool:
        """Show the time; whether to go on."""
        with self._lock:
            if not self._message:
                self._watched = False
                return False
            now = time.monotonic()
            if sys.stderr.isatty():
                self._draw(now)
            elif now >= self._next:
                self._write(f"{self._message}{self._left(now)}\n")
                taken = now - self._since
                self._next = self._since + max(taken * 2, taken + 8)
            return True

    def _end(self, now: float) -> None:
        """Say how long the step took, where a line said that it was on."""
        if not self._message:
            return
        if (taken := now - self._since) >= FIRST and not _COUNT.search(_STEP.sub("", self._message)):
            _remember(self._message, taken)
        if sys.stderr.isatty():
            self._write("\033[K")
        elif self._next > self._since + FIRST:
            self._write(f"{self._message}, {_time(taken)} in all\n")

    def _draw(self, now: float) -> None:
        text = f"{self._message}{self._left(now)}"
        self._write(f"\033[K{text[: shutil.get_terminal_size().columns - 1]}\r")

    def _left(self, now: float) -> str:
        """Seconds since the step began, and about how many it will still take."""
        taken = now - self._since
        if taken < FIRST:
            return ""
        found = f", {_time(taken)}"
        if counted := _COUNT.search(_STEP.sub("", self._message)):
            done, goal = map(_number, counted.groups())
            begun, before = self._first
            if before < done < goal:
                found += f", about {_time((now - begun) * (goal - done) / (done - before))} left"
        elif (left := _last_time(self._message) - taken) > 0:
            found += f", about {_time(left)} left"
        return found

    @staticmethod
    def _write(text: str) -> None:
        with suppress(OSError, ValueError):  # nobody reads any more
            print(text, end="", file=sys.stderr, flush=True)


def _watch(line: "weakref.ref[_Line]") -> None:
    while True:
        time.sleep(_TICK)
        found = line()
        if found is None or not found.tick():
            return
        del found


def _last_time(message: str) -> float:
    """Seconds that the step took when it was last seen to end, 0 when that is not known."""
    name, size = _sized(message)
    seconds = _past().get(name, 0.0)
    return size * seconds if isinstance(seconds, float) else 0.0


def _remember(message: str, seconds: float) -> None:
    name, size = _sized(message)
    past = _past()
    past.pop(name, None)
    past[name] = round(seconds / size, 3)
    file = _past_file()
    with suppress(OSError):  # then the next time says less
        file.parent.mkdir(parents=True, exist_ok=True)
        with new_file(file) as part:
            part.write(json.dumps(dict([*past.items()][-_KEPT:])).encode())


def _past() -> dict[str, Any]:
    """Seconds by step, or seconds a MB."""
    try:
        found = json.loads(_past_file().read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _past_file() -> Path:
    return user_cache_path("streamgen") / "steps.json"


def _sized(message: str) -> tuple[str, float]:
    """The name of a step, without the MB that it says, and these."""
    found = _SIZE.search(message)
    return (_SIZE.sub("", message), max(float(found[0]), 0.1)) if found else (message, 1.0)


def _same(one: str, other: str) -> bool:
    return bool(one) and re.sub(r"\d[\d,.]*", "#", one) == re.sub(r"\d[\d,.]*", "#", other)


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _time(seconds: float) -> str:
    """`7 s`, `2 min 5 s`."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"
