"""Verilator's lint of emitted Verilog."""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from streamgen.runtime.verilator import package_folder

__all__ = ["lint"]

_RULES = """`verilator_config
lint_off -rule CASEINCOMPLETE -file "design.v"
lint_off -rule SYMRSVDWORD -file "design.v"
"""


def lint(verilog: str, top: str, sources: Mapping[str, str] | None = None) -> None:
    """Raise AssertionError with Verilator's complaints, warnings included.

    sources: text of other files that the design needs, by name. Only those on widths are off, and in the
    emitted text those on cases without a default and on words of C++: Yosys, which wrote it, means the
    former, and a Vitis kernel has a pin `interrupt`.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = {"rules.vlt": _RULES, "design.v": verilog, **(sources or {})}
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
