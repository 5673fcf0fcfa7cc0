"""Verilator's lint of emitted Verilog."""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from streamgen.runtime.verilator import package_folder

__all__ = ["lint"]


def lint(verilog: str, top: str, sources: Mapping[str, str] | None = None) -> None:
    """Raise AssertionError with Verilator's complaints, warnings included.

    sources: text of other files that the design needs, by name.
    Only those on widths are off: Verilog widens and cuts as Yosys, which wrote the text, means it.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = {"design.v": verilog, **(sources or {})}
        for name, text in files.items():
            Path(folder, name).write_text(text)
        done = subprocess.run(
            [
                package_folder() / "bin" / "verilator_bin",
                *("--lint-only", "-Wno-WIDTH", "--top-module", top, *files),
            ],
            cwd=folder,
            env=os.environ | {"VERILATOR_ROOT": str(package_folder())},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode or done.stderr:
        raise AssertionError(done.stderr or done.stdout)
