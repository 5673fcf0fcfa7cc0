"""The cocotb bench of a package: written, run by Verilator, Icarus and its Makefile, and what it refuses."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from streamgen import cli
from streamgen.api.language_model import LanguageModel
from streamgen.base.errors import DeviceError
from streamgen.compiler.config import CompileConfig
from streamgen.package.cosim import run_bench, write_bench
from tests.shared.accelerators import tiny, values
from tests.shared.campaigns import sampled
from tests.shared.decoders import compiled_model, random_decoder

BENCH = ("Makefile", "kernel_bench.py", "runs.npz")


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the tiny accelerator, with a bench of inputs of our own; tests leave it as it is."""
    package = tiny().package(tmp_path_factory.mktemp("bench") / "card")
    write_bench(package, [values(2, 40)])
    return package


def decoder() -> LanguageModel:
    """Two layers, one token a pass."""
    sizes = {"hidden": 32, "heads": 2, "kv_heads": 1, "head_dim": 16, "rotated": 16, "wide": 32}
    model = random_decoder(layers=2, vocabulary=64, context=16, **sizes)
    config = CompileConfig(name="little", max_tokens=1, context=16, channels=2, n_lanes=2, lanes=2)
    return compiled_model(model, config)


@pytest.mark.slow
def test_what_is_recorded_is_golden(card: Path) -> None:
    """A run a token; outputs as golden has them."""
    assert sorted(path.name for path in (card / "cocotb").iterdir() if path.is_file()) == [*BENCH]
    with np.load(card / "cocotb" / "runs.npz") as runs:
        assert runs["runs"] == 2
        for k in range(2):
            found = runs[f"{k}/out/linear"].view("<f4")
            assert found[:5].tobytes() == tiny().golden(values(2, 40)[k : k + 1]).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("simulator", sampled(["verilator", "icarus"], ["icarus"]))
def test_it_passes(card: Path, simulator: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command line, which finds the bench that is there."""
    assert cli.main(["cocotb", str(card), "--simulator", simulator]) == 0
    assert capsys.readouterr().out == f"{card / 'cocotb'}: 3 tests passed on {simulator}\n"


@pytest.mark.slow
@pytest.mark.campaign
def test_a_decoder_in_icarus(tmp_path: Path) -> None:
    """A prompt and what continues it, with the KV cache in the bench's memory; every token is golden's."""
    model = decoder()
    package = model.package(tmp_path / "card")
    assert write_bench(package, [np.array([5])], new_tokens=2) == (package / "cocotb",)
    with np.load(package / "cocotb" / "runs.npz") as runs:
        found = [int(runs[f"{k}/out/best_indices"].view("<u4")[0]) for k in range(int(runs["runs"]))]
    assert found == [*map(int, model.golden.generate([5], 2))]
    assert run_bench(package, "icarus", test="runs$") == {package / "cocotb": 1}


@pytest.mark.slow
def test_make_runs_it(card: Path, tmp_path: Path) -> None:
    """cocotb's makefiles, with the Verilog that the user says."""
    copy = tmp_path / "card"
    shutil.copytree(card, copy)
    shutil.move(copy / "design.v", tmp_path / "netlist.v")
    given = [f"VERILOG_SOURCES={tmp_path / 'netlist.v'}", "COCOTB_TEST_FILTER=reset"]
    scripts = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # cocotb-config
    bench = ["make", "-C", str(copy / "cocotb"), *given]
    done = subprocess.run(bench, capture_output=True, text=True, env=os.environ | {"PATH": scripts})
    assert done.returncode == 0 and "PASS=1 FAIL=0" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param(
            *(".interrupt(interrupt)", ".interrupt()", "SimTimeoutError"), marks=pytest.mark.campaign
        ),  # it waits for long
        ("wstrb = 64'hffffffffffffffff", "wstrb = 64'hfffffffffffffff0", "status block starts with 0"),
    ],
)
def test_a_wrong_kernel_fails(
    card: Path, tmp_path: Path, old: str, new: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "card"
    shutil.copytree(card, copy, ignore=shutil.ignore_patterns("build"))
    text = (copy / "design.v").read_text()
    assert text.count(old)
    (copy / "design.v").write_text(text.replace(old, new))
    monkeypatch.setenv("PATIENCE", "20000")
    with pytest.raises(DeviceError, match=message):
        run_bench(copy, "verilator", test="runs$")


@pytest.mark.slow
def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cocotb", str(tmp_path)]) == 2
    assert "is not a package, since it has no card.json" in capsys.readouterr().err
    package = tiny().package(tmp_path / "card")
    with pytest.raises(ValueError, match=r"card/cocotb has no bench; `streamgen cocotb` writes one$"):
        run_bench(package)
    (package / "cocotb").mkdir()
    with pytest.raises(FileExistsError, match=r"card/cocotb already exists; remove it to write a new bench$"):
        write_bench(package)
    np.save(tmp_path / "x.npy", values(1, 40))
    assert cli.main(["cocotb", str(package), "-i", str(tmp_path / "x.npy")]) == 2
    assert "already has a bench; remove it to record other inputs" in capsys.readouterr().err
