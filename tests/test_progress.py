"""What a step takes, and what is left of it, on a terminal and in a log; time is the test's."""

import gc
import io
import json
import re
import threading
import weakref
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

import streamgen
from streamgen import progress
from streamgen.progress import step, terminal_progress, told
from tests.damage import full_disk
from tests.decoders import TINY, tiny_decoder

FIRST = 2.0


class _Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


class _Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        raise AssertionError("the test has no threads")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Clock:
    found = _Clock()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(progress, "time", found)
    monkeypatch.setattr(progress, "FIRST", FIRST)
    idle = SimpleNamespace(start=lambda: None)
    monkeypatch.setattr(
        progress, "threading", SimpleNamespace(Lock=threading.Lock, Thread=lambda **given: idle)
    )
    return found


def _run(clock: _Clock, line: progress._Line, seconds: float) -> None:
    for _ in range(round(seconds / 0.5)):
        clock.now += 0.5
        line.tick()


def _stderr(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> Callable[[], list[str]]:
    stream = _Stream(terminal)
    monkeypatch.setattr("sys.stderr", stream)
    return lambda: [
        one for one in stream.getvalue().replace("\033[K", "").replace("\r", "\n").split("\n") if one
    ]


def test_a_log_has_lines_now_and_then(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _stderr(monkeypatch, terminal=False)
    line = progress._Line()
    line(step(1, 3, "short"))
    _run(clock, line, 1.5)
    line(step(2, 3, "FIFO depths"))
    _run(clock, line, 125)
    line(step(3, 3, "Verilog"))
    _run(clock, line, 1)
    line("")
    assert lines() == [
        "step 2 of 3: FIFO depths, 2 s",
        "step 2 of 3: FIFO depths, 10 s",
        "step 2 of 3: FIFO depths, 20 s",
        "step 2 of 3: FIFO depths, 40 s",
        "step 2 of 3: FIFO depths, 1 min 20 s",
        "step 2 of 3: FIFO depths, 2 min 5 s in all",
    ]


def test_counts_say_what_is_left(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _stderr(monkeypatch, terminal=False)
    line = progress._Line()
    line("compiled 2 of 12 files")
    clock.now += 4.0
    line("compiled 4 of 12 files")  # two in four seconds
    line.tick()
    assert lines() == ["compiled 4 of 12 files, 4 s, about 16 s left"]


def test_a_step_that_counts_anew(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """FIFOs are sized again when queues turn out slower: what is left is that of the second time."""
    lines = _stderr(monkeypatch, terminal=False)
    line = progress._Line()
    line("FIFO depths, 0 of 60")
    line("FIFO depths, 59 of 60")
    clock.now += 10.0
    line("FIFO depths, 0 of 60")
    clock.now += 4.0
    line("FIFO depths, 20 of 60")
    line.tick()
    assert lines() == ["FIFO depths, 20 of 60, 14 s, about 8 s left"]


def test_least_counts_say_what_is_left(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _stderr(monkeypatch, terminal=False)
    line = progress._Line()
    line("simulated 1,000 of at least 5,000 cycles")
    clock.now += 4.0
    line("simulated 3,000 of at least 5,000 cycles")
    line.tick()
    assert lines() == ["simulated 3,000 of at least 5,000 cycles, 4 s, about 4 s left"]


def test_steps_that_count_nothing_take_as_long_as_last_time(
    clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in another process, and by the MB where these are said; short ones are not kept."""
    lines = _stderr(monkeypatch, terminal=False)
    line = progress._Line()
    for message, seconds in (("compiling headers", 12), ("translating 4.0 MB of a.v", 8), ("short", 1)):
        line(message)
        _run(clock, line, seconds)
        line("")
    seen = len(lines())
    for message in ("compiling headers", "translating 6.0 MB of a.v", "translating 6.0 MB of b.v", "short"):
        line = progress._Line()
        line(message)
        _run(clock, line, 2)
        line("")
    assert lines()[seen:] == [
        "compiling headers, 2 s, about 10 s left",
        "compiling headers, 2 s in all",
        "translating 6.0 MB of a.v, 2 s, about 10 s left",
        "translating 6.0 MB of a.v, 2 s in all",
        "translating 6.0 MB of b.v, 2 s",
        "translating 6.0 MB of b.v, 2 s in all",
        "short, 2 s",
        "short, 2 s in all",
    ]


@pytest.mark.parametrize("content", ["", "[1]", '{"a step": "soon"}', '{"a step": null}', "[" * 10_000])
def test_a_damaged_memory_of_steps_says_nothing(
    clock: _Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str
) -> None:
    file = tmp_path / "streamgen" / "steps.json"
    file.parent.mkdir()
    file.write_text(content)
    lines = _stderr(monkeypatch, terminal=False)
    line = progress._Line()
    line("a step")
    _run(clock, line, 2)
    line("")
    assert lines() == ["a step, 2 s", "a step, 2 s in all"]
    assert json.loads(file.read_text())["a step"] == 2.0


def test_nothing_is_remembered_where_nothing_can_be_written(
    clock: _Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Path(tmp_path, "streamgen").write_text("a file where a folder should be")
    lines = _stderr(monkeypatch, terminal=False)
    line = progress._Line()
    line("a step")
    _run(clock, line, 2)
    line("")
    assert lines()[-1] == "a step, 2 s in all"


def test_nothing_is_left_on_a_full_disk(
    clock: _Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = _stderr(monkeypatch, terminal=False)
    line = progress._Line()
    line("a step")
    _run(clock, line, 2)
    with full_disk():
        line("")
    assert lines()[-1] == "a step, 2 s in all"
    assert list(Path(tmp_path, "streamgen").iterdir()) == []


@pytest.mark.slow
def test_passes_that_take_long_count() -> None:
    """Each of what they go through once or several times, in steps that say of how many."""
    said: list[str] = []
    streamgen.compile(tiny_decoder(), None, TINY, said.append)
    counts: dict[str, list[tuple[int, int]]] = {}
    for text in said:
        if found := re.fullmatch(r"step \d of 8: tiny: ([a-zA-Z ]+), (\d+) of (\d+)", text):
            counts.setdefault(found[1], []).append((int(found[2]), int(found[3])))
    blocks = counts.pop("Verilog")
    assert [done for done, _ in blocks] == [*range(1, len(blocks) + 1)]
    assert {goal for _, goal in blocks} == {len(blocks)}
    assert [*counts] == ["converters", "timing of phases", "FIFO depths"]
    for what, seen in counts.items():
        goal = seen[0][1]
        assert goal > 5 and {of for _, of in seen} == {goal} and seen[0][0] == 0, what
        assert goal / 2 < max(done for done, _ in seen) < goal
        assert all(done <= later or later == 0 for (done, _), (later, _) in pairwise(seen))


def test_a_terminal_has_one_line(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _stderr(monkeypatch, terminal=True)
    monkeypatch.setenv("COLUMNS", "24")
    line = progress._Line()
    line("quantising the weights")
    _run(clock, line, 2.5)
    line("")
    assert lines()[0] == "quantising the weights"
    assert lines()[-1] == "quantising the weights, 2 s"[:23]


def test_an_error_ends_a_step(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with pytest.raises(KeyError), told(said.append) as tell:
        tell("a")
        raise KeyError
    assert said == ["a", ""]


def test_nobody_is_kept_alive() -> None:
    line = terminal_progress()
    line("a step whose end nobody tells")
    gone = weakref.ref(line)
    del line
    gc.collect()
    deadline = threading.Event()
    for _ in range(40):
        if gone() is None:
            break
        deadline.wait(0.1)
    assert gone() is None
