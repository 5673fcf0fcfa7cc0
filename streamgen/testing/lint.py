"""Verilator's lint of emitted Verilog."""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from streamgen.runtime.verilator import package_folder

__all__ = ["lint"]

# In the emitted text: cases whose default stands before them, words of C++ (a Vitis kernel has a pin
# `interrupt`), signals without bits and comparisons with the greatest value, where params leave nothing else.
_RULES = "".join(
    f'lint_off -rule {rule} -file "design.v"\n'
    for rule in ("CASEINCOMPLETE", "SYMRSVDWORD", "ASCRANGE", "CMPCONST")
)


def lint(verilog: str, top: str, sources: Mapping[str, str] | None = None) -> None:
    """Raise AssertionError with Verilator's complaints, warnings included.

    sources: text of other files that the design needs, by name. Only those on widths are off, and some in
    the emitted text: Verilator widens and cuts as Yosys, which wrote it, means it.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = {"rules.vlt": f"`verilator_config\n{_RULES}", "design.v": verilog, **(sources or {})}
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
