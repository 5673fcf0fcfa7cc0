"""A module imports only from floors below its own."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import streamgen

PACKAGE = Path(streamgen.__file__).parent

# The floors of the house. Modules that share an entry are one block and may import one another.
FLOORS: list[list[set[str]]] = [
    [
        {
            "boards",
            "buffers",
            "capacity",
            "collector",
            "errors",
            "extras",
            "files",
            "folders",
            "config",
            "cost",
            "contract",
            "manifest",
            "nests",
            "phase_table",
            "numbers",
            "text",
            "itensor",
            "progress",
            "remembered",
            "screen",
            "tables",
            "gguf_metadata",
            "written",
            "threads",
            "turns",
            "wording",
        }
    ],
    [{"rtl"}],
    [{"arith"}, {"stream"}, {"graph"}],
    [{"fifo"}, {"golden"}],
    [{"kernels"}, {"converters"}, {"control"}, {"platform"}],
    [{"memory"}],
    [{"operations"}],
    [{"frontend"}, {"explore"}, {"lower"}, {"emit"}, {"golden_text"}, {"calibration"}],
    [{"schedule"}],
    [
        {
            "accelerator",
            "compiler",
            "estimation",
            "grouping",
            "language_model",
            "observe",
            "package",
            "policy",
            "search",
            "cli",
            "cosim",
            "emulation",
        },
        {"testing"},
    ],
]
APART = "runtime"


def _place(name: str) -> tuple[int, int]:
    for floor, blocks in enumerate(FLOORS):
        for index, block in enumerate(blocks):
            if name in block:
                return floor, index
    raise AssertionError(f"streamgen.{name} stands on no floor: add it to FLOORS")


# Passes know a kernel by what `streamgen.contract` asks of it.
NO_KERNEL_BY_TYPE = ("explore", "lower", "emit", "schedule", "observe")


def _known_by_type(package: Path) -> list[str]:
    """Lines that ask whether something is an instance of the Params of a certain kernel."""
    found = []
    for room in NO_KERNEL_BY_TYPE:
        place = package / room
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                    names = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
                    if any(name.endswith("Params") for name in names):
                        found.append(f"{path.relative_to(package.parent)}:{node.lineno}: {ast.unparse(node)}")
    return found


def test_passes_know_kernels_by_the_contract_alone() -> None:
    assert _known_by_type(PACKAGE) == []


def _imports(path: Path, *, types: bool = True) -> list[tuple[int, str]]:
    """(line, dotted module) of every import in a file, whatever its indentation.

    types: those too that only a type checker reads.
    """
    found = []
    nodes = [ast.parse(path.read_text())]
    while nodes:
        node = nodes.pop()
        if not types and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            found.append((node.lineno, node.module or ""))
            if node.module == "streamgen" or not types:
                found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def _violations(package: Path) -> list[str]:
    wrong = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        name = parts[0]
        for line, module in _imports(path):
            where = f"{path.relative_to(package.parent)}:{line}: imports {module}"
            if module == "sim" or module.startswith("sim."):
                wrong.append(f"{where}; streamgen never imports the project's own benches")
            if module.split(".")[0] == "torch" and name not in ("frontend", "compiler"):
                wrong.append(f"{where}; only the frontend knows torch")
            if not module.startswith("streamgen.") or name == "__init__":
                continue
            other = module.split(".")[1]
            if other == name:
                continue
            if name == APART:
                allowed = other != APART and _place(other)[0] == 0
            elif other == APART:
                allowed = _place(name)[0] == len(FLOORS) - 1
            else:
                mine, theirs = _place(name), _place(other)
                allowed = theirs[0] < mine[0] or theirs == mine
            if not allowed:
                wrong.append(f"{where}; that is not on a floor below {name}")
    return wrong


def test_floors() -> None:
    assert _violations(PACKAGE) == []


def _cycles(package: Path) -> list[str]:
    """Rings of imports among the modules and rooms of each package, but for what type checkers alone read."""
    found = []
    for home in (package, *(init.parent for init in package.rglob("*/__init__.py"))):
        prefix = ".".join(home.relative_to(package.parent).parts) + "."
        rooms = {path.stem for path in home.iterdir()} - {"__init__", "__pycache__"}
        needs: dict[str, set[str]] = {room: set() for room in rooms}
        for path in home.rglob("*.py"):
            room = path.relative_to(home).with_suffix("").parts[0]
            if room != "__init__":
                names = [name for _, name in _imports(path, types=False) if name.startswith(prefix)]
                needs[room] |= ({name.removeprefix(prefix).split(".")[0] for name in names} & rooms) - {room}
        try:
            TopologicalSorter(needs).prepare()
        except CycleError as error:
            found.append(prefix + " -> ".join(error.args[1]))
    return found


def test_no_cycles_of_imports() -> None:
    assert _cycles(PACKAGE) == []


def test_cycles_are_found(tmp_path: Path) -> None:
    room = tmp_path / "streamgen" / "room"
    room.mkdir(parents=True)
    (room / "__init__.py").touch()
    (room / "a.py").write_text("from streamgen.room.b import x")
    (room / "b.py").write_text("if TYPE_CHECKING:\n    from streamgen.room.a import y")
    assert _cycles(tmp_path / "streamgen") == []
    (room / "b.py").write_text("def f():\n    from streamgen.room import a")
    assert len(_cycles(tmp_path / "streamgen")) == 1


def test_no_board_is_named_but_among_the_boards() -> None:
    names = re.compile(r"u55c|u280|0\.6927|13_300|512 << 20|0x2000_0000", re.IGNORECASE)
    named = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if names.search(path.read_text()) and path.parent.name != "boards"
    }
    assert named == {"config.py"}  # in the texts of its options


def test_every_module_stands_on_a_floor() -> None:
    for path in PACKAGE.iterdir():
        is_module = path.suffix == ".py" or (path / "__init__.py").exists()
        if is_module and path.stem not in ("__init__", APART):
            _place(path.stem)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("kernels/a.py", "from streamgen.converters import x", "not on a floor below kernels"),
        ("fifo/a.py", "def f():\n    import streamgen.compiler.emit", "not on a floor below fifo"),
        ("runtime/a.py", "from streamgen import graph", "not on a floor below runtime"),
        ("stream/a.py", "import sim.axi", "never imports the project's own benches"),
        ("compiler.py", "from streamgen.testing import run", "not on a floor below compiler"),
        ("testing/a.py", "from streamgen.api.compiling import load", "not on a floor below testing"),
        ("lower/a.py", "import torch.nn", "only the frontend knows torch"),
    ],
)
def test_violations_are_found(tmp_path: Path, file: str, text: str, message: str) -> None:
    path = tmp_path / "streamgen" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert len(found := _violations(tmp_path / "streamgen")) == 1
    assert message in found[0]
