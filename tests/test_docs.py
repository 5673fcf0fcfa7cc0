"""What the documents say is so: their Python runs, their links lead somewhere, their commands exist."""

import re
import runpy
import subprocess
import sys
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

from streamgen import cli
from streamgen.artifact.roles import KEEP
from streamgen.base import errors
from streamgen.compiler.explore.bound import pass_cycles
from streamgen.runtime.generation import Session
from tests.decoders import WORDS, tiny_accelerator

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
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


def test_the_index_of_decisions() -> None:
    """Every decision is in it, once."""
    text = (ROOT / "docs" / "decisions.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| ([\d, ]+) \|$", text, re.MULTILINE)
    listed = [int(number) for row in rows for number in row.split(", ")]
    assert sorted(listed) == [int(number) for number in re.findall(r"^(\d+)\. \*\*", text, re.MULTILINE)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_api_reference(tmp_path: Path) -> None:
    """All public modules have a page, and pdoc finds nothing wrong in them."""
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    names = re.search(r"^API := \$\(addprefix streamgen\., ([^)]*)\)", makefile, re.MULTILINE)
    assert names is not None
    modules = [f"streamgen.{name}" for name in names[1].split()]
    command = [sys.executable, "-m", "pdoc", "-o", str(tmp_path), *modules, "!streamgen.fifo._events"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    # imported when it is used
    late = r"Found '[^']+' in streamgen\.(testing|frontend)\.__all__, but it does not resolve"
    wrong = [line for line in done.stderr.splitlines() if not re.search(late, line)]
    assert (done.returncode, wrong) == (0, [])
    for module in modules:
        assert (tmp_path / f"{module.replace('.', '/')}.html").stat().st_size > 1000, module


def test_every_error_has_its_page() -> None:
    """Named as its class, in the index, with what to do."""
    index = (ROOT / "docs/errors/index.md").read_text()
    assert {path.stem for path in ROOT.glob("docs/errors/*.md")} == {*errors.__all__, "index"}
    for name in errors.__all__:
        page = (ROOT / f"docs/errors/{name}.md").read_text()
        assert page.startswith(f"# {name}\n") and "**What to do.**" in page
        assert f"\n{name}\n" in index


def test_numbers_are_those_of_the_readme() -> None:
    """Each figure of numbers.md stands in the README, too, where the command is that prints it."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import pictures
    finally:
        sys.path.pop(0)
    readme, text = (ROOT / "README.md").read_text(), (ROOT / "docs/numbers.md").read_text()
    found = pictures.tables(text)
    assert len(found) == text.count("_static/") == text.count("<!-- picture")
    known = {float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", readme)}
    said = {value for _, rows in found.values() for _, values in rows for value in values}
    assert said - known == set()


class _Page(HTMLParser):
    """Where a page leads, and where in it one can be led."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value and not re.match(r"[a-z]+:|//", value):
                self.links.append(value)
            elif name == "id" and value:
                self.places.add(value)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site(site: Path) -> None:
    """Every link of every page leads to a place that is there."""
    pages = {path: _Page(path) for path in site.rglob("*.html")}
    assert {"index", "tutorial", "guide", "compare"} <= {path.stem for path in pages}
    wrong = []
    for path, page in pages.items():
        for link in page.links:
            name, _, place = unquote(link).partition("#")
            target = path if not name else (path.parent / name.partition("?")[0]).resolve()
            if not target.exists() or (place and target in pages and place not in pages[target].places):
                wrong.append(f"{path.name}: {link}")
    assert wrong == []


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
def test_picture_is_drawn_by_the_command_below_it(tmp_path: Path) -> None:
    """Kernels, tiles and memory of README's picture are those of today; else run the command again."""
    (command,) = re.findall(
        r"^    streamgen (draw .*) -o docs/pipeline\.svg$", README.read_text(), re.MULTILINE
    )
    drawn = tmp_path / "pipeline.svg"
    assert cli.main([*command.split(), "-o", str(drawn)]) == 0
    assert _texts(drawn) == _texts(ROOT / "docs/pipeline.svg")


def _texts(picture: Path) -> list[str]:
    return sorted(re.findall(r"<text[^>]*>([^<]+)</text>", picture.read_text()))


@pytest.mark.slow
def test_example_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """It compares with golden itself."""
    runpy.run_path(str(ROOT / "examples" / "by_hand.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "convert_product_i_b = InPlace(i=load_b.o)" in printed and "last run:" in printed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_example_feed_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It compares with golden itself; golden is near torch."""
    monkeypatch.setattr(sys, "argv", ["feed_forward.py", "--layer", "3", "--folder", str(tmp_path / "block")])
    runpy.run_path(str(ROOT / "examples" / "feed_forward.py"), run_name="__main__")
    printed = capsys.readouterr().out
    found = re.findall(
        r"^ ?(\d+) tokens: (\d+) cycles, (\d+) outputs equal golden bit for bit; .* float32 ([\d.]+);",
        printed,
        re.MULTILINE,
    )
    assert [(int(tokens), int(outputs)) for tokens, _, outputs, _ in found] == [(1, 576), (16, 9216)]
    assert int(found[0][1]) < int(found[1][1]) and max(float(error) for *_, error in found) < 0.05
    assert (tmp_path / "block" / "design.v").is_file() and "last run:" in printed


@pytest.mark.slow
def test_example_smollm2(capsys: pytest.CaptureFixture[str]) -> None:
    """What `make demo` prints of its checkpoint, of the tiny decoder: the text is golden's, a prompt of two
    passes has the cycles of both. A difference from golden ends it."""
    run = runpy.run_path(str(ROOT / "examples" / "smollm2.py"))["run"]
    model, prompt = tiny_accelerator(), "FOWB94"
    ids = WORDS.encode(prompt)
    expected = WORDS.decode(model.golden.generate(ids, 4))
    before = len(model.device().passes)
    run(model, prompt, ids, 4)
    passes = [one.cycles for one in model.device().passes[before:]]
    assert len(passes) == 5  # of 4 and 2 tokens, then of one
    rate = Fraction(model.manifest.memory.beats, model.manifest.memory.cycles)
    sizes = [(4, 0, KEEP), (2, 4, None), (1, 6, None), (1, 7, None), (1, 8, None)]
    bounds = [pass_cycles(model.groups[0].program.at(*size), rate) for size in sizes]
    text, empty, *lines, equal = capsys.readouterr().out.splitlines()
    assert (text, empty) == (prompt + expected, "")
    assert lines == [
        f"{what}: {tokens} tokens, {sum(passes[part]) / tokens:,.0f} cycles each, "
        f"{sum(passes[part]) / sum(bounds[part]):.3f} of the bound of memory and multipliers, "
        f"{300e6 * tokens / sum(passes[part]):,.0f} tokens/s at 300 MHz"
        for what, tokens, part in (("prompt", 6, slice(2)), ("text after it", 3, slice(2, 5)))
    ]
    assert equal.startswith("logits of all 4 steps equal golden's bit for bit; ")
    with pytest.raises(ValueError, match="the context is 72"):
        run(model, prompt, ids, 67)


@pytest.mark.slow
def test_example_smollm2_sees_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    run = runpy.run_path(str(ROOT / "examples" / "smollm2.py"))["run"]
    monkeypatch.setattr(Session, "last_logits", lambda self, ids: np.zeros(64, np.float32))
    with pytest.raises(SystemExit, match="step 0: 64 logits differ from golden"):
        run(tiny_accelerator(), "AB", WORDS.encode("AB"), 2)
