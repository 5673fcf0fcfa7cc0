"""What is left on a terminal: the whole text of standard output, whatever progress stood below it."""

import json
import sys

import pytest

from tests.shared.terminals import run_on_terminal, shown

WRITER = """
import json, sys, time
from streamgen.base.progress import terminal_progress, told
pieces = json.loads(sys.argv[1])
with told(None) as tell:
    print(pieces[0], end="", flush=True)  # before a step is shown
    tell("building")
    tell("")
    for number, piece in enumerate(pieces[1:], 1):
        tell(f"writing token {number}/{len(pieces)}, {10 * number} of {10 * len(pieces)} cycles")
        print(piece, end="", flush=True)
        if number % 7 == 3:
            tell("")  # a step ends in the middle of a line
        if number % 11 == 5:
            inner = terminal_progress()
            inner("beside it")
            inner("")
        time.sleep(0.001)
print("behind it")
"""

WORDS = "The sea is a great deal wider than the land, and nobody has counted its waves. "
TEXTS = {
    "a line that ends": [*f"{WORDS * 3}\n"],
    "a line that does not end": WORDS.split(" ") * 4,
    "lines": [f"{word}\n" for word in WORDS.split()],
    "empty lines": ["a", "\n", "\n\n", "b\n", "\n", "c"],
    "pieces over lines": ["one\ntwo", " and two\nthree", f"\n{WORDS * 4}", "\nfour"],
    "rows filled to the last column": ["x" * 10] * 20,
    "a piece longer than the screen": ["so ", WORDS * 20, "it ends"],
    "wide characters": [*"海はとても広い。だれも波を数えたことがない。" * 4],
    "tabs": ["a\tb", "\tc\n", "\td"],
    "brackets": ["[bold]not bold[/bold] ", "[/] ", ":smile:", " 12 of 3"],
}


@pytest.mark.parametrize("columns, rows", [(80, 24), (30, 5)])
@pytest.mark.parametrize("pieces", TEXTS.values(), ids=TEXTS.keys())
def test_the_text_stays(pieces: list[str], columns: int, rows: int) -> None:
    """The last screen is that of the text alone."""
    command = [sys.executable, "-c", WRITER, json.dumps(pieces)]
    seen = run_on_terminal(command, columns=columns, rows=rows)
    text = "".join(pieces) + "behind it\n"
    assert (seen.code, seen.lines) == (0, shown(text, columns=columns, rows=rows))


def test_the_bar_stands_below_the_text() -> None:
    pieces = TEXTS["a line that does not end"]
    seen = run_on_terminal([sys.executable, "-c", WRITER, json.dumps(pieces)])
    both = [lines for lines in seen.screens if lines and lines[-1].startswith("writing token ")]
    assert both and all(lines[0].startswith("The") for lines in both)
    assert any("━" in lines[-1] for lines in both)


def test_a_pipe_has_the_text_byte_by_byte() -> None:
    """And the terminal, which is standard error, nothing in the end."""
    pieces = ["a\r\n", "\tb\x07", "é", "\n\nc"]
    seen = run_on_terminal([sys.executable, "-c", WRITER, json.dumps(pieces)], piped=True)
    assert (seen.code, seen.lines) == (0, [])
    assert seen.output == ("".join(pieces) + "behind it\n").encode()
    assert any("writing token" in line for lines in seen.screens for line in lines)


def test_a_warning_stands_above_the_line_that_goes_on() -> None:
    script = """
import sys
from streamgen.base.progress import told
with told(None) as tell:
    tell("writing")
    print("Once upon", end="")
    print("streamgen: warning: look", file=sys.stderr)
    print(" a time")
"""
    seen = run_on_terminal([sys.executable, "-c", script])
    assert seen.lines == ["streamgen: warning: look", "Once upon a time"]


def test_a_terminal_without_a_cursor_is_a_log() -> None:
    seen = run_on_terminal(
        [sys.executable, "-c", WRITER, json.dumps(["a", "b"])], environment={"TERM": "dumb"}
    )
    assert seen.lines == ["abbehind it"]
