"""Check emitted Verilog with Verilator, which reads SystemVerilog, and Yosys, which reads Verilog-2005."""

import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from amaranth.lib import wiring

from streamgen.base.errors import StreamgenError
from streamgen.gateware.rtl import Library, rtlil_to_verilog, run_yosys, to_rtlil
from streamgen.runtime.verilator import package_folder, verilator_program

WAIVED = {
    "CMPCONST": "for some params, a comparison with the greatest value remains",
    "DECLFILENAME": "one file holds all modules",
    "PROCASSINIT": "registers begin with the value that reset gives them, as the card loads it",
    "SYMRSVDWORD": "a Vitis kernel has a pin `interrupt`, which is a reserved word",
    "UNUSEDSIGNAL": "signals that nothing reads keep their names, and synthesis removes them",
    "VARHIDDEN": "a memory may have the name of the instance around it",
    "WIDTH": "Yosys wrote the text, and relies on the implicit extension and truncation of Verilog",
}
"""Rules of `verilator -Wall` that the emitted text need not keep, each with the reason."""


def lint(verilog: str, top: str | None = None, sources: Mapping[str, str] | None = None) -> None:
    """Check Verilog. Raises AssertionError if a wire has no bits, and with the complaints of Verilator (all
    warnings except WAIVED) or of Yosys' `check`.

    top: name of the top module, or None for all modules that no other module contains. sources: text of other
    files that the design needs, by name. With such files, rules of style are not checked, because their
    authors have other rules.
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
    """The Verilog of many components in one text, so that the tools are started only once. Files of users are
    left out."""
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
            verilator_program(),
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
