"""The command line: its output, files and exit codes. Every error is a message and an exit code."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pytest

from streamgen import cli
from streamgen.artifact.manifest import Buffer
from streamgen.base import progress
from streamgen.base.errors import StreamgenError
from streamgen.base.progress import PASSES
from streamgen.cli.help import COMMON, GROUPS, grouped
from streamgen.compiler.config import CompileConfig
from streamgen.runtime.arrays import random_inputs
from tests.shared.accelerators import TINY, same, tiny, values

FACTORY = """
import torch

def tiny():
    torch.manual_seed(1)
    return torch.nn.Linear(40, 5, bias=False), torch.zeros(1, 40)

def pooled():
    return torch.nn.MaxPool1d(2), torch.zeros(1, 40)

def nothing():
    return None

number = 3
"""
OPTIONS = ["--name=tiny", "--max-tokens=1", "--multipliers=32", "--channels=1", "--weights=w8",
           "--prefetch-beats=64"]  # fmt: skip

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny accelerator, written. Tests do not change it."""
    return tiny().write(tmp_path_factory.mktemp("tiny") / "written")


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs a command line in an empty folder that holds `models.py`, and returns exit code, output and errors
    without the progress of steps that take long on a slow machine."""
    monkeypatch.setattr(progress, "FIRST", 3600.0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "models", raising=False)
    (tmp_path / "models.py").write_text(FACTORY)

    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli.main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


@pytest.mark.slow
def test_compile_writes_what_the_api_writes(call: Call, tmp_path: Path, folder: Path) -> None:
    target = tmp_path / "written"
    code, out, _ = call("compile", "models.py:tiny", "-o", target, "--print-after", "all", *OPTIONS)
    assert code == 0 and out.endswith(f"written to {target}\n")
    shown = [line.removeprefix("== ") for line in out.splitlines() if line.startswith("== ")]
    assert shown == [*PASSES]
    for file in folder.iterdir():
        assert (target / file.name).read_bytes() == file.read_bytes(), file.name
    code, out, _ = call("compile", "models:tiny", "-o", target, *OPTIONS)
    assert (code, out) == (0, f"written to {target}\n"), "what is there stays"
    (target / "design.v").write_text("module other; endmodule\n")
    code, out, err = call("compile", "models:tiny", "-o", target, *OPTIONS)
    assert (code, out) == (2, "")
    assert err.endswith(
        f"streamgen: {target} exists and has no design.v with the same content; "
        "give a new name or remove it\n"
    )
    assert (target / "design.v").read_text() == "module other; endmodule\n"
    (target / "manifest.json").unlink()
    code, out, err = call("compile", "models:tiny", "-o", target)
    assert (code, out) == (2, "")
    assert err == f"streamgen: {target} exists and is not an empty folder; give a new name or remove it\n"


def test_simulate(call: Call, tmp_path: Path, folder: Path) -> None:
    x = values(2, 40)
    np.save("x.npy", x)
    code, out, err = call("simulate", folder, "-i", "x.npy", "-o", "y.npy", "--report")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:2] == ["input input [2, 40] float32", "output linear [2, 5] float32 -> y.npy"]
    assert re.fullmatch(r"\d+ cycles", lines[2])
    assert lines[-1] == "The outputs equal the golden model's, bit for bit."
    assert "linear_column0" in out
    assert same(np.load("y.npy"), tiny().golden(x))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["models.py", "x.npy", "y.npy"]


def test_weights_are_read_back(call: Call, folder: Path) -> None:
    code, out, err = call("simulate", folder, "--check-weights")
    assert (code, err) == (0, "") and "\nThe weights on the device equal the written weights.\n" in out
    code, out, err = call("simulate", folder, "--check-weights", "--probe")
    assert (code, out) == (
        2,
        "",
    ) and "--check-weights cannot be combined with probes, waves or a trace" in err


def test_a_trace_of_a_run(call: Call, tmp_path: Path, folder: Path) -> None:
    """Outputs and cycles are those of a run without it, and the page has the measured passes."""
    plain = call("simulate", folder, "--tokens", 2)[1].splitlines()
    code, out, err = call("simulate", folder, "--tokens", 2, "--trace", "t.json", "--html", "p.html")
    assert (code, err) == (0, "")
    said = ["timeline -> t.json; https://ui.perfetto.dev shows it", "report -> p.html"]
    assert out.splitlines() == [*plain[:-1], *said, plain[-1]]
    slices = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "X"]
    cycles = sum(e["dur"] for e in slices if e["pid"] == e["tid"] == 2)
    assert plain[-2] == f"{cycles} cycles"
    assert "1 token at position 0, measured" in (tmp_path / "p.html").read_text()


def test_random_inputs_follow_the_seed(call: Call, folder: Path) -> None:
    results = []
    for k, arguments in enumerate((["--seed=3"], ["--seed=3", "--delays=20"], [], ["--tokens=3"])):
        code, out, err = call("simulate", folder, "-o", f"{k}.npy", "--no-compare", *arguments)
        assert (code, err) == (0, "") and "golden" not in out
        results.append(np.load(f"{k}.npy"))
    assert same(results[0], results[1]) and not same(results[0], results[2])
    assert results[3].shape == (3, 5)


def test_random_integers_fill_their_format() -> None:
    infos = [
        Buffer(name=name, role="input", channel=0, bytes=4096, shape=(64, 32),
               itensor=f"itensor<1x32x{name}, iter_space: [64]*[1], iter_map: (d0)->(d0,0)>", tile_loop=0)
        for name in ("i4", "u3")
    ]  # fmt: skip
    first, second = random_inputs(infos, 50, seed=0)
    assert first.shape == second.shape == (50, 32)
    assert (first.min(), first.max(), second.min(), second.max()) == (-8, 7, 0, 7)


def test_report(call: Call, folder: Path) -> None:
    code, out, err = call("report", folder)
    assert (code, err) == (0, "")
    assert out == f"{tiny().report()}\n"
    assert call("report", folder, "--full")[1] == f"{tiny().report().text(full=True)}\n"
    assert call("report", folder, "--json")[1] == f"{tiny().report().to_json()}\n"


def test_wrong_weights(call: Call, tmp_path: Path) -> None:
    """The run uses the changed file and golden does not. The difference is an error, and the probe
    names it."""
    place = tiny().write(tmp_path / "spoilt")
    image = bytearray((place / "weights_0.bin").read_bytes())
    image[1] ^= 0x40
    (place / "weights_0.bin").write_bytes(image)
    code, out, err = call("simulate", place)
    assert code == 1 and "weights_0.bin is not the file that was written" in err
    code, out, err = call("simulate", place, "--changed-files")
    assert code == 1 and "bit for bit" not in out
    assert (
        err == "streamgen: 1 of 5 elements of linear differ from the golden model; "
        "--probe names the faulty kernel\n"
    )
    code, out, err = call("simulate", place, "--changed-files", "--probe", "-o", "y.npy")
    assert (code, out) == (1, "") and not Path("y.npy").exists()
    edge = "load_linear_column0_weights.o -> linear_column0_weights.i"
    assert err.startswith(f"streamgen: edge {edge} differs from the golden model")


@pytest.mark.slow
def test_probe_and_waves(call: Call, folder: Path) -> None:
    edge = "linear_column0.o_y -> store_linear.i"
    code, out, err = call("simulate", folder, "--tokens", 2, "--probe")
    assert (code, err) == (0, "")
    assert re.search(
        r"^\d+ tokens on 9 edges in 2 runs: no difference from the golden model$", out, re.MULTILINE
    )
    code, out, err = call(
        "simulate", folder, "--probe-edge", edge, "--waves", "10:50", "--waves-file", "w.fst"
    )
    assert (code, err) == (0, "")
    assert "tokens on 1 edge in 1 run" in out and "cycles 10 to 50 of run 1 -> w.fst" in out
    assert Path("w.fst").stat().st_size > 1000


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        ("report", 2, "give either SOURCE (see `streamgen --help`) or --gguf FILE"),
        ("report {folder} --gguf x", 2, "give either SOURCE (see `streamgen --help`) or --gguf FILE"),
        (
            "report nowhere",
            2,
            "'nowhere' is not a folder, a GGUF file, a config.json or module:function",
        ),
        ("report nomodule:f", 2, "nomodule cannot be imported: No module named 'nomodule'"),
        ("report nofile.py:f", 2, "there is no file nofile.py"),
        ("report models:f", 2, "models has no function or module 'f'"),
        ("report models:number", 2, "models has no function or module 'number'"),
        ("report models:nothing", 2, "model is NoneType; a torch.nn.Module, a LogicalGraph, or the path of"),
        ("report models:pooled", 1, "1 operation is not supported:"),
        ("report {folder} --channels 2", 2, "{folder} is already compiled; --channels cannot change it"),
        ("report .", 2, "the folder . has neither a written accelerator nor a checkpoint with config.json"),
        ("report models:tiny --channels 99", 2, "streamgen: --channels is 99; it must be None or 1 to 32"),
        ("report models:tiny --channels x", 2, "'x' is not a valid integer"),
        ("report models:tiny --fixed {{", 2, "'{{' is not JSON"),
        ("report models:tiny --sizing tight", 2, "'tight' is not one of 'conservative', 'normal'"),
        ("report --gguf models.py", 1, "models.py: not a GGUF file"),
        ("compile models:tiny", 2, "Missing option '-o' / '--output'"),
        ("simulate {folder} -i none.npy", 2, "none.npy: No such file or directory"),
        ("simulate {folder} -i models.py", 2, "models.py is not a .npy file"),
        ("simulate {folder} -i a.npy -i b.npy", 2, "--input must be given once for each of input; it is"),
        ("simulate {folder} -i a.npy --tokens 2", 2, "--tokens has no effect with --input"),
        (
            "simulate {folder} -o a.npy -o b.npy",
            2,
            "--output must be given once for each of linear; it is given 2",
        ),
        ("simulate {folder} -o a/b.npy", 2, "a/b.npy: there is no folder a"),
        ("simulate {folder} --waves 5", 2, "'5' is not of the form FIRST:LAST (two cycles)"),
        ("simulate {folder} --waves 5:4", 2, "waves of cycles 5 to 4; 0 <= first <= last must hold"),
        ("simulate {folder} --probe-edge x", 2, "no edge is called 'x'; the nearest name is '"),
    ],
)
def test_errors(call: Call, folder: Path, arguments: str, code: int, message: str) -> None:
    for name in ("a.npy", "b.npy"):
        np.save(name, values(1, 40))
    found, out, err = call(*arguments.format(folder=folder).split())
    assert (found, out) == (code, "")
    assert message.format(folder=folder) in err and "Traceback" not in err


def test_debug_shows_the_traceback(call: Call) -> None:
    code, _, err = call("--debug", "report", "models:tiny", "--channels", "99")
    assert code == 2 and "Traceback" in err and err.endswith("it must be None or 1 to 32\n")


def test_interrupted(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while files are written leaves no file. The empty line follows the ^C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("streamgen.cli.sources.compile", lambda *_, **__: tiny())
    monkeypatch.setattr("streamgen.api.accelerator.save_program", interrupt)
    assert call("compile", "models:tiny", "-o", "made/here", *OPTIONS) == (130, "", "\ninterrupted\n")
    assert [file.name for file in tmp_path.iterdir() if file.name != "__pycache__"] == ["models.py"]


def test_full_disk(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "y.npy")

    monkeypatch.setattr(np, "save", refuse)
    code, _, err = call("simulate", folder, "-o", "y.npy")
    assert (code, err) == (2, "streamgen: y.npy: No space left on device\n")
    assert list(Path().glob("*.npy*")) == list(Path().glob(".y*")) == []


@pytest.mark.parametrize("name", [None, *cli.streamgen.commands])
def test_help_fits_a_screen(call: Call, name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has at most 80 columns and 36 lines, shows the common options, and names the option for the
    others."""
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call(*([name] if name else []), "--help")
    lines = out.splitlines()
    assert code == 0 and len(lines) <= 36 and max(map(len, lines)) <= 80
    if name is None:
        assert all(f"\n  {command} " in out for command in cli.streamgen.commands)
        return
    assert "\n  Examples:\n" in out
    command = cli.streamgen.commands[name]
    common = COMMON.get(name, ())
    options = {str(option.name): option for _, some in grouped(command) for option in some}
    assert {*common} <= options.keys()
    shown = {word for line in lines for word in re.findall(r"^  (?:-\w, )?(--[\w-]+)", line)}
    assert shown == {max(options[parameter].opts, key=len) for parameter in common} | {"--help"}
    assert (lines[-1] == f"More options: streamgen {name} --help-all") == (len(options) > len(common))


