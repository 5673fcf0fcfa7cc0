"""Verilator's lint of emitted Verilog."""

import os
import subprocess
import tempfile
from pathlib import Path

from streamgen.runtime.verilator import package_folder

__all__ = ["lint"]


def lint(verilog: str, top: str) -> None:
    """Raise AssertionError with Verilator's complaints, warnings included.

    Only those on widths are off: Verilog widens and cuts as Yosys, which wrote the text, means it.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "design.v").write_text(verilog)
        done = subprocess.run(
            [
                package_folder() / "bin" / "verilator_bin",
                *("--lint-only", "-Wno-WIDTH", "--top-module", top, "design.v"),
            ],
            cwd=folder,
            env=os.environ | {"VERILATOR_ROOT": str(package_folder())},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode or done.stderr:
        raise AssertionError(done.stderr or done.stdout)
