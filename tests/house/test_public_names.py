"""What completion, help and repr show."""

import pydoc
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import streamgen
import streamgen.testing
from streamgen.base.wording import counted, duration
from tests.house.test_layers import PACKAGE
from tests.shared.accelerators import tiny
from tests.shared.decoders import tiny_accelerator


@pytest.mark.parametrize("package", [streamgen, streamgen.testing], ids=lambda package: package.__name__)
def test_names_that_are_imported_late_are_listed(package: ModuleType) -> None:
    """All of them, nothing private, and each is there."""
    listed = [name for name in dir(package) if not name.startswith("__")]
    assert listed == sorted(package.__all__)
    assert all(getattr(package, name) is not None for name in listed)
    with pytest.raises(AttributeError) as caught:
        _ = package.nothing
    assert str(caught.value) == f"module {package.__name__!r} has no attribute 'nothing'"


def test_listing_them_imports_nothing() -> None:
    code = "import sys, streamgen; dir(streamgen); print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_modules_list_no_names() -> None:
    """Names without an underscore are public; a package lists those that it takes from its modules."""
    modules = [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    listing = [path for path in modules if re.search(r"^__all__\b", path.read_text(), re.MULTILINE)]
    assert modules and listing == []


def test_help() -> None:
    text = pydoc.plain(pydoc.render_doc(streamgen))
    assert all(name in text for name in streamgen.__all__)
    assert (
        "Estimate the design that `compile` would make of a model, without Verilog and without weights."
        in text
    )


def test_repr(tmp_path: Path) -> None:
    """In one line, of a compiled accelerator and of one that is read again; nothing is written for it."""
    said = "<Accelerator 'tiny': input [1, 40] to linear [1, 5]; u55c, 1 channel, 32 multipliers>"
    compiled = tiny()
    assert repr(compiled) == said
    loaded = streamgen.load(compiled.write(tmp_path / "written"))
    assert repr(loaded) == said


@pytest.mark.slow
def test_repr_of_a_language_model(tmp_path: Path) -> None:
    """The program of a written one, which knows its multipliers, is not derived for it."""
    said = "<LanguageModel 'tiny': vocabulary 64 ids, context 72 tokens, 4 a pass; u55c, 2 channels"
    compiled = tiny_accelerator()
    assert repr(compiled) == f"{said}, 128 multipliers>"
    assert repr(streamgen.load(compiled.write(tmp_path / "written"))) == f"{said}>"


def test_counted_nouns_and_times() -> None:
    assert [counted(n, "token") for n in (0, 1, 2, 1024)] == [
        "0 tokens",
        "1 token",
        "2 tokens",
        "1,024 tokens",
    ]
    assert [counted(n, "pass", "passes") for n in (1, 3)] == ["1 pass", "3 passes"]
    seconds = (0.4, 7, 59.4, 59.6, 125, 3599.4, 12_000)
    assert [duration(s) for s in seconds] == [
        *("0 s", "7 s", "59 s", "1 min 0 s", "2 min 5 s", "59 min 59 s", "3 h 20 min"),
    ]