@pytest.mark.parametrize("name", cli.streamgen.commands)
def test_help_all_shows_every_option_once(call: Call, name: str) -> None:
    code, out, _ = call(name, "--help-all")
    assert code == 0
    shown = re.findall(r"^  (?:-\w, )?(--[\w-]+)", out, re.MULTILINE)
    options = [option for option in cli.streamgen.commands[name].params if isinstance(option, click.Option)]
    expected = [max(option.opts, key=len) for option in options if not option.hidden]
    assert len(shown) == len({*shown}) and {*shown} >= {"--help", "--help-all"}
    missing = [option for option in expected if not re.search(rf"^  .*{option}\b", out, re.MULTILINE)]
    assert missing == [] and len(shown) == len(expected) + 2


@pytest.mark.parametrize("name", cli.streamgen.commands)
def test_help_speaks_of_options(call: Call, name: str) -> None:
    """It names no module, class or value of Python, and no field in place of its option."""
    fields = "|".join(field.name for field in dataclasses.fields(CompileConfig))
    for option in ("--help", "--help-all"):
        out = call(name, option)[1]
        assert re.findall(rf"streamgen\.\w+|CompileConfig|`(?:{fields})`|\bNone\b", out) == []


def test_the_tables_of_help_name_commands_and_options() -> None:
    """`--help` would fail for a name that no command has, and `--help-all` would drop it silently."""
    assert COMMON.keys() <= cli.streamgen.commands.keys()
    options = {option.name for command in cli.streamgen.commands.values() for option in command.params}
    assert {name for group in GROUPS for name in group.names} <= options


