"""What the documents say is so: their Python runs, their links lead somewhere, their commands exist."""

import importlib.util
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

from streamgen import cli
from streamgen.artifact.roles import KEEP
from streamgen.base import errors
from streamgen.compiler.explore.bound import pass_cycles
from streamgen.runtime.generation import Session
from tests.house.test_layers import FLOORS, ROOMS
from tests.shared.campaigns import sampled
from tests.shared.decoders import WORDS, tiny_accelerator

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
# Python with what it prints, if that is shown; sessions of the command line.
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
SESSION = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)\)")
COMMAND = re.compile(r"\b((?:benchmarks|examples)/\w+\.py)|(?:^    |`)make (\w+)", re.MULTILINE)
PLACES = (ROOT, ROOT / "streamgen")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def _runs() -> list:
    """Documents with code; those that simulate, and those with sessions of the command line, are slow."""
    found = []
    for path in DOCUMENTS:
        if blocks := BLOCK.findall(path.read_text()):
            is_slow = any(".run(" in code or kind == "console" for kind, code, _ in blocks)
            slow = [pytest.mark.slow] if is_slow else []
            found.append(pytest.param(path, id=str(path.relative_to(ROOT)), marks=slow))
    return found


@pytest.mark.parametrize("path", _runs())
@pytest.mark.timeout(900)
def test_code(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The blocks of a document in order, in one namespace, in an empty folder; what they print is shown."""
    monkeypatch.chdir(tmp_path)
    for package in ROOT.glob("examples/packages/*"):
        monkeypatch.syspath_prepend(package)
    text = path.read_text()
    namespace: dict = {}
    for match in BLOCK.finditer(text):
        kind, code, shown = match.groups()
        capsys.readouterr()
        if kind == "console":
            for command, shown in SESSION.findall(code):
                _, *arguments = shlex.split(command)
                assert cli.main(arguments) == 0
                _require_shown(shown, capsys.readouterr().out)
            continue
        # so that a traceback shows the line of the document
        padding = "\n" * (text[: match.start(2)].count("\n"))
        exec(compile(padding + code, str(path), "exec"), namespace)
        if shown is not None:
            _require_shown(shown, capsys.readouterr().out)


def _require_shown(shown: str, printed: str) -> None:
    """Pieces between the ellipses of a sample are printed, in order; whatever breaks their lines."""
    place, words = 0, " ".join(printed.split())
    for piece in re.split(r"\.\.\.(?:\n|$)", shown):
        wanted = " ".join(piece.split())
        found = words.find(wanted, place)
        assert found >= 0, f"{wanted!r} is not printed: {printed}"
        place = found + len(wanted)


def test_samples_are_compared() -> None:
    _require_shown("a b\n...\nd\n", "a  b\nc\nd e\n")
    for shown, printed in (("a c\n", "a b c\n"), ("b\n...\na\n", "a\nb\n")):
        with pytest.raises(AssertionError, match="is not printed"):
            _require_shown(shown, printed)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links(path: Path) -> None:
    missing = [target for target in LINK.findall(path.read_text()) if not (path.parent / target).exists()]
    assert missing == []


def test_decisions_have_their_form() -> None:
    """Fields in order, at most 80 words, a file for each room, no gap in the numbers, an index of all."""
    folder = ROOT / "docs/decisions"
    found: dict[int, str] = {}
    for path in sorted(folder.glob("*.md")):
        assert path.stem in {"index", "archive", *ROOMS}, path
        for entry in re.split(r"^## ", path.read_text(), flags=re.MULTILINE)[1:]:
            number, _, rest = entry.partition(". ")
            title, *fields = re.split(r"^\* \*\*(Why|Price|Held by|Status):\*\* ", rest, flags=re.MULTILINE)
            assert title.strip() and fields[::2] == ["Why", "Price", "Held by", "Status"], entry
            assert all(text.strip() for text in fields[1::2]), entry
            assert len(re.sub(r"[*#]", "", entry).split()) <= 80, entry
            assert fields[7].startswith("superseded by") == (path.stem == "archive"), entry
            assert int(number) not in found, number
            found[int(number)] = path.stem
            for named in re.findall(r"`(?:python )?((?:tests|benchmarks)/[\w/]+\.py)", fields[5]):
                assert (ROOT / named).exists(), entry
    archive, index = (folder / "archive.md").read_text(), (folder / "index.md").read_text()
    (never,) = re.findall(r"^These numbers were never given: ([^.]*)\.$", archive, re.MULTILINE)
    for first, last in re.findall(r"(\d+)(?:\s+to\s+(\d+))?", never):
        for number in range(int(first), int(last or first) + 1):
            assert number not in found, number
            found[number] = ""
    assert sorted(found) == [*range(1, max(found) + 1)]
    assert f"the next one is {max(found) + 1}." in index
    for room, numbers in re.findall(
        r"^\| \[(\w+)\]\(\w+\.md\) \| [^|]+ \| ([\d, ]+) \|$", index, re.MULTILINE
    ):
        listed = {int(number) for number in numbers.split(", ")}
        assert listed == {number for number, place in found.items() if place == room}, room


@pytest.fixture(scope="module")
def generate() -> Any:
    """docs/generate.py, as a module."""
    return _module("generate")


def test_generated_pages_are_current(generate: Any) -> None:
    """Else run `python docs/generate.py`."""
    pages = generate.pages()
    assert len(pages) == 4
    assert {str(path): path.read_text() for path in pages} == {
        str(path): text for path, text in pages.items()
    }


def test_code_fits_the_column(generate: Any) -> None:
    """Of the site, where nobody has to scroll."""
    wide = [
        f"{path.name}: {line}"
        for path in ROOT.glob("docs/**/*.md")
        for line in _code_lines(path.read_text())
        if len(line) > generate.WIDTH
    ]
    assert wide == []


def test_code_lines() -> None:
    text = "a\n\n    b\n\n* c\n    d\n\n```sh\ne\n```\nf\n"
    assert list(_code_lines(text)) == ["b", "e"]


def _code_lines(text: str) -> Iterator[str]:
    """Lines of fenced blocks, and of indented ones, which follow an empty line."""
    fenced, before, inside = False, "", False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced:
            yield line
        else:
            inside = line.startswith("    ") and (inside or not before.strip())
            if inside:
                yield line.removeprefix("    ")
        before = line


def test_the_readme_is_short() -> None:
    """A newcomer finishes it in four minutes."""
    assert len(README.read_text().split()) <= 900


def test_floors_and_paths_of_architecture() -> None:
    """The table of floors is that of `test_layers`; every path that the page names exists."""
    text = (ROOT / "docs/architecture.md").read_text()
    floors = re.findall(r"^\| \d+ \| (`[a-z`, ]+) \|", text, re.MULTILINE)
    assert [set(re.findall(r"\w+", floor)) for floor in reversed(floors)] == [set(floor) for floor in FLOORS]
    named = re.findall(r"(?:^| |`)(?:streamgen/)?((?:[a-z_]+/)+(?:\w+\.py)?)(?=[`,\s])", text, re.MULTILINE)
    named += [name for name in re.findall(r"`(\w+\.py)`", text) if name not in ("rows.py", "masked_rows.py")]
    assert len(named) > 30
    assert [name for name in named if not any((root / name).exists() for root in PLACES)] == []


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
    late = r"Found '[^']+' in streamgen\.(testing|model\.frontend)\.__all__, but it does not resolve"
    wrong = [line for line in done.stderr.splitlines() if not re.search(late, line)]
    assert (done.returncode, wrong) == (0, [])
    for module in modules:
        assert (tmp_path / f"{module.replace('.', '/')}.html").stat().st_size > 1000, module


def test_every_error_has_its_page() -> None:
    """Named as its class, in the index, with what to do."""
    index = (ROOT / "docs/errors/index.md").read_text()
    classes = [
        name for name, value in vars(errors).items() if getattr(value, "__module__", "") == errors.__name__
    ]
    assert {path.stem for path in ROOT.glob("docs/errors/*.md")} == {*classes, "index"}
    for name in classes:
        page = (ROOT / f"docs/errors/{name}.md").read_text()
        assert page.startswith(f"# {name}\n") and "**What to do.**" in page
        assert f"\n{name}\n" in index


def test_figures_are_measured_once() -> None:
    """Figures of pictures stand beside a command that prints them, those of the README in numbers.md."""
    pictures, text = _module("pictures"), (ROOT / "docs/numbers.md").read_text()
    found = pictures.tables(text)
    assert len(found) == text.count("_static/") == text.count("<!-- picture")
    printed = _numbers(line for line in text.splitlines() if re.search(r"\| `(make|python) [^|]*` \|$", line))
    assert {value for _, rows in found.values() for _, values in rows for value in values} - printed == set()
    readme = README.read_text()
    results = re.findall(r"^\|[^|]+\|([^|]+)\| `[^|]+` \|$", readme, re.MULTILINE)
    assert len(results) == 6 and _numbers(results) - _numbers([text]) == set()


def _numbers(texts: Iterable[str]) -> set[float]:
    return {float(number.replace(",", "")) for text in texts for number in NUMBER.findall(text)}


def _module(name: str) -> Any:
    """A module of docs/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


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
    assert {"index", "tutorial", "guide/index", "compare", "cli", "supported/models"} <= {
        str(path.relative_to(site).with_suffix("")) for path in pages
    }
    assert (site / "_static/copybutton.js").is_file()
    wrong = []
    for path, page in pages.items():
        for link in page.links:
            name, _, place = unquote(link).partition("#")
            target = path if not name else (path.parent / name.partition("?")[0]).resolve()
            if not target.exists() or (place and target in pages and place not in pages[target].places):
                wrong.append(f"{path.name}: {link}")
    assert wrong == []


def test_commands_exist() -> None:
    """Every script and every make target that documents name; numbers.md names every benchmark."""
    makefile = (ROOT / "Makefile").read_text()
    commands = [found for path in DOCUMENTS for found in COMMAND.findall(path.read_text())]
    scripts = {script for script, _ in commands if script}
    targets = {target for _, target in commands if target}
    assert {script for script in scripts if not (ROOT / script).exists()} == set()
    assert {target for target in targets if f"\n{target}:" not in makefile} == set()
    assert {"demo", "test", "check"} <= {target for _, target in COMMAND.findall(README.read_text())}
    figures = {script for script, _ in COMMAND.findall((ROOT / "docs/numbers.md").read_text())}
    assert {f"benchmarks/{path.name}" for path in ROOT.glob("benchmarks/*.py")} <= figures


@pytest.mark.slow
def test_picture_is_drawn_by_the_command_below_it(tmp_path: Path) -> None:
    """Kernels, tiles and memory of the guide's picture are those of today; else run the command again."""
    text = (ROOT / "docs/guide/graphs.md").read_text().replace(" \\\n       ", "")
    (command,) = re.findall(r"^    streamgen (draw .*) -o docs/pipeline\.svg$", text, re.MULTILINE)
    drawn = tmp_path / "pipeline.svg"
    assert cli.main([*command.split(), "-o", str(drawn)]) == 0
    assert _texts(drawn) == _texts(ROOT / "docs/pipeline.svg")


def _texts(picture: Path) -> list[str]:
    return sorted(re.findall(r"<text[^>]*>([^<]+)</text>", picture.read_text()))


# What each example prints when it runs by itself; `make demo` runs the whole of SmolLM2 before every change.
EXAMPLES = {
    "char_gpt": ["the golden model writes the text of torch:", "Shall I"],
    "by_hand": ["convert_product_i_b = InPlace(i=load_b.o)", "last run:"],
    "feed_forward": ["16 tokens:", "outputs equal golden bit for bit"],
    "mlp": ["mlp: 300 MHz", "last run:"],
    "own_kernels": ["convert_running_i", "running_sum.v"],
    "own_operation": ["GateRows", "rows pass the gate; all outputs equal golden bit for bit"],
    "smollm2": ["bit for bit, in all 16 steps"],
}


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", sampled(EXAMPLES, EXAMPLES.keys() - {"smollm2"}))
def test_an_example_by_itself(name: str, tmp_path: Path) -> None:
    """As in a fresh clone: with nothing but streamgen on the path. It compares with golden itself."""
    assert EXAMPLES.keys() == {path.stem for path in ROOT.glob("examples/*.py")}
    done = subprocess.run(
        [sys.executable, str(ROOT / f"examples/{name}.py")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [text for text in EXAMPLES[name] if text not in done.stdout] == []


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
    """What `make demo` prints of its checkpoint, of the tiny decoder: the golden model's text, then the
    cycles of every pass beside their bound; a prompt of two passes has the cycles of both."""
    example = runpy.run_path(str(ROOT / "examples" / "smollm2.py"))
    model, prompt = tiny_accelerator(), "FOWB94"
    ids = WORDS.encode(prompt)
    chosen = [*model.golden.generate(ids, 4)]
    rows = example["write_golden"](model, prompt, ids, 4)
    text = capsys.readouterr().out
    assert text == f"the golden model writes:\n\n  {prompt}{WORDS.decode(chosen)}\n"
    before = len(model.device().passes)
    example["simulate"](model, ids, rows)
    passes = [one.cycles for one in model.device().passes[before:]]
    assert len(passes) == 5  # of 4 and 2 tokens, then of one
    rate = Fraction(model.manifest.memory.beats, model.manifest.memory.cycles)
    sizes = [(4, 0, KEEP), (2, 4, None), (1, 6, None), (1, 7, None), (1, 8, None)]
    bounds = [pass_cycles(model.groups[0].program.at(*size), rate) for size in sizes]
    *steps, empty, of_prompt, of_text, proved = capsys.readouterr().out.splitlines()
    assert empty == ""
    parts = (slice(2), slice(2, 3), slice(3, 4), slice(4, 5))
    assert steps == [
        f"  {step:3} {'prompt of 6' if step == 1 else '1 token':13} {sum(passes[part]):11,} cycles, "
        f"{sum(passes[part]) / sum(bounds[part]):.3f} x the bound | 64 logits equal | {WORDS.decode([w])!r}"
        for step, (part, w) in enumerate(zip(parts, chosen, strict=True), 1)
    ]
    assert [of_prompt, of_text] == [
        f"{kind}: {sum(passes[part]) / tokens:,.0f} cycles a token, "
        f"{sum(passes[part]) / sum(bounds[part]):.3f} x the bound of memory and multipliers, "
        f"{300e6 * tokens / sum(passes[part]):,.0f} tokens/s at 300 MHz"
        for kind, tokens, part in (("prompt", 6, slice(2)), ("text", 3, slice(2, 5)))
    ]
    assert proved.startswith(
        "The simulated Verilog and the golden model computed the same 64 logits, bit for bit, in all 4 steps"
    )
    with pytest.raises(ValueError, match="the context is 72"):
        example["write_golden"](model, prompt, ids, 67)


@pytest.mark.slow
def test_example_smollm2_sees_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "smollm2.py"))
    model, ids = tiny_accelerator(), WORDS.encode("AB")
    rows = example["write_golden"](model, "AB", ids, 2)
    monkeypatch.setattr(Session, "last_logits", lambda self, ids: np.zeros(64, np.float32))
    with pytest.raises(SystemExit, match="step 0: 64 logits differ from the golden model's"):
        example["simulate"](model, ids, rows)
