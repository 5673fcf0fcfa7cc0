"""Packages on the real XRT, whose card is their simulator: equal to golden, errors are told."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from streamgen import cli
from streamgen.base.errors import MissingToolError
from streamgen.package import package
from streamgen.package.emulation import Xrt, emulate, emulated
from streamgen.package.emulation.process import RUNS
from streamgen.runtime import MemoryModel, on_board
from tests.shared.accelerators import RESIDUAL, Residual, compiled, grouped, tiny, values
from tests.shared.decoders import tiny_accelerator

MODULE_HOST, TEXT_HOST, GROUPS_HOST = (
    Path(__file__).with_name(f"{kind}_host.py") for kind in ("module", "text", "groups")
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_module(
    tmp_path: Path, xrt: Xrt, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two banks, more tokens than a pass takes; a user's own program through the public calls.

    It ends by killing the device process.
    """
    accelerator = compiled(Residual, RESIDUAL, 40)
    folder, package = accelerator.write(tmp_path / "written"), tmp_path / "card"
    accelerator.package(package)
    x = values(4, 40)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "golden.npy", accelerator.golden(x))
    xclbin = package / "emulation" / "residual.xclbin"
    monkeypatch.setattr("streamgen.package.emulation.host.find_xrt", lambda: xrt)
    assert cli.main(["emulate", str(package), str(MODULE_HOST), str(folder), str(xclbin)]) == 1
    said = capfd.readouterr()
    assert "all is right" in said.out, said
    assert "streamgen: the emulated card was lost in a run: " in said.err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_decoder(tmp_path: Path, xrt: Xrt, capfd: pytest.CaptureFixture[str]) -> None:
    """Two layers, several passes: weights and KV cache stay on the card."""
    model = tiny_accelerator()
    folder, package = model.write(tmp_path / "written"), tmp_path / "card"
    model.package(package)
    prompt = [3, 14, 15, 9, 2]
    xclbin = package / "emulation" / "tiny.xclbin"
    options = [str(folder), str(xclbin), "3", *map(str, prompt)]
    assert emulate(package, [str(TEXT_HOST), *options], xrt) == 0, capfd.readouterr()
    lines = capfd.readouterr().out.splitlines()
    told = dict(line.split(": ", 1) for line in lines if line.startswith(("ids: ", "goes on: ")))
    ids = [*map(int, model.golden.generate(prompt, 3))]
    assert told["ids"] == " ".join(map(str, ids))
    (last,) = map(int, model.golden.generate([*prompt, *ids[:-1], 5], 1))
    assert told["goes on"] == str(last)
    assert "2 tokens equal the golden model's" in lines, "of the command"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_several_kernels(
    tmp_path: Path, xrt: Xrt, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three groups and a language model in one binary: equal to golden, nothing between groups is copied, and
    groups work at a time, as the card's clock has it."""
    module, model = grouped(), tiny_accelerator()
    folder, x, prompt = tmp_path / "card", values(10 * 48, 40), [3, 14, 15, 9, 2]
    package([module, model], folder)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "golden.npy", module.golden(x))
    monkeypatch.setenv(RUNS, str(tmp_path / "runs.txt"))
    assert emulate(folder, [str(GROUPS_HOST), str(folder), "3", *map(str, prompt)], xrt) == 0, (
        capfd.readouterr()
    )
    told = [line.partition(": ") for line in capfd.readouterr().out.splitlines()]
    found = {key: value for key, _, value in told if key != "cycles"}
    ids = [*map(int, model.golden.generate(prompt, 3))]
    assert found["golden"] == "True" and found["ids"] == " ".join(map(str, ids))
    assert found["goes on"] == str(*model.golden.generate([*prompt, *ids[:-1], 5], 1))
    assert found["copies"].startswith("0 0 of ") and int(found["copies"].split()[-1]) > 30
    assert found["cards"].startswith("1 ")
    worked: dict[str, list[tuple[int, int]]] = {}
    for line in (tmp_path / "runs.txt").read_text().splitlines():
        name, start, end = line.split()
        worked.setdefault(name, []).append((int(start), int(end)))
    cycles = {value.split()[0]: [*map(int, value.split()[1:])] for key, _, value in told if key == "cycles"}
    groups = [worked[name][1:] for name in ("mlp_0", "mlp_1", "mlp_2")]
    assert [[end - start for start, end in one] for one in groups] == [*cycles.values()]
    for one, two in pairwise(groups):
        for (_, written), (read, _) in zip(one, two, strict=True):
            assert written <= read
    ordered = sorted(run for one in groups for run in one)
    assert any(two[0] < one[1] for one, two in pairwise(ordered)), "never do two groups work at a time"


def test_what_is_no_package(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"is not a package, since it has no card\.json; `streamgen package` writes one"
    ):
        emulated(tmp_path)
    folder = tiny().write(tmp_path / "tiny")
    with pytest.raises(
        ValueError, match=r"is not a package, since it has no card\.json; `streamgen package` writes one"
    ):
        emulate(folder, ["host.py"], Xrt(tmp_path))
    assert not (folder / "emulation").exists()
    assert cli.main(["emulate", str(folder), str(tmp_path / "none.py")]) == 2


def test_a_card_is_no_simulator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What only a simulator can do is refused; so is a file that is not there."""
    x = values(1, 40)
    with pytest.raises(ValueError, match="probes, waves and profiles need the simulator"):
        tiny().run(x, device=on_board(), probe=True)
    with pytest.raises(ValueError, match="a card has its own memory"):
        tiny().run(x, device=on_board(), memory=MemoryModel(delays=1))
    with pytest.raises(ValueError, match="the index of a board is -1; it must be 0 or more"):
        on_board(-1)
    folder = tiny().write(tmp_path / "tiny")
    assert cli.main(["simulate", str(folder), "--xclbin", str(tmp_path / "none.xclbin")]) == 2
    assert "none.xclbin: there is no such file; --xclbin needs the linked design" in capsys.readouterr().err


def test_without_xrt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamgen.package.emulation.environment._places", lambda: iter([tmp_path]))
    with pytest.raises(MissingToolError, match="XRT's hardware emulation is not installed"):
        emulate(tmp_path, ["host.py"])


def test_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What XRT stumbles over is set."""
    monkeypatch.delenv("USER", raising=False)
    found = Xrt(tmp_path, tmp_path).environment(tmp_path, "card")
    assert found["USER"] and found["XCL_EMULATION_MODE"] == "hw_emu"
    assert found["PATH"].startswith(f"{tmp_path}:") and found["LD_LIBRARY_PATH"].startswith(str(tmp_path))
    lines = Path(found["XRT_INI_PATH"]).read_text().splitlines()
    assert max(map(len, lines)) > int(lines[1].removeprefix("packet_size="))
    (board,) = json.loads((tmp_path / "emconfig.json").read_text())["Platform"]["Boards"]
    assert board["Devices"][0]["Name"] == "card"
