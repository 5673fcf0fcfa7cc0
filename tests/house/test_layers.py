"""A module imports only from floors below its own."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import streamgen

PACKAGE = Path(streamgen.__file__).parent

# The floors of the house, the lowest first: a room imports from rooms of lower floors only.
FLOORS = (
    ("base",),
    ("numbers",),
    ("itensor",),
    ("artifact", "contract", "text"),
    ("gateware",),
    ("fifo",),
    ("converters", "platform"),
    ("kernels",),
    ("model",),
    ("compiler",),
    ("runtime",),
    ("observe", "testing"),
    ("package",),
    ("api",),
    ("cli",),
)
ROOMS = [room for floor in FLOORS for room in floor]
# A host with a board installs no compiler: what it runs needs these alone.
OF_A_HOST = ("base", "numbers", "itensor", "artifact", "text")
TORCH = ("model/frontend", "api/compiling.py")
LINES = 500


def _floor(room: str) -> int:
    return next(number for number, floor in enumerate(FLOORS) if room in floor)


# Passes know a kernel by what `streamgen.contract` asks of it.
NO_KERNEL_BY_TYPE = ("compiler", "observe")


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


# The frontend makes operations and finds patterns of them; what an operation says of itself is no question.
NO_PASSES = ("model/frontend", "model/operations")
PASSES_BESIDE_OPERATIONS = ("model/operations/balance.py",)
CLASS_QUESTIONS = (
    7  # it may only fall: of `Repeat` where graphs unroll, and of the operations that are balanced
)


def _operation_classes(package: Path) -> set[str]:
    """Names of all classes that derive from `Operator`."""
    bases = {
        node.name: {part.id for base in node.bases for part in ast.walk(base) if isinstance(part, ast.Name)}
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    found, more = set[str](), {"Operator"}
    while more:
        more = {name for name, parents in bases.items() if parents & more} - found
        found |= more
    return found


def _class_questions(package: Path) -> list[str]:
    """Lines of passes that ask for the class of an operation, by isinstance, issubclass, type(x) or match."""
    classes, found = _operation_classes(package), []
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package).as_posix()
        if place.startswith(NO_PASSES) and place not in PASSES_BESIDE_OPERATIONS:
            continue
        tree = ast.parse(path.read_text())
        known = set(classes)  # and the names under which this file has them, one by one or several
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom | ast.Import):
                known |= {name.asname for name in node.names if name.asname and name.name in classes}
        for node in tree.body:
            if (
                isinstance(node, ast.Assign)
                and not isinstance(node.value, ast.Call)
                and _named(node.value) & known
            ):
                known |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        for node in ast.walk(tree):
            asked: list[ast.AST] = []
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
                asked = [*node.args[1:]]
            elif isinstance(node, ast.MatchClass):
                asked = [node.cls]
            elif isinstance(node, ast.Compare) and "type(" in ast.unparse(node):
                asked = [node]
            if any(_named(part) & known for part in asked):
                found.append(f"{place}:{node.lineno}: {ast.unparse(node)}")  # type: ignore[attr-defined]
    return found


def _named(node: ast.AST) -> set[str]:
    """All names in an expression, with those behind dots."""
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return names | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def test_passes_know_operations_by_their_traits() -> None:
    found = _class_questions(PACKAGE)
    assert len(found) == CLASS_QUESTIONS, "lower the number, or ask a trait of `Operator`:\n" + "\n".join(
        found
    )


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("isinstance(step.op, Norm)", 1),
        ("isinstance(step.op, str | operations.GroupNorm)", 1),
        ("issubclass(kind, (int, Norm))", 1),
        ("SOME = (Norm, int)\nisinstance(step.op, SOME)", 1),
        ("from x import Norm as Other\nisinstance(step.op, Other)", 1),
        ("type(step.op) is Norm", 1),
        ("type(step.op) in (GroupNorm, Norm)", 1),
        ("match step.op:\n    case Norm():\n        pass\n    case GroupNorm(heads=1):\n        pass", 2),
        ("isinstance(x, str) or Norm() or type(x) is int", 0),
    ],
)
def test_class_questions_are_found(tmp_path: Path, text: str, count: int) -> None:
    package = tmp_path / "streamgen"
    for place, content in (
        ("model/operations/norm.py", "class Norm(Operator): ...\nclass GroupNorm(Norm): ...\n" + text),
        ("model/frontend/a.py", text),
        ("compiler/schedule/a.py", text),
    ):
        (package / place).parent.mkdir(parents=True)
        (package / place).write_text(content)
    found = _class_questions(package)
    assert len(found) == count and all(line.startswith("compiler/schedule/a.py:") for line in found)


def _imports(path: Path) -> list[tuple[int, str]]:
    """(line, dotted module) of every import in a file, those of type checkers included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def _violations(package: Path) -> list[str]:
    wrong = []
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package)
        room = place.parts[0]
        for line, module in _imports(path):
            where = f"{path.relative_to(package.parent)}:{line}: imports {module}"
            parts = module.split(".")
            if parts[0] == "sim":
                wrong.append(f"{where}; streamgen never imports the project's own benches")
            if parts[0] == "torch" and not str(place).startswith(TORCH):
                wrong.append(f"{where}; only the frontend knows torch")
            if parts[0] != "streamgen" or room in ("__init__.py", parts[1]):
                continue
            if _floor(parts[1]) >= _floor(room):
                wrong.append(f"{where}; that is not on a floor below {room}")
            elif room == "runtime" and parts[1] not in OF_A_HOST:
                wrong.append(f"{where}; a host has no compiler")
    return wrong


