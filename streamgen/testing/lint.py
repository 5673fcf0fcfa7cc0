"""What Verilator, which reads SystemVerilog, and Yosys, which reads Verilog-2005, say of emitted text."""

import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from amaranth.lib import wiring

from streamgen.base.errors import StreamgenError
from streamgen.gateware.rtl import Library, rtlil_to_verilog, run_yosys, to_rtlil
from streamgen.runtime.verilator import package_folder

WAIVED = {
    "CMPCONST": "a comparison with the greatest value, where params leave nothing else",
    "DECLFILENAME": "one file holds all modules",
    "PROCASSINIT": "registers begin with the value that reset gives them, as the card loads it",
    "SYMRSVDWORD": "a Vitis kernel has a pin `interrupt`, a word of C++",
    "UNUSEDSIGNAL": "signals keep their names, also those that nothing reads, and synthesis drops them",
    "VARHIDDEN": "a memory may have the name of the instance that it is in",
    "WIDTH": "Verilog widens and cuts as Yosys, which wrote the text, means it",
}
"""Rules of `verilator -Wall` that the emitted text need not keep, and why."""


def lint(verilog: str, top: str | None = None, sources: Mapping[str, str] | None = None) -> None:
    """Raise AssertionError when a wire has no bits, or with what Verilator (all warnings but those WAIVED) or
    Yosys' `check` complains of.

    top: name of the module, or None for all that no other has. sources: text of other files that the design
    needs, by name; then no rules of style are asked, for their authors have their own.
    """
    if "[-1:0]" in verilog:
        raise AssertionError("a wire without bits is in the text")
    others = dict(sources or {})
    files = {"rules.vlt": _rules(others), "design.v": verilog, **others}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text)
        _verilator(Path(folder), list(files), top, [] if others else ["-Wall"])
        _yosys(Path(folder), list(others), top)


def joined(components: Iterable[wiring.Component]) -> str:
    """Verilog of many in one text, for which the tools are started once; files of users are left out."""
    library = Library()
    texts = [to_rtlil(component, f"block_{k}", library) for k, component in enumerate(components)]
    return rtlil_to_verilog("\n".join([library.text(), *texts]))


def _rules(others: Mapping[str, str]) -> str:
    off = [f'lint_off -rule {rule} -file "{name}"\n' for rule in WAIVED for name in ("design.v", *others)]
    return "`verilator_config\n" + "".join(off)


def _verilator(folder: Path, files: list[str], top: str | None, warnings: list[str]) -> None:
    tops = ["--top-module", top] if top else ["-Wno-MULTITOP"]
    done = subprocess.run(
        [
            package_folder() / "bin" / "verilator_bin",
            *("--lint-only", *warnings, "--default-language", "1800-2012", *tops, *files),
        ],
        cwd=folder,
        env=os.environ | {"VERILATOR_ROOT": str(package_folder())},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or done.stderr:
        raise AssertionError(done.stderr or done.stdout)


def _yosys(folder: Path, others: list[str], top: str | None) -> None:
    hierarchy = f"hierarchy -check -top {top}" if top else "hierarchy -check"
    read = [f"read_verilog {folder / 'design.v'}", *(f"read_verilog -sv {folder / name}" for name in others)]
    commands = (*read, hierarchy, "proc", "check -assert", "design -reset")
    try:
        run_yosys("", *commands, writer="write_rtlil")
    except StreamgenError as error:
        raise AssertionError(str(error)) from error
