"""Plans on the command line: --goal, --explain, --plan."""

import json
from pathlib import Path
from typing import Any

import pytest

from streamgen import cli
from streamgen.compiler.plan.record import PLAN_FILE
from tests.unit.compiler.plan.shapes import SIZES


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with the config.json of a shape that is not small."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SIZES))
    return folder


def _run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    code = cli.main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


@pytest.mark.slow
def test_an_estimate_explains_its_plan(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fixed = "--channels", 4, "--goal", "decode", "--context", 512
    code, out, _ = _run(capsys, "estimate", model, *fixed, "--explain")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "model on u55c at 300 MHz, estimated"
    assert [line.split()[0] for line in lines[1:4]] == ["model", "speed", "first"]
    assert "plan of model on u55c, goal: decode" in out and "phase" not in out
    (channels,) = (line.split() for line in lines if line.split()[:1] == ["channels"])
    assert channels == ["channels", "4", "user"]
    (rows,) = (line.split() for line in lines if line.split()[:1] == ["n_lanes"])
    assert rows[2] == "search" and len(rows) > 3
    code, out, _ = _run(capsys, "estimate", model, *fixed, "--phases")
    assert code == 0 and "bound by" in out and "of 536,870,912" in out


@pytest.mark.slow
def test_what_does_not_fit_says_what_helps(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The advice is a value that the plan chooses."""
    code, _, err = _run(capsys, "estimate", model, "--n-lanes", 32, "--channels", 32, "--context", 512)
    assert code == 1
    first, *rest = [line for line in err.splitlines() if not line.startswith("step ")]
    assert "does not fit board 'u55c': the smallest design needs" in first
    assert rest[-1].startswith("What helps: --n-lanes ")


def test_a_file_without_a_plan(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = _run(capsys, "estimate", model, "--plan", model / "config.json")
    assert code == 2
    assert "config.json holds no plan of this version of streamgen" in err and PLAN_FILE in err
    code, _, err = _run(capsys, "estimate", model, "--plan", model / "none.json")
    assert code == 2 and "none.json" in err
