"""Kernels and operations in packages of their own: installed by pip, used like ours, loaded elsewhere."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "examples" / "packages"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed all packages, from copies, since a build leaves files behind."""
    sources = tmp_path_factory.mktemp("sources")
    target = tmp_path_factory.mktemp("installed")
    names = [path.name for path in PACKAGES.iterdir() if path.is_dir()]
    for name in names:
        shutil.copytree(PACKAGES / name, sources / name)
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet")
    folders = [str(sources / name) for name in names]
    run([sys.executable, "-m", "pip", "install", *offline, "--target", str(target), *folders], {})
    return target


def run(command: list[str], environment: dict[str, str], fails: bool = False) -> str:
    """What a process prints; its error when it shall fail."""
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert bool(done.returncode) == fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def python(code: str, *places: Path, fails: bool = False) -> str:
    """What a fresh Python prints that finds the packages in these places."""
    path = os.pathsep.join(map(str, (ROOT, *places)))
    return run([sys.executable, "-c", code], {"PYTHONPATH": path}, fails)


@pytest.mark.slow
def test_written_and_loaded_by_others(installed: Path, tmp_path: Path) -> None:
    """Written in one process; golden in a second one; a third one that lacks the packages says so."""
    folder = tmp_path / "written"
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'examples')!r})\nfrom own_kernels import build\n"
    python(f"{code}build().write({str(folder)!r})", installed)
    shipped = (folder / "running_sum.v").read_bytes()
    assert shipped == (PACKAGES / "verilog" / "streamgen_example_verilog" / "running_sum.v").read_bytes()
    trust = ("streamgen_example_clip", "streamgen_example_verilog")
    load = f"import streamgen\nloaded = streamgen.load({str(folder)!r}, trust={trust})\n"
    golden = (
        "import numpy as np\n"
        "x, z = np.full((8, 32), -3, np.float32), np.full((8, 32), 10_000, np.int16)\n"
        "y, w = loaded.golden(x, z)\n"
        "print(loaded.manifest.sources, y.max(), w[:, 5].tolist())"
    )
    assert python(load + golden, installed).strip() == (
        "('running_sum.v',) -1.5 [10000, 20000, 30000, 32767, 32767, 32767, 32767, 32767]"
    )
    error = python(load, fails=True).strip().splitlines()[-1]
    assert error == (
        f"streamgen.base.errors.GraphError: {folder} holds no readable program: graph.json: the program uses "
        "ClipParams of streamgen_example_clip.clip, which cannot be imported "
        "(No module named 'streamgen_example_clip'): install the package that defines it"
    )


@pytest.mark.slow
def test_the_example_runs(installed: Path, tmp_path: Path) -> None:
    """Both kernels in one accelerator: written RTL equals golden, which the example itself asserts."""
    printed = run(
        [sys.executable, str(ROOT / "examples" / "own_kernels.py"), str(tmp_path)],
        {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, installed)))},
    )
    assert {"clip", "running"} <= set(printed.split()) and "last run: " in printed
    assert printed.splitlines()[-1].split()[1:] == sorted(
        [
            "constants.npz",
            "design.v",
            "graph.json",
            "interface.json",
            "manifest.json",
            "notes.json",
            "running_sum.v",
        ]
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "tests"), [("clip", 6), ("verilog", 6), ("gate", 8)])
def test_the_tests_of_the_packages(installed: Path, tmp_path: Path, name: str, tests: int) -> None:
    """A package's own tests, which begin with the conformance test of the kit, in a folder of their own."""
    shutil.copytree(PACKAGES / name / "tests", tmp_path / "tests")
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tmp_path)]
    path = os.pathsep.join(map(str, (ROOT, installed)))
    assert f"{tests} passed" in run(command, {"PYTHONPATH": path})


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_operation_is_found_by_its_entry_point(installed: Path, tmp_path: Path) -> None:
    """Compiled in a process that imports the torch operator alone; loaded in one that has the package, and in
    one that lacks it."""
    folder = tmp_path / "written"
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'examples')!r})\nimport own_operation\n"
    hidden = f"sys.path.remove({str(PACKAGES / 'gate')!r})\n"
    python(f"{code}{hidden}own_operation.build().write({str(folder)!r})", installed)
    load = f"import streamgen\nloaded = streamgen.load({str(folder)!r}, trust=('streamgen_example_gate',))\n"
    golden = (
        "import numpy as np\n"
        "x = np.random.default_rng(0).normal(size=(8, 32)).astype(np.float32)\n"
        "print(loaded.golden(x).any(axis=1).astype(int).tolist())"
    )
    passed = python(load + golden, installed).strip()
    assert "0" in passed and "1" in passed
    error = python(load, fails=True).strip().splitlines()[-1]
    assert error.endswith(
        "graph.json: the program uses GateRowsParams of streamgen_example_gate.kernel, which cannot be "
        "imported (No module named 'streamgen_example_gate'): install the package that defines it"
    )
