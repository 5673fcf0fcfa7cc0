"""What the documents say is so: their Python runs, their links lead somewhere, their commands exist."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)\)")
COMMAND = re.compile(r"\b((?:benchmarks|examples)/\w+\.py)|(?:^    |`)make (\w+)", re.MULTILINE)


def _runs() -> list:
    """Documents with code; those that simulate are slow."""
    found = []
    for path in DOCUMENTS:
        if blocks := BLOCK.findall(path.read_text()):
            slow = [pytest.mark.slow] if any(".run(" in block for block in blocks) else []
            found.append(pytest.param(path, id=path.name, marks=slow))
    return found


@pytest.mark.parametrize("path", _runs())
def test_code(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a document in order, in one namespace, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for package in ROOT.glob("examples/packages/*"):
        monkeypatch.syspath_prepend(package)
    text = path.read_text()
    namespace: dict = {}
    for match in BLOCK.finditer(text):
        # so that a traceback shows the line of the document
        padding = "\n" * (text[: match.start(1)].count("\n"))
        exec(compile(padding + match[1], str(path), "exec"), namespace)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links(path: Path) -> None:
    missing = [target for target in LINK.findall(path.read_text()) if not (path.parent / target).exists()]
    assert missing == []


def test_commands_exist() -> None:
    """Every script and every make target that the README names; every benchmark is named."""
    makefile = (ROOT / "Makefile").read_text()
    commands = COMMAND.findall((ROOT / "README.md").read_text())
    scripts = {script for script, _ in commands if script}
    targets = {target for _, target in commands if target}
    assert {script for script in scripts if not (ROOT / script).exists()} == set()
    assert {target for target in targets if f"\n{target}:" not in makefile} == set()
    assert {"demo", "test", "check"} <= targets
    assert {f"benchmarks/{path.name}" for path in ROOT.glob("benchmarks/*.py")} <= scripts


@pytest.mark.slow
def test_example_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """It compares with golden itself. `examples/feed_forward.py` is `make demo`."""
    runpy.run_path(str(ROOT / "examples" / "by_hand.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "convert_product_i_b = InPlace(i=load_b.o)" in printed and "last run:" in printed
