"""Progress of long steps: callbacks that report it, and a display on standard error.

On a terminal every step is a row with a bar, its time and the time left, below the text of standard output.
The row disappears when the step ends. In a log, a step that takes more than two seconds prints a line now and
then. The time left follows from the count in the message ("compiled 3 of 17 files", "12 of at least 40
cycles"). For a step without a count it follows from the time that the step last took on this machine, per MB
if the message has a size ("translating 6.0 MB").
"""

import atexit
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any

from rich import progress as bars
from rich.console import Console, RenderableType
from rich.table import Column
from rich.text import Text

from streamgen.base.remembered import remember, remembered
from streamgen.base.screen import Above, above
from streamgen.base.wording import duration

Progress = Callable[[str], None]
"""Called with a short description of the current step, or with an empty text when no step is running."""

PASSES = (
    *("import", "quantise", "plan", "explore", "schedule", "bind", "steer"),
    *("forks", "converters", "place", "size", "emit"),
)
"""The passes of the compiler, in order. The passes from `explore` on run once for each group."""

After = Callable[[str, Any], None]
"""Called after each pass with its name in `PASSES` and its result. The str of the result is for people."""

Counted = Callable[[str, int, int], None]
"""Called by a long pass with the name of its items, the number of items done and the number of all items."""

FIRST = 2.0  # seconds after which a log has a line about a step
_TICK = 0.5
_STEP = re.compile(r"^step (\d+) of (\d+): ")
_COUNT = re.compile(r"([\d,]+) of (?:at least )?([\d,]+)")
_SIZE = re.compile(r"\b\d+\.\d (?=MB\b)")


def step(number: int, steps: int, message: str) -> str:
    """The message with the number of the step and the number of all steps."""
    return f"step {number} of {steps}: {message}"


def terminal_progress() -> Progress:
    """A `Progress` that shows each step on standard error: as a row on a terminal, and elsewhere as lines for
    the steps that take long."""
    return _Teller()


@contextmanager
def told(progress: Progress | None) -> Iterator[Progress]:
    """Yield the given `Progress`, by default `terminal_progress()`. When the block ends, even with an error,
    the progress is called with an empty text."""
    tell = progress or terminal_progress()
    with above() if progress is None else nullcontext():
        try:
            yield tell
        finally:
            tell("")


class _Teller:
    """A `Progress` of one task. Messages that differ only in numbers belong to the same step."""

    def __init__(self) -> None:
        self._message, self._task = "", bars.TaskID(0)

    def __call__(self, message: str) -> None:
        count = _COUNT.search(_STEP.sub("", message))
        done, goal = (_number(part) for part in count.groups()) if count else (0, None)
        with _Display.changes:
            if message and _same(message, self._message):
                _Display.shared().count(self._task, message, done, goal)
            else:
                if self._message:
                    _Display.shared().end(self._task)
                if message:
                    self._task = _Display.shared().begin(message, done, goal)
            self._message = message


class _Display(bars.Progress):
    """The steps of all tasks, on standard error."""

    changes = threading.RLock()
    """Held while a step of any task begins or ends."""
    above: Above | None = None
    _shared: "_Display | None" = None

    @classmethod
    def shared(cls) -> "_Display":
        """The current display, or a new one if all steps have ended."""
        if cls._shared is None:
            cls._shared = cls()
        return cls._shared

    def __init__(self) -> None:
        terminal = sys.stderr is not None and sys.stderr.isatty()
        console = Console(stderr=True, force_terminal=terminal, force_jupyter=False)
        live = terminal and not console.is_dumb_terminal
        super().__init__(
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(bar_width=20),
            bars.TimeElapsedColumn(),
            _Left(table_column=Column(no_wrap=True)),
            console=console,
            refresh_per_second=4,
            transient=True,
            redirect_stdout=False,  # it may be a file; `Above` keeps lines that have not ended
            disable=not live,
        )
        self._over = threading.Event()
        self._block = ExitStack()
        if live:
            self._block.enter_context(above())
        if live and isinstance(sys.stdout, Above):
            self.above = sys.stdout
            self.above.show(self)
        if not live:
            threading.Thread(target=self._watch, daemon=True).start()
        self.start()
        atexit.register(self.stop)  # stop shows the cursor of the terminal again

    def begin(self, message: str, done: int, goal: int | None) -> bars.TaskID:
        """Show a step."""
        return self.add_task(message, completed=done, total=goal, due=FIRST)

    def count(self, step: bars.TaskID, message: str, done: int, goal: int | None) -> None:
        """Update a step. If its count starts again, its time does too."""
        if done < self._tasks[step].completed:
            self.reset(step, total=goal, completed=done, description=message)
        else:
            self.update(step, description=message, total=goal, completed=done)

    def end(self, step: bars.TaskID) -> None:
        """End a step. Print its time if a line about it was printed before. The end of the last step ends the
        display."""
        task = self._tasks[step]
        seconds = task.elapsed or 0.0
        if task.total is None and seconds >= FIRST:
            name, size = _sized(task.description)
            remember(name, seconds / size)
        if task.fields["due"] > FIRST:
            _print(f"{task.description}, {duration(seconds)} in all")
        self.remove_task(step)
        if not self.task_ids:
            self._close()

    def _close(self) -> None:
        _Display._shared = None
        self._over.set()
        text, self.above = self.above, None
        with suppress(OSError, ValueError):  # nobody reads any more
            self.stop()
        atexit.unregister(self.stop)
        if text is not None:
            text.show(None)
        self._block.close()

    def get_renderables(self) -> Iterable[RenderableType]:
        """The unfinished line of standard output, then the steps."""
        if self.above is not None and self.above.line:
            yield Text(self.above.line, no_wrap=True, overflow="ignore")
        yield from super().get_renderables()

    def report(self) -> None:
        """Print a line about each step whose next line is due. It is due at twice the time of the last line,
        and at least 8 s after it."""
        with self.changes:
            for task in self.tasks:
                if (seconds := task.elapsed or 0.0) >= task.fields["due"]:
                    left = f", about {left} left" if (left := _left(task)) else ""
                    _print(f"{task.description}, {duration(seconds)}{left}")
                    task.fields["due"] = max(seconds * 2, seconds + 8)

    def _watch(self) -> None:
        while not self._over.wait(_TICK):
            self.report()


class _Left(bars.ProgressColumn):
    """A column with the estimated time left of a step."""

    def render(self, task: bars.Task) -> Text:
        left = _left(task)
        return Text(f"about {left} left" if left else "", style="progress.remaining")


def _print(line: str) -> None:
    with suppress(OSError, ValueError):  # nobody reads any more
        print(line, file=sys.stderr, flush=True)


def _left(task: bars.Task) -> str | None:
    """Estimated time left: from the count, or from the time that the step last took on this machine."""
    if task.total is not None:
        seconds = task.time_remaining
    else:
        name, size = _sized(task.description)
        usual = remembered(name)
        seconds = None if usual is None else size * usual - (task.elapsed or 0.0)
    return duration(seconds) if seconds and seconds >= 0.5 else None


def _sized(message: str) -> tuple[str, float]:
    """The name of a step without its size in MB, and the size; 1.0 if the message has no size."""
    size = _SIZE.search(message)
    return (_SIZE.sub("", message), max(float(size[0]), 0.1)) if size else (message, 1.0)


def _same(message: str, other: str) -> bool:
    return re.sub(r"\d[\d,.]*", "#", message) == re.sub(r"\d[\d,.]*", "#", other)


def _number(text: str) -> int:
    return int(text.replace(",", ""))