def test_a_wrong_name_among_the_common_options(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMON, "package", ("output", "nmae"))
    with pytest.raises(KeyError, match="nmae"):
        call("package", "--help")


def test_every_field_is_an_option() -> None:
    """All commands that compile have an option for each field, in exactly one group."""
    fields = {field.name for field in dataclasses.fields(CompileConfig)}
    named = [name for group in GROUPS for name in group.names]
    assert len(named) == len({*named}) and fields <= {*named}
    for name in ("compile", "draw", "embed", "estimate", "explore", "generate", "report", "simulate"):
        options = [option for _, some in grouped(cli.streamgen.commands[name]) for option in some]
        assert fields <= {option.name for option in options}, name
        assert all((option.help or "").strip() for option in options)


def test_options_reach_the_configuration(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[CompileConfig] = []

    def stop(module: object, inputs: object, config: CompileConfig, *_: object, **__: object) -> None:
        seen.append(config)
        raise StreamgenError("stop")

    monkeypatch.setattr("streamgen.cli.sources.compile", stop)
    fixed = {"0": {"columns": 2}}
    assert call("report", "models:tiny", *OPTIONS)[0] == 1
    options = ["--fixed", '{"0": {"columns": 2}}', "--no-minimum", "--clock-mhz=250", "--sizing=normal"]
    assert call("report", "models:tiny", *options)[0] == 1
    assert call("report", "--gguf", "default", "--layer", 3)[0] == 1
    assert seen == [
        TINY,
        CompileConfig(fixed=fixed, minimum=False, clock_mhz=250.0, sizing="normal"),
        CompileConfig(name="feed_forward_3"),
    ]


def test_as_a_program(folder: Path) -> None:
    """Without a terminal, only results are printed. A reader that closes the output is not an error."""
    program = Path(sys.executable).with_name("streamgen")
    done = subprocess.run([program, "report", folder], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "") and "store_linear" in done.stdout
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        done = subprocess.run([program, "report", folder], stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert done.stderr == b""


def test_progress_on_a_terminal(folder: Path) -> None:
    """Steps show on standard error if it is a terminal, and are erased at the end."""
    import pty

    ours, theirs = pty.openpty()
    program = Path(sys.executable).with_name("streamgen")
    command = [program, "report", "--gguf", "default", "--layer", "99"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, check=False)
    os.close(theirs)
    shown = b""
    while chunk := _read(ours):
        shown += chunk
    os.close(ours)
    assert done.returncode == 1 and done.stdout == b""
    assert b"reading the checkpoint" in shown and b"there is no tensor blk.99" in shown


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


def _examples() -> list[str]:
    """Every command line in the documents and in the help."""
    root = Path(__file__).parents[3]
    documents = [root / "README.md", *sorted(root.glob("docs/guide/*.md")), root / "examples/mlp.py"]
    texts = [path.read_text() for path in documents]
    texts += [command.help or "" for command in (cli.streamgen, *cli.streamgen.commands.values())]
    commands = [re.split(r"\s{2,}", line.strip())[0] for text in texts for line in text.splitlines()]
    return sorted({line for line in commands if re.match(r"streamgen (compile|simulate|report) ", line)})


@pytest.mark.parametrize("line", _examples())
def test_examples_are_command_lines(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prose.txt").touch()
    _, name, *arguments = line.split()
    with cli.streamgen.commands[name].make_context(name, arguments) as context:
        assert (context.params["source"] is None) != (context.params["gguf"] is None)


def test_all_that_is_wrong_with_a_model(call: Call) -> None:
    """With --verbose at any place, each refused call is named with its source line."""
    short = call("report", "models:pooled")[2]
    for arguments in (("--verbose", "report", "models:pooled"), ("report", "models:pooled", "--verbose")):
        code, out, err = call(*arguments)
        assert (code, out) == (1, "")
        first, operation = err.splitlines()[-2:]
        assert first == "streamgen: 1 operation is not supported: max_pool1d" and first in short
        assert re.fullmatch(
            r"  the module \(MaxPool1d\), .*pooling\.py:\d+: aten\.max_pool1d\.default", operation
        )
        assert "Supported: " in short and "pooling.py" not in short
