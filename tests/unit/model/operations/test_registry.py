"""Entry points of installed packages: found by the operator; one clear line for those that are broken."""

from pathlib import Path

import pytest
import torch

import streamgen
from streamgen.base.errors import UnsupportedOperationError
from streamgen.model.operations import Unary, registry
from streamgen.model.operations.registry import GROUP, find, is_offered, register

OPERATION = """
from dataclasses import dataclass

from streamgen.model.operations.row_operation import RowOperation


@dataclass(frozen=True)
class Mine(RowOperation):
    def compute(self, x):
        return x

    def kernel(self, rows):
        raise NotImplementedError
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Installs a package as pip leaves it: a module, and the metadata with an entry point."""
    monkeypatch.setattr(registry, "_REGISTERED", {})

    def installed(package: str, operator: str, text: str = OPERATION, name: str = "Mine") -> None:
        place = tmp_path / package
        metadata = place / f"{package}-1.2.dist-info"
        metadata.mkdir(parents=True)
        (place / f"{package}_module.py").write_text(text)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{operator} = {package}_module:{name}\n")
        monkeypatch.syspath_prepend(place)

    return installed


def refused(operator: str, *, built_in: bool = False) -> str:
    with pytest.raises(UnsupportedOperationError) as error:
        find(operator, built_in=built_in)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("spelling", ["lib_a.op", "lib_a.op.default", "lib_a::op"])
def test_found_by_the_operator(install, spelling: str) -> None:
    package = f"found_{sum(map(ord, spelling))}"
    install(package, spelling)
    kind = find("lib_a.op.default")
    assert kind is not None and (kind.__module__, kind.__name__) == (f"{package}_module", "Mine")
    assert is_offered("lib_a.op.default") and not is_offered("lib_a.other.default")
    assert find("lib_a.other.default") is None
    assert (find("lib_a.op.out") is None) == (spelling == "lib_a.op.default")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import streamgen_nowhere", "No module named 'streamgen_nowhere'"),
        ("raise RuntimeError('no licence')", "no licence"),
        ("Yours = 3", "module 'broken_{}_module' has no attribute 'Mine'"),
    ],
)
def test_a_class_that_cannot_be_imported(install, text: str, said: str) -> None:
    package = f"broken_{len(text)}"
    install(package, "lib_b.op", text)
    assert refused("lib_b.op.default") == (
        f"the package {package} provides '{package}_module:Mine' for lib_b.op.default, which cannot be "
        f"imported ({said.format(len(text))}): install what the package needs, or remove it"
    )


def test_a_class_of_something_else(install) -> None:
    install("no_operation", "lib_c.op", "class Mine:\n    pass\n")
    assert refused("lib_c.op.default") == (
        "the package no_operation provides 'no_operation_module:Mine' for lib_c.op.default, which is not a "
        "class derived from Operator"
    )


def test_two_packages_for_one_operator(install) -> None:
    install("first", "lib_d.op")
    install("second", "lib_d.op.default")
    assert refused("lib_d.op.default") == (
        "the package second and the package first provide operations for lib_d.op.default: remove all but one"
    )


def test_an_operator_that_is_built_in(install) -> None:
    """Told when a module calls it; other models compile."""
    install("builtin", "aten.relu")
    assert find("aten.relu.default") is not None
    message = (
        "the package builtin provides an operation for aten.relu.default, which streamgen computes itself: "
        "remove it"
    )
    assert refused("aten.relu.default", built_in=True) == message
    with pytest.raises(UnsupportedOperationError) as error:
        streamgen.estimate(torch.nn.ReLU(), torch.zeros(1, 4))
    assert str(error.value) == message
    assert streamgen.estimate(torch.nn.Tanh(), torch.zeros(1, 4)).passes


def test_registered_by_a_notebook(install) -> None:
    register("lib_e::op", Unary)
    register("lib_e.op", Unary)
    assert find("lib_e.op.default") is Unary

    class Again(Unary):
        pass

    with pytest.raises(ValueError) as error:
        register("lib_e.op", Again)
    assert str(error.value).startswith(
        "lib_e.op is already computed by streamgen.model.operations.unary:Unary;"
    )
    for name in ("op", "a.b.c.d", "lib e.op", ""):
        with pytest.raises(ValueError, match=r"is not a torch operator; 'namespace.name' is needed$"):
            register(name, Unary)
    with pytest.raises(
        TypeError, match=r"^the operation for 'lib_e.more' is 3; a class derived from Operator"
    ):
        register("lib_e.more", 3)  # type: ignore[arg-type]


def test_a_package_and_this_process_for_one_operator(install) -> None:
    install("package_f", "lib_f.op")
    register("lib_f.op", Unary)
    assert refused("lib_f.op.default") == (
        "the package package_f and this process (register('lib_f.op', ...)) provide operations for "
        "lib_f.op.default: remove all but one"
    )
    registry._REGISTERED.clear()
    kind = find("lib_f.op.default")
    assert kind is not None
    register("lib_f.op", kind)
    assert find("lib_f.op.default") is kind
