"""Errors that can be known before the work are raised before it, and name options of the command line."""

import json
from pathlib import Path

import pytest

from streamgen import cli
from streamgen.cli.messages import in_options, message_of, option_names
from streamgen.platform.boards import BOARDS
from streamgen.text.tokenizer import Tokenizer
from tests.shared.decoders import WORDS

KNOWN = ", ".join(BOARDS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint with a tokenizer. Any real work fails the test."""

    def work(*_: object, **__: object) -> None:
        raise AssertionError("the work has begun")

    for name in ("compile", "golden_model"):
        monkeypatch.setattr(f"streamgen.cli.texts.{name}", work)
        monkeypatch.setattr("streamgen.cli.sources.compile", work)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", None)
    for place, templates in (("model", WORDS.templates), ("plain", {})):
        Path(place).mkdir()
        Path(place, "config.json").write_text("{}")
        Tokenizer(WORDS._coder, templates=templates).write(Path(place))
    Path("silent").mkdir()
    Path("silent", "config.json").write_text("{}")
    Path("taken").mkdir()
    Path("taken", "file").touch()
    Path("code.py").write_text("def model():\n    return object()\n")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("model -p ''", 2, "Error: the prompt is empty; it needs at least one token"),
        ("model -p ABC --max-new-tokens 14 --context 16", 2,
         "Error: the prompt has 3 tokens; with --max-new-tokens 14 the text exceeds the context of "
         "16 tokens"),
        ("model -p A --max-new-tokens 16 --context 16", 2,
         "Error: the prompt has 1 token; with --max-new-tokens 16 the text exceeds the context of 16 tokens"),
        ("silent -p A", 1, "streamgen: silent: there is no tokenizer.json, hence no tokenizer"),
        ("plain -p A --chat", 2, "streamgen: the tokenizer has no chat template; give a text"),
        ("model -p A --temperature -1", 2,
         "streamgen: --temperature is -1.0; it must be 0 or a finite number above"),
        ("model -p A --top-k 0", 2, "streamgen: --top-k is 0; it must be None or at least 1"),
        ("model -p A -o taken", 2,
         "streamgen: taken exists and is not an empty folder; give a new name or remove it"),
        ("model -p A --channels 99", 2, "streamgen: --channels is 99; it must be None or 1 to 32"),
        ("model -p A --board here", 2, f"streamgen: --board: no board is called 'here'; known are {KNOWN}"),
        ("model -p A --on card", 2, "Error: --on card needs --xclbin FILE, the linked design"),
        ("model -p A --on golden -o new", 2,
         "Error: --output has no effect with --on golden"),
        ("model -p A --on golden --compare", 2,
         "Error: --compare has no effect with --on golden"),
        ("model -p A --on golden --trace t.json", 2,
         "Error: --trace has no effect with --on golden; the golden model has no cycles"),
        ("model -p A --xclbin code.py --trace t.json", 2,
         "Error: --trace has no effect on a card; only a simulation has a timeline"),
        ("model -p A --trace none/t.json", 2, "streamgen: none/t.json: there is no folder none"),
        ("model -p A --trace taken", 2, "streamgen: taken is a folder; a file is needed"),
        ("model -p A --on simulator --xclbin code.py", 2,
         "Error: --xclbin has no effect with --on simulator; use --on card"),
        ("model -p A --xclbin none.xclbin", 2,
         "streamgen: none.xclbin: there is no such file; --xclbin needs the linked design"),
        ("model -p A --device 1", 2, "Error: --device has no effect without --xclbin FILE"),
        ("model -p A --json --quiet", 2,
         "Error: --json and --quiet cannot be combined; --json already prints only its object"),
        ("model -p A --stop ''", 2, "Error: --stop is empty; it needs at least one character"),
        ("code.py:model -p A", 2,
         "Error: this model came without a tokenizer, so the prompt must be ids with spaces between them; "
         "--tokenizer DIR|FILE gives a tokenizer when the model is compiled"),
        ("model", 2,
         "Error: the prompt is missing; give --prompt TEXT, --prompt-file FILE, or a text on standard input"),
    ],
)  # fmt: skip
def test_a_text(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: str, code: int, message: str
) -> None:
    given = [word if word != "''" else "" for word in arguments.split()]
    assert cli.main(["generate", *given]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines()[-1] == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--trace none/t.json", "streamgen: none/t.json: there is no folder none"),
        ("--trace taken", "streamgen: taken is a folder; a file is needed"),
        ("--trace t.json --xclbin code.py",
         "Error: --trace has no effect with --xclbin; only a simulation has a timeline"),
        ("--trace t.json --check-weights",
         "Error: --check-weights cannot be combined with probes, waves or a trace, which close their device"),
    ],
)  # fmt: skip
def test_a_timeline(folder: Path, capsys: pytest.CaptureFixture[str], arguments: str, message: str) -> None:
    assert cli.main(["simulate", "code.py:model", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines()[-1] == message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("generate model -p A",
         "streamgen: simulation needs a C++ compiler, and none is on PATH: apt-get install g++"),
        ("simulate code.py:model",
         "streamgen: simulation needs a C++ compiler, and none is on PATH: apt-get install g++"),
        ("generate model -p A --xclbin code.py", "streamgen: a board needs pyxrt or libxrt_coreutil.so.2: "
         "install XRT, then source /opt/xilinx/xrt/setup.sh"),
    ],
)  # fmt: skip
def test_tools(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    message: str,
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert cli.main(line.split()) == 1
    assert capsys.readouterr().err.splitlines()[-1] == message


@pytest.mark.parametrize(
    ("line", "text", "said"),
    [
        ("estimate x --on y", "CompileConfig.board: no board is called 'y'", "--on: no board is called 'y'"),
        ("estimate x", "CompileConfig.board: no board is called 'y'", "--board: no board is called 'y'"),
        ("estimate x --at=3", "CompileConfig.clock_mhz is 3", "--at is 3"),
        ("generate x", "max_tokens is 0, max_new_tokens too", "--max-tokens is 0, --max-new-tokens too"),
        ("generate x", "the context is 72; context is 3", "the context is 72; --context is 3"),
        ("generate x", "files of my/max_tokens.txt, 'max_tokens', load(folder, changed_files=True)",
         "files of my/max_tokens.txt, 'max_tokens', load(folder, changed_files=True)"),
        ("report x", "top_k is 3", "top_k is 3"),  # an option of another command
        ("", "CompileConfig.max_tokens is 0", "--max-tokens is 0"),
        ("compile x", "CompileConfig.weights='w8' loses less; 'w4'", "--weights w8 loses less; 'w4'"),
        ("compile x", "streamgen.model.calibration loses less", "--calibrate FILE loses less"),
        ("generate x", "streamgen.model.calibration loses less",
         "streamgen compile --calibrate FILE loses less"),
        ("compile x", "Give CompileConfig.channels=4.", "Give --channels 4."),
        ("estimate x", "no room\nTried in vain: head='w4'", "no room\nTried in vain: --head w4"),
        ("estimate x", "no room\nWhat helps: channels=32; head='w4' and weights='w4'; fewer words=3",
         "no room\nWhat helps: --channels 32; --head w4 and --weights w4; fewer words=3"),
        ("compile x", "CompileConfig.check_import=False compiles it", "--no-check-import compiles it"),
    ],
)  # fmt: skip
def test_arguments_are_named_as_options(line: str, text: str, said: str) -> None:
    words = line.split()
    command = cli.streamgen.commands.get(words[0]) if words else None
    options = option_names(command, words)
    assert in_options(text, options) == message_of(ValueError(text), options) == said


def test_rows_of_what_cannot_be_estimated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each has a line with the reason. The exit code is 1 if there is no other line. JSON has the same
    content."""
    given = ["estimate", "nowhere", "code.py:none", "--on", "u55c", "--on", "u280"]
    assert cli.main(given) == 1
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "No model can be estimated at 300 MHz."
    rows = [line.split(maxsplit=2) for line in lines if " u55c " in line or " u280 " in line]
    assert [row[:2] for row in rows] == [
        [source, board] for source in given[1:3] for board in ("u55c", "u280")
    ]
    assert rows[0][2].startswith("'nowhere' is not a folder, a GGUF file, a config.json or")
    assert rows[3][2] == "code.py has no function or module 'none'"
    assert cli.main([*given, "--json"]) == 1
    values = json.loads(capsys.readouterr().out)
    assert values[3] == {
        "name": "code.py:none",
        "board": "u280",
        "clock_mhz": 300.0,
        "reason": "code.py has no function or module 'none'",
    }
    assert cli.main(["estimate", "code.py:none"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "Error: code.py has no function or module 'none'"
    assert cli.main(["estimate", "nowhere", "code.py:none", "--on", "here"]) == 2
    assert capsys.readouterr().err == f"streamgen: no board is called 'here'; known are {KNOWN}\n"
