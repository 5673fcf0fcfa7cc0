"""What a step takes, and what is left of it, on a terminal and in a log; time is the test's."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

import streamgen
from streamgen.base import progress
from streamgen.base.progress import Progress, step, terminal_progress, told
from tests.shared.damage import full_disk
from tests.shared.decoders import TINY, tiny_decoder

FIRST = 2.0


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now

    def run(self, seconds: float) -> None:
        """Let time pass; the log has the lines that are due."""
        for _ in range(round(seconds / 0.5)):
            self.now += 0.5
            progress._Display.shared().report()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[_Clock]:
    found = _Clock()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(progress, "Console", partial(Console, get_time=found))
    monkeypatch.setattr(progress, "FIRST", FIRST)
    monkeypatch.setattr(progress, "_TICK", 3600.0)  # the thread says nothing, the clock does
    yield found
    assert progress._Display._shared is None, "a step has not ended"


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """What a log has by now."""
    seen: list[str] = []

    def all_of_them() -> list[str]:
        seen.extend(capsys.readouterr().err.splitlines())
        return seen

    return all_of_them


@pytest.fixture
def tell(clock: _Clock, lines: Callable[[], list[str]]) -> Iterator[Progress]:
    with told(None) as found:
        yield found


def test_a_log_has_lines_now_and_then(clock: _Clock, tell: Progress, lines: Callable[[], list[str]]) -> None:
    tell(step(1, 3, "short"))
    clock.run(1.5)
    tell(step(2, 3, "FIFO depths"))
    clock.run(125)
    tell(step(3, 3, "Verilog"))
    clock.run(1)
    tell("")
    assert lines() == [
        "step 2 of 3: FIFO depths, 2 s",
        "step 2 of 3: FIFO depths, 10 s",
        "step 2 of 3: FIFO depths, 20 s",
        "step 2 of 3: FIFO depths, 40 s",
        "step 2 of 3: FIFO depths, 1 min 20 s",
        "step 2 of 3: FIFO depths, 2 min 5 s in all",
    ]


@pytest.mark.parametrize(
    "message", ["compiled {:,} of 8,000 files", "simulated {:,} of at least 8,000 cycles"]
)
def test_counts_say_what_is_left(
    clock: _Clock, tell: Progress, lines: Callable[[], list[str]], message: str
) -> None:
    for done in (1000, 2000, 3000):  # a thousand in two seconds
        tell(message.format(done))
        clock.now += 2.0
    progress._Display.shared().report()
    assert lines() == [f"{message.format(3000)}, 6 s, about 10 s left"]


def test_a_step_that_counts_anew(clock: _Clock, tell: Progress, lines: Callable[[], list[str]]) -> None:
    """FIFOs are sized again when queues turn out slower: times are those of the second round."""
    tell("FIFO depths, 0 of 60")
    tell("FIFO depths, 59 of 60")
    clock.now += 10.0
    for done in (0, 20, 40):
        tell(f"FIFO depths, {done} of 60")
        clock.now += 4.0
    progress._Display.shared().report()
    assert lines() == ["FIFO depths, 40 of 60, 12 s, about 4 s left"]


def test_steps_that_count_nothing_take_as_long_as_last_time(
    clock: _Clock, tell: Progress, lines: Callable[[], list[str]]
) -> None:
    """Also in another process, and by the MB where these are said; short ones are not kept."""
    for message, seconds in (("compiling headers", 12), ("translating 4.0 MB of a.v", 8), ("short", 1)):
        tell(message)
        clock.run(seconds)
        tell("")
    seen = len(lines())
    for message in ("compiling headers", "translating 6.0 MB of a.v", "translating 6.0 MB of b.v", "short"):
        again = terminal_progress()
        again(message)
        clock.run(2)
        again("")
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


def test_several_work_at_once(clock: _Clock, tell: Progress, lines: Callable[[], list[str]]) -> None:
    """Each has its step; the first that ends leaves the other as it is."""
    other = terminal_progress()
    tell("one")
    clock.run(1)
    other("another")
    clock.run(1)
    tell("")
    clock.run(1)
    other("")
    assert lines() == ["one, 2 s", "one, 2 s in all", "another, 2 s", "another, 2 s in all"]


@pytest.mark.parametrize("content", ["", "[1]", '{"a step": "soon"}', '{"a step": null}', "[" * 10_000])
def test_a_damaged_memory_of_steps_says_nothing(
    clock: _Clock, tell: Progress, lines: Callable[[], list[str]], tmp_path: Path, content: str
) -> None:
    file = tmp_path / "streamgen" / "measured.json"
    file.parent.mkdir()
    file.write_text(content)
    tell("a step")
    clock.run(2)
    tell("")
    assert lines() == ["a step, 2 s", "a step, 2 s in all"]
    assert json.loads(file.read_text())["a step"] == 2.0


def test_nothing_is_remembered_where_nothing_can_be_written(
    clock: _Clock, tell: Progress, lines: Callable[[], list[str]], tmp_path: Path
) -> None:
    Path(tmp_path, "streamgen").write_text("a file where a folder should be")
    tell("a step")
    clock.run(2)
    tell("")
    assert lines()[-1] == "a step, 2 s in all"


def test_nothing_is_left_on_a_full_disk(
    clock: _Clock, tell: Progress, lines: Callable[[], list[str]], tmp_path: Path
) -> None:
    tell("a step")
    clock.run(2)
    with full_disk():
        tell("")
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


def test_an_error_ends_a_step() -> None:
    said: list[str] = []
    with pytest.raises(KeyError), told(said.append) as tell:
        tell("a")
        raise KeyError
    assert said == ["a", ""]
