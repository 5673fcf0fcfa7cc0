"""`streamgen generate`: devices that write, sources of prompts, ends of texts, and the output on a
terminal."""

import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamgen import cli
from streamgen.api.language_model import LanguageModel
from tests.shared.decoders import WORDS, opened_model, tiny_accelerator
from tests.shared.generating import CHOICE, CHOSEN, PROMPT, Call, caller, golden_text
from tests.shared.terminals import run_on_terminal, shown

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny decoder, written. Tests do not change it."""
    return tiny_accelerator().write(tmp_path_factory.mktemp("tiny") / "written")


@pytest.fixture(scope="module")
def opened(folder: Path) -> Iterator[LanguageModel]:
    opened_folder = opened_model(folder)
    yield opened_folder
    opened_folder.close()


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(tmp_path, monkeypatch, capsys)


def test_golden_writes_the_same_text_without_a_simulator(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # nothing could be built
    for chosen, choice in (([], {}), (CHOSEN, CHOICE)):
        assert call(folder, "-p", PROMPT, "--max-new-tokens", 5, "--on", "golden", *chosen) == (
            0,
            f"{PROMPT}{golden_text(5, **choice)}\n",
            "",
        )


def test_prompts_from_elsewhere(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts come from a file or from standard input, by `-` or by default. The last line end is removed."""
    expected = (0, f"{PROMPT}{golden_text(3)}\n", "")
    Path("prompt.txt").write_text(f"{PROMPT}\n")
    rest = ("--max-new-tokens", 3, "--on", "golden")
    assert call(folder, "--prompt-file", "prompt.txt", *rest) == expected
    for given in (("-p", "-"), ("--prompt-file", "-"), ()):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{PROMPT}\n".encode())))
        assert call(folder, *given, *rest) == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff")))
    code, out, err = call(folder, *rest)
    assert (code, out) == (2, "") and err.endswith("Error: standard input is not UTF-8: byte 2 is 0xff\n")
    code, out, err = call(folder, "-p", "A", "--prompt-file", "prompt.txt")
    assert (code, out) == (2, "")
    assert err.endswith("Error: give only one of --prompt and --prompt-file\n")


def test_stop_texts(call: Call, folder: Path) -> None:
    """The text ends before a stop text, even if that spans several tokens."""
    text = golden_text(8)
    stop = text[2:4]
    for place in ("golden", "simulator"):
        arguments = ("--max-new-tokens", 8, "--stop", "nowhere", "--stop", stop, "--on", place, "--json")
        code, out, err = call(folder, "-p", PROMPT, *arguments)
        printed = json.loads(out)
        assert (code, err, printed["text"]) == (0, "", text[: text.index(stop)])
        assert (printed["ended"], printed["on"]) == ("stop", place)
        assert len(printed["ids"]) == text.index(stop) + len(stop)
    model = tiny_accelerator()
    written = model.generate(PROMPT, 8, stop=[stop], golden=True)
    assert "".join(map(str, written)) == text[: text.index(stop)]
    with pytest.raises(ValueError) as caught:
        model.generate(WORDS.encode(PROMPT), 8, stop="A", golden=True)
    assert str(caught.value) == "stop has the text 'A'; for a prompt of ids, only ids are allowed"


def test_json_and_quiet(call: Call, folder: Path, opened: LanguageModel) -> None:
    code, out, err = call(folder, "-p", PROMPT, "--max-new-tokens", 4, "--json", "--compare")
    printed = json.loads(out)
    assert (code, err) == (0, "")
    assert printed.keys() == {"prompt", "text", "ids", "ended", "on", "costs"}
    assert (printed["prompt"], printed["text"], printed["ended"]) == (PROMPT, golden_text(4), "length")
    assert WORDS.decode(printed["ids"]) == golden_text(4)
    device = opened.device()
    before = len(device.passes)
    list(opened.generate(PROMPT, 4))
    passes = device.passes[before:]
    assert [part["cycles"] for part in printed["costs"]] == [
        sum(run.cycles for run in passes[:2]),
        sum(run.cycles for run in passes[2:]),
    ]
    assert [part["bytes"] for part in printed["costs"]] == [
        sum(run.bytes or 0 for run in passes[:2]),
        sum(run.bytes or 0 for run in passes[2:]),
    ]
    assert call(folder, "-p", PROMPT, "--max-new-tokens", 4, "--quiet") == (0, f"{golden_text(4)}\n", "")


def test_how_long_it_will_take(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The duration is the predicted cycles at the rate of the last text; it is unknown at first, then
    remembered."""
    known: dict[str, float] = {}
    monkeypatch.setattr("streamgen.cli.texts.remembered", known.get)
    monkeypatch.setattr("streamgen.cli.texts.remember", known.__setitem__)
    arguments = ["generate", str(folder), "-p", PROMPT, "--max-new-tokens", "8", "--json"]
    assert cli.main(arguments) == 0
    cycles = sum(part["cycles"] for part in json.loads(capsys.readouterr().out)["costs"])
    ((name, rate),) = known.items()
    assert name.startswith("cycles/s of ") and rate > 0
    known[name] = 100.0
    assert cli.main(arguments[:-1]) == 0
    line = re.fullmatch(
        r"about ([\d,]+) cycles to simulate: (\d+) min (\d+) s at 100 cycles/s, the speed of the last text\n",
        capsys.readouterr().err,
    )
    assert line is not None
    predicted = int(line[1].replace(",", ""))
    assert predicted == pytest.approx(cycles, rel=0.05)
    assert int(line[2]) * 60 + int(line[3]) == round(predicted / 100)


@pytest.mark.parametrize("place", ["golden", "simulator"])
@pytest.mark.parametrize("columns, rows", [(100, 24), (30, 6)])
def test_the_text_stays_on_a_terminal(folder: Path, place: str, columns: int, rows: int) -> None:
    """At the end the text, its costs and the forecast are left on the screen, and no progress."""
    command = [sys.executable, "-c", "from streamgen.cli import run; run()", "generate", str(folder)]
    given = ["-p", PROMPT, "--max-new-tokens", "40", "--on", place]
    seen = run_on_terminal([*command, *given], columns=columns, rows=rows)
    assert seen.code == 0
    lines = shown(f"{PROMPT}{golden_text(40)}\n", columns=columns, rows=rows)
    first = next(n for n, line in enumerate(seen.lines) if line.startswith(PROMPT))
    assert seen.lines[first : first + len(lines)] == lines
    before, behind = " ".join(seen.lines[:first]), "".join(seen.lines[first + len(lines) :])
    if place == "golden":
        assert (before, behind) == ("", "")
    else:
        assert re.match(r"about [\d,]+ cycles to simulate[:;] ", before)
        assert behind.startswith("prompt: 6 tokens in 2 passes,") and "each token after it" in behind
    assert any("writing token" in line for lines in seen.screens for line in lines)
