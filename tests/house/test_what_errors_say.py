"""What is wrong is said in a line: what, where, what is allowed, what to do; nothing is done in silence."""

import copy
import errno
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import streamgen
from streamgen import cli
from streamgen.base.errors import AccuracyWarning, UnsupportedOperationError
from streamgen.base.files import read_array
from streamgen.compiler.config import CompileConfig
from streamgen.observe.waves import Recorder
from streamgen.runtime import simulator, verilator
from streamgen.runtime.execution import Launch
from streamgen.runtime.generation import TextDevice
from streamgen.text.sampling import Sampler
from tests.shared.accelerators import tiny, tiny_module
from tests.shared.decoders import tiny_accelerator

X = np.ones((2, 40), np.float32)
ROOT = Path(__file__).parents[2]
NAMES = "a Verilog identifier, and not a keyword or a pin of a kernel"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny accelerator; tests leave it as it is."""
    return tiny().write(tmp_path_factory.mktemp("tiny") / "written")


class Deciding(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Nothing(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> None:
        return None


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: streamgen.compile(tiny_module(), torch.zeros(1, 40), {}), TypeError,  # type: ignore[call-overload]
         "config is dict; a CompileConfig is needed, as in CompileConfig(max_tokens=8)"),
        (lambda: streamgen.estimate(tiny_module(), torch.zeros(1, 40), 3), TypeError,  # type: ignore[arg-type]
         "config is int; a CompileConfig is needed, as in CompileConfig(max_tokens=8)"),
        (lambda: streamgen.assemble(3), TypeError,  # type: ignore[arg-type]
         "graph is int; the result of GraphBuilder.build() is needed"),
        (lambda: streamgen.load(None), TypeError, "folder is None; a path is needed"),  # type: ignore[arg-type]
        (lambda: CompileConfig(formats={3: "w8"}), TypeError,  # type: ignore[dict-item]
         "CompileConfig.formats has the key 3; the path of a layer as a string is needed"),
        (lambda: CompileConfig(max_tokens=1 << 40), ValueError,
         "CompileConfig.max_tokens is 1099511627776; it must be None or 1 to 2^24"),
        (lambda: CompileConfig(context=0), ValueError,
         "CompileConfig.context is 0; it must be None or 1 to 2^24"),
        (lambda: CompileConfig(clock_mhz=1e-3), ValueError,
         "CompileConfig.clock_mhz is 0.001; it must be 1 to 1000"),
        (lambda: tiny().golden("x"), TypeError, "input 0 is str; an array of numbers is needed"),
        (lambda: tiny().golden(None), TypeError, "input 0 is NoneType; an array of numbers is needed"),
        (lambda: tiny().golden([[1], [2, 3]]), ValueError,
         "input 0 is not an array: its rows have different lengths"),
        (lambda: tiny().run(X, probe=3), TypeError,  # type: ignore[arg-type]
         "probe is 3; True, False or a list of names of edges is needed"),
        (lambda: tiny().run(X, waves="a.fst"), TypeError,  # type: ignore[arg-type]
         "waves is 'a.fst'; a streamgen.Waves is needed"),
        (lambda: tiny().run(X, memory=3), TypeError,  # type: ignore[arg-type]
         "memory is 3; a streamgen.runtime.MemoryModel is needed"),
        (lambda: tiny().run(X, timeout="5"), TypeError,  # type: ignore[arg-type]
         "timeout is '5'; a number of seconds is needed"),
        (lambda: tiny().run(X, timeout=float("nan")), ValueError,
         "timeout is nan; a number of seconds above 0 is needed"),
        (lambda: tiny().profile(X, timeout=-1), ValueError,
         "timeout is -1; a number of seconds above 0 is needed"),
        (lambda: tiny().predict(1.5), TypeError, "tokens is 1.5; an integer is needed"),  # type: ignore[arg-type]
        (lambda: tiny().random_inputs(-1, 0), ValueError, "tokens is -1; at least 1 is needed"),
        (lambda: Sampler(top_k=5), ValueError,
         "top_k is 5; at temperature 0 the likeliest token is taken: give a temperature above 0"),
        (lambda: Sampler(top_p=0.5), ValueError,
         "top_p is 0.5; at temperature 0 the likeliest token is taken: give a temperature above 0"),
    ],
)  # fmt: skip
def test_arguments(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--clock-mhz inf", "--clock-mhz is inf; a finite number is needed"),
        ("--clock-mhz 1e9", "--clock-mhz is 1000000000.0; it must be 1 to 1000"),
        ("--name ap_clk", f"--name is 'ap_clk'; it must be {NAMES}"),
        ("--name module", f"--name is 'module'; it must be {NAMES}"),
        ("--channels 99", "--channels is 99; it must be None or 1 to 32"),
        ("--layer 3", "--layer has no effect without --gguf FILE"),
    ],
)  # fmt: skip
def test_options_are_named_as_they_are_given(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", f"{ROOT}/examples/mlp.py:mlp", *arguments.split()]) == 2
    assert capsys.readouterr().err.splitlines()[-1].partition(": ")[2] == message


@pytest.mark.parametrize(
    "copied", [pickle.dumps, copy.copy, copy.deepcopy, lambda one: ForkingPickler.dumps([one])]
)
def test_accelerators_are_not_pickled(copied: Callable[[Any], Any]) -> None:
    said = "{} cannot be pickled or copied, because its {} to one process. Write {} with `write(folder)`; "
    said += "`streamgen.load(folder)` reads it in any process"
    device: Any = TextDevice(SimpleNamespace(manifest=SimpleNamespace(max_tokens=4)), 70, 72)  # type: ignore[arg-type]
    for one, what, whole in (
        (tiny(), "device and its folder belong", "it"),
        (tiny_accelerator(), "device and its folder belong", "it"),
        (device, "device belongs", "the language model"),
    ):
        with pytest.raises(TypeError) as caught:
            copied(one)
        assert str(caught.value) == said.format(type(one).__name__, what, whole)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--waves-file a.fst", "--waves-file has no effect without --waves FIRST:LAST"),
        ("--waves-run 2", "--waves-run has no effect without --waves FIRST:LAST"),
        ("--device 1", "--device has no effect without --xclbin FILE"),
        ("-i x.npy --seed 3", "--seed has no effect with --input and without --delays"),
    ],
)
def test_options_that_would_be_ignored(
    options: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["simulate", str(tmp_path), *options.split()]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"Error: {message}"


def test_more_than_fits_in_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Said in a line, whether an option asks for it or a header of a few bytes."""
    folder, file = str(tiny().write(tmp_path / "written")), tmp_path / "x.npy"
    assert cli.main(["simulate", folder, "--tokens", str(10**12)]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("streamgen: out of memory: Unable to allocate")
    with file.open("wb") as stream:
        header = {"descr": "<f4", "fortran_order": False, "shape": (10**12, 40)}
        np.lib.format.write_array_header_1_0(stream, header)
    assert cli.main(["simulate", folder, "-i", str(file)]) == 2
    said = f"streamgen: {file} declares an array that does not fit in memory"
    assert capsys.readouterr().err.splitlines()[-1] == said


@pytest.mark.parametrize("header", ["{'descr': (", "{'descr': '<f4'", "[]", "{'shape': (3,)}", "\0"])
def test_what_is_no_array(header: str, tmp_path: Path) -> None:
    """numpy reads headers as Python, and raises what Python does."""
    file = tmp_path / "x.npy"
    file.write_bytes(b"\x93NUMPY\x01\x00" + (64).to_bytes(2, "little") + header.ljust(64).encode())
    with pytest.raises(ValueError, match=r"x\.npy is not a \.npy file$"):
        read_array(file)
    file.write_bytes(b"PK\3\4" + bytes(60))
    with pytest.raises(ValueError, match=r"x\.npy is not a \.npy file$"):
        read_array(file)


def test_no_tokens_take_no_cycles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny().write(tmp_path / "written")
    np.save(tmp_path / "x.npy", np.zeros((0, 40), np.float32))
    assert cli.main(["simulate", str(tmp_path / "written"), "-i", str(tmp_path / "x.npy")]) == 0
    assert "\n0 cycles\n" in capsys.readouterr().out


def test_a_language_model_without_its_notes(tmp_path: Path) -> None:
    """A folder that lacks model.json is not taken for one of a module."""
    (tmp_path / "model.npz").touch()
    with pytest.raises(ValueError) as caught:
        streamgen.load(tmp_path)
    said = "is the folder of a language model, but it has no model.json; write it again"
    assert str(caught.value) == f"{tmp_path} {said}"


def test_modules_that_cannot_be_traced(capfd: pytest.CaptureFixture[str]) -> None:
    """One line, with the line of the module; nothing of torch's log."""
    with pytest.raises(UnsupportedOperationError) as caught:
        streamgen.compile(Deciding(), torch.zeros(2, 4))
    (line,) = str(caught.value).splitlines()
    assert re.fullmatch(rf"the module cannot be traced: .* \({re.escape(__file__)}:\d+\)", line), line
    assert capfd.readouterr() == ("", "")


def test_modules_without_results() -> None:
    with pytest.raises(UnsupportedOperationError, match="returns no tensor"):
        streamgen.compile(Nothing(), torch.zeros(2, 4))


def test_errors_are_reachable() -> None:
    code = "import streamgen; print(streamgen.base.errors.BudgetError.__name__)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "BudgetError\n"


@pytest.mark.filterwarnings("default:.*rounded to 4 bits:UserWarning")
def test_float_weights_in_four_bits() -> None:
    """Said once, with what to do; silent where nothing is rounded."""
    with pytest.warns(AccuracyWarning) as found:
        streamgen.compile(tiny_module(), torch.zeros(1, 40), CompileConfig(multipliers=32, channels=1))
    (one,) = found
    assert str(one.message).startswith("1 of 1 matmuls have float weights, which are rounded to 4 bits. ")
    assert one.filename == __file__


@pytest.mark.parametrize("named", ["g++ -O1", "no-such-compiler"])
def test_compilers_that_are_none(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", named)
    with pytest.raises(streamgen.base.errors.MissingToolError) as caught:
        verilator._toolchain()
    assert str(caught.value) == (
        f"CXX is {named!r}, which is not a program on PATH; it must be a C++ compiler without flags: set it "
        "to g++ or clang++, or unset it"
    )


class _Full:
    """A device whose disk gets full: at once, or in the middle of the run."""

    def __init__(self, at_once: bool) -> None:
        self.at_once = at_once

    def record(self, path: Path, first: int, last: int) -> None:
        if self.at_once:
            raise OSError(errno.ENOSPC, "0 MB are free", str(path.parent))
        path.write_bytes(b"begun")

    def end_record(self) -> int:
        return 100


@pytest.mark.parametrize("at_once", [True, False])
def test_waves_on_a_full_disk(at_once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file and no part of one is left."""
    monkeypatch.setattr("streamgen.observe.waves.SimulatedDevice", _Full)
    recorder = Recorder(streamgen.Waves(tmp_path / "w.fst", 0, 10))
    device: Any = _Full(at_once)
    with pytest.raises(OSError), recorder.observe(device, {}, Launch(tiles=1)):
        raise OSError(errno.ENOSPC, "0 MB are free", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_room_for_waves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulator.require_room(tmp_path / "w.fst")
    usage = shutil.disk_usage(tmp_path)._replace(free=5 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OSError, match=r"5 MB are free; waves need 256 MB"):
        simulator.require_room(tmp_path / "w.fst")


SLEEPER = """
import signal, sys, time
from streamgen import cli
from streamgen.cli import _Interrupts

def wait(given):
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        time.sleep(1)  # what is half done is removed
        print("cleaned", flush=True)

cli._run = wait
cli.run()
"""


@pytest.mark.parametrize("presses", [1, 5])
def test_ctrl_c(presses: int) -> None:
    """However often it is pressed at once: one line, exit code 130, what is half done is removed."""
    child = subprocess.Popen(
        [sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    for _ in range(presses):
        child.send_signal(signal.SIGINT)
        time.sleep(0.1)
    out, err = child.communicate(timeout=60)
    assert (out, err, child.returncode) == ("cleaned\n", "interrupted\n", 130)


IMPORTING = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "streamgen.cli.options":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from streamgen import cli
sys.exit(cli.main(["--help"]))
"""


def test_ctrl_c_while_modules_are_imported() -> None:
    found = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, check=False)
    assert (found.stdout, found.stderr, found.returncode) == ("", "interrupted\n", 130)


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("command", ["--version", "report {folder}", "report {folder} --json"])
def test_standard_output_on_a_full_disk(command: str, buffered: bool, written: Path) -> None:
    """One line says what is full, in the end too, when what is held would be written."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment |= {"PYTHONPATH": str(ROOT)} | ({} if buffered else {"PYTHONUNBUFFERED": "1"})
    program = [sys.executable, "-c", "from streamgen.cli import run; run()"]
    line = [*program, *command.format(folder=written).split()]
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(
            line, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False
        )
    assert found.stderr == "streamgen: standard output: No space left on device\n"
    assert found.returncode == 2


@pytest.mark.slow
def test_a_full_disk_is_one_message(tmp_path: Path) -> None:
    """Wherever in writing the disk is full, here a file: one line that says where, and no folder is left."""
    code = textwrap.dedent("""
        import resource, sys
        from pathlib import Path
        from tests.shared.accelerators import tiny
        accelerator, sizes = tiny(), eval(sys.argv[2])
        for size in sizes:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            try:
                accelerator.write(Path(sys.argv[1]) / "written")
                print(size, "written")
            except OSError as error:
                print(size, error.strerror, error.filename, sorted(Path(sys.argv[1]).iterdir()))
    """)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, "-c", code, str(tmp_path), "[0, 100, 3000, 20000]"]
    found = subprocess.run(arguments, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert found.returncode == 0, found.stderr
    assert [line.split(maxsplit=1)[1] for line in found.stdout.splitlines()] == [
        f"File too large {tmp_path / 'written'} []"
    ] * 4