def test_floors() -> None:
    assert _violations(PACKAGE) == []


def test_the_hall_holds_rooms_alone() -> None:
    found = {path.name for path in PACKAGE.iterdir()} - {"__pycache__", "__init__.py", "py.typed"}
    assert found == set(ROOMS)
    assert len(found) <= 20


def test_files_are_short() -> None:
    lines = {str(path): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {path: count for path, count in lines.items() if count > LINES} == {}


def _rings(package: Path) -> list[str]:
    """Rings of imports among the modules and rooms of each package, those of type checkers included."""
    found = []
    for home in (package, *(init.parent for init in package.rglob("*/__init__.py"))):
        prefix = ".".join(home.relative_to(package.parent).parts) + "."
        rooms = {path.stem for path in home.iterdir()} - {"__init__", "__pycache__"}
        needs: dict[str, set[str]] = {room: set() for room in rooms}
        for path in home.rglob("*.py"):
            room = path.relative_to(home).with_suffix("").parts[0]
            if room != "__init__":
                names = [name for _, name in _imports(path) if name.startswith(prefix)]
                needs[room] |= ({name.removeprefix(prefix).split(".")[0] for name in names} & rooms) - {room}
        try:
            TopologicalSorter(needs).prepare()
        except CycleError as error:
            found.append(prefix + " -> ".join(error.args[1]))
    return found


def test_no_rings_of_imports() -> None:
    assert _rings(PACKAGE) == []


def test_rings_are_found(tmp_path: Path) -> None:
    room = tmp_path / "streamgen" / "room"
    room.mkdir(parents=True)
    (room / "__init__.py").touch()
    (room / "a.py").write_text("from streamgen.room.b import x")
    (room / "b.py").write_text("import os")
    assert _rings(tmp_path / "streamgen") == []
    for text in (
        "if TYPE_CHECKING:\n    from streamgen.room.a import y",
        "def f():\n    from streamgen.room import a",
    ):
        (room / "b.py").write_text(text)
        assert len(_rings(tmp_path / "streamgen")) == 1


def test_no_board_is_named_but_among_the_boards() -> None:
    names = re.compile(r"u55c|u280|u50|vu47p|0\.6927|13_300|512 << 20|0x2000_0000", re.IGNORECASE)
    named = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if names.search(path.read_text()) and path.parent.name != "boards"
    }
    assert named == set()


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("kernels/a.py", "from streamgen.model import x", "not on a floor below kernels"),
        ("fifo/a.py", "def f():\n    import streamgen.compiler.emit", "not on a floor below fifo"),
        ("converters/a.py", "from streamgen.platform import axi", "not on a floor below converters"),
        ("runtime/a.py", "from streamgen.model import graph", "a host has no compiler"),
        ("gateware/a.py", "import sim.axi", "never imports the project's own benches"),
        ("compiler/a.py", "from streamgen.testing import run", "not on a floor below compiler"),
        ("testing/a.py", "from streamgen.api.compiling import load", "not on a floor below testing"),
        ("compiler/a.py", "import torch.nn", "only the frontend knows torch"),
    ],
)
def test_violations_are_found(tmp_path: Path, file: str, text: str, message: str) -> None:
    path = tmp_path / "streamgen" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert len(found := _violations(tmp_path / "streamgen")) == 1
    assert message in found[0]


def test_a_name_is_the_name_of_one_class() -> None:
    homes: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_unit_tests_lie_as_the_rooms_do() -> None:
    unit = PACKAGE.parent / "tests" / "unit"
    folders = [path.relative_to(unit) for path in unit.rglob("*") if path.is_dir() and path.name[0] != "_"]
    assert folders and [str(folder) for folder in folders if not (PACKAGE / folder).is_dir()] == []


def test_passes_see_no_configuration() -> None:
    """What the user asks for becomes a budget once; calls at the front of the plan take both."""
    readers = {
        str(path.relative_to(PACKAGE))
        for path in (PACKAGE / "compiler").rglob("*.py")
        if any(name.endswith(".CompileConfig") for _, name in _imports(path))
    }
    assert readers == {
        "compiler/budget.py",
        *(
            f"compiler/plan/{name}.py"
            for name in ("advising", "choosing", "grouping", "policy", "record", "rules")
        ),
    }
