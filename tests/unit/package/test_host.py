"""The host programs of packages, on a simulated card: results equal golden, and errors are clear."""

import gc
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from streamgen.package import package
from streamgen.runtime import xrt_c
from streamgen.runtime.card import Card
from tests.shared.accelerators import grouped, tiny, values
from tests.shared.decoders import WORDS, tiny_accelerator
from tests.unit.package import simulated_xrt
from tests.unit.package.packages import build_of


@pytest.fixture(autouse=True)
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A card in this machine. No design is left on it after the test."""
    monkeypatch.setitem(sys.modules, "pyxrt", simulated_xrt.module())
    yield
    gc.collect()  # errors hold frames
    assert simulated_xrt.Card.loaded() is None


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the tiny accelerator, marked as built."""
    return built(tiny().package(tmp_path_factory.mktemp("host") / "tiny"))


def built(folder: Path) -> Path:
    """The package with the binary that the simulated card takes."""
    (folder / "build").mkdir()
    (folder / "build" / f"{Card.read(folder).name}.xclbin").write_bytes(build_of(folder))
    return folder


def host(folder: Path, *arguments: object) -> Result:
    """Run the host program of a package."""
    main = runpy.run_path(str(folder / "host.py"))["main"]
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.slow
def test_arrays(packaged: Path, tmp_path: Path) -> None:
    """The input has more tokens than a pass takes."""
    x = values(3, 40)
    np.save(tmp_path / "x.npy", x)
    done = host(packaged, "-i", tmp_path / "x.npy", "-o", tmp_path / "y.npy")
    assert done.exit_code == 0, done.output
    assert np.load(tmp_path / "y.npy").tobytes() == tiny().golden(x).tobytes()
    cycles = 3 * tiny().predict(1)
    assert done.output == f"tiny: {cycles} cycles, {cycles / 300:.1f} us at 300 MHz\n"


@pytest.mark.campaign
@pytest.mark.slow
def test_several_models(tmp_path: Path) -> None:
    """Three groups and a model of one kernel each run by their command. Data between groups is not copied."""
    folder = built(package([grouped(), tiny()], tmp_path / "both"))
    for model, name in ((grouped(), "mlp"), (tiny(), "tiny")):
        x = values(150, 40)
        np.save(tmp_path / "x.npy", x[: 150 if name == "mlp" else 2])
        simulated_xrt.Bo.syncs.clear()
        done = host(folder, name, "-i", tmp_path / "x.npy", "-o", tmp_path / "y.npy")
        assert done.exit_code == 0, done.output
        assert np.load(tmp_path / "y.npy").tobytes() == model.golden(np.load(tmp_path / "x.npy")).tobytes()
        assert [line.split(":")[0] for line in done.output.splitlines()] == [m.top for m in model.manifests]
        samples = -(-len(np.load(tmp_path / "x.npy")) // model.manifests[0].max_tokens)
        # A phase table, a status block cleared and read for each run; weights once; inputs and outputs.
        kernels = len(model.manifests)
        weights = sum(b.role == "weights" for m in model.manifests for b in m.buffers)
        assert len(simulated_xrt.Bo.syncs) == samples * (3 * kernels + 2) + weights
    done = host(folder, "none")
    assert done.exit_code == 2 and "No such command 'none'" in done.output


@pytest.mark.slow
def test_errors(packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", values(1, 39))
    np.save(tmp_path / "good.npy", values(1, 40))
    done = host(packaged)
    assert done.exit_code == 2
    assert "Error: --input must be given once for each of: input [1, 40]" in done.output
    done = host(packaged, "-i", tmp_path / "x.npy", "-o", tmp_path / "y.npy")
    assert done.exit_code == 1 and "input 'input' must have shape (..., 40); it has (1, 39)" in done.output
    done = host(packaged, "-i", tmp_path / "z.npy", "-o", tmp_path / "y.npy")
    assert done.exit_code == 1 and "z.npy" in done.output
    done = host(packaged, "-i", tmp_path / "good.npy", "-o", tmp_path / "y.npy", "--board", 1)
    assert done.exit_code == 1 and "Error: board 1 cannot load" in done.output
    unbuilt = tiny().package(tmp_path / "unbuilt")
    done = host(unbuilt, "-i", tmp_path / "good.npy", "-o", tmp_path / "y.npy")
    assert done.exit_code == 1 and f"tiny.xclbin is missing: `make` in {unbuilt} builds it" in done.output
    monkeypatch.setitem(sys.modules, "pyxrt", None)
    monkeypatch.setattr(xrt_c, "LIBRARY", "libnone.so")
    xrt_c._library.cache_clear()
    done = host(packaged, "-i", tmp_path / "good.npy", "-o", tmp_path / "y.npy")
    assert done.exit_code == 1 and "a board needs pyxrt or libnone.so: install XRT" in done.output
    assert not (tmp_path / "y.npy").exists()


@pytest.mark.slow
def test_text(tmp_path: Path) -> None:
    """A prompt as text and a prompt as ids; greedy choice equals golden."""
    folder = built(tiny_accelerator().package(tmp_path / "text"))
    prompt = WORDS.decode([3, 14, 15])
    ids = [*tiny_accelerator().golden.generate([3, 14, 15], 4)]
    done = host(folder, "--prompt", prompt, "--max-new-tokens", 4)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{WORDS.decode(ids)}\n" and " cycles, " in done.stderr
    assert host(folder, "--prompt", prompt, "--chat", "--max-new-tokens", 4).stdout == done.stdout
    done = host(folder, "--ids", "3 14 15", "--max-new-tokens", 4)
    assert done.stdout.split() == [*map(str, ids)]
    done = host(folder, "--ids", "3 14 15", "--max-new-tokens", 4000)
    assert done.exit_code == 1 and "the context is 72" in done.output
    done = host(folder)
    assert done.exit_code == 2 and "give either --prompt or --ids" in done.output
