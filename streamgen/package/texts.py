"""The Makefile and the README of a package."""

from collections.abc import Sequence

from streamgen.boards import Board
from streamgen.manifest import Manifest
from streamgen.package.constraints import CONSTRAINTS
from streamgen.package.link import LINK
from streamgen.package.steps import SCRIPT, Step
from streamgen.runtime.xrt import BUILD

__all__ = ["group_makefile", "makefile", "readme"]

_SHELL = "SHELL := /bin/bash\n.SHELLFLAGS := -o pipefail -c\n.DELETE_ON_ERROR:\n"
_CLEAN = ".PHONY: all clean\n"


def makefile(steps: Sequence[Step]) -> str:
    """Makes what is missing or older than what it is made of; `make clean` deletes all of it."""
    lines = [f"# Runs {steps[0].tool} and {steps[1].tool}, which must be on PATH.", _SHELL]
    lines += [f"all: {steps[-1].product}", ""]
    made: list[str] = []
    for step in steps:
        lines += [
            f"{step.product}: {' '.join((*made, *step.needs))}",
            f"\tmkdir -p {BUILD}",
            f"\t{step.command} 2>&1 | tee {step.log}",
            "",
        ]
        made.append(step.product)
    return "\n".join([*lines, "clean:", f"\trm -rf {BUILD}", "", _CLEAN])


def group_makefile(folders: Sequence[str]) -> str:
    """Makes the packages of all groups."""
    return "\n".join(
        [
            _SHELL,
            *(
                f"{target}:\n" + "".join(f"\t$(MAKE) -C {folder} {target}\n" for folder in folders)
                for target in ("all", "clean")
            ),
            _CLEAN,
        ]
    )


def readme(
    name: str, board: Board, parts: Sequence[tuple[str, Manifest, Sequence[Step]]], language: bool
) -> str:
    """What the package is, and what to do with it. parts: of each kernel its folder inside the package ("."
    for a single one), its manifest, its steps. language: it is a language model's."""
    host = 'python host.py --prompt "The sea"' if language else "python host.py -i x.npy -o y.npy"
    folders = [folder for folder, _, _ in parts]
    within = f" of each folder ({', '.join(folders)}: kernels that run one after the other)"
    lines = [
        f"# {name}",
        "",
        f"A kernel for the board {board.name} (part {board.part}), made by streamgen.",
        "",
        "## Building",
        "",
        f"It takes Vivado and Vitis of one release, {board.tools} or later (source their `settings64.sh`),",
        f"and the platform `{board.platform}`. `make` runs",
        "",
    ]
    for folder, _, steps in parts:
        if folder != ".":
            lines.append(f"    cd {folder}")
        lines += [f"    {step.command}" for step in steps]
        if folder != ".":
            lines.append("    cd ..")
    lines += [
        "",
        "## Running",
        "",
        "On the host of the board: XRT with its Python module pyxrt (`source /opt/xilinx/xrt/setup.sh`), and",
        "`pip install streamgen`.",
        "",
        f"    {host}",
        "",
        f"## The files{'' if folders == ['.'] else within}",
        "",
        "| file | what it is |",
        "|---|---|",
        *(f"| {file} | {what} |" for file, what in _files(parts[0][1])),
    ]
    return "\n".join(lines) + "\n"


def _files(manifest: Manifest) -> list[tuple[str, str]]:
    return [
        (
            ", ".join(f"`{name}`" for name in manifest.verilog_files),
            f"the hardware; top module `{manifest.top}`",
        ),
        ("`kernel.xml`", "its ports and arguments, for the linker and XRT"),
        (f"`{SCRIPT}`", f"makes `{BUILD}/{manifest.top}.xo` in Vivado"),
        (f"`{LINK}`", "platform, clock and memory banks, for v++"),
        (f"`{CONSTRAINTS}`", "wishes for the placer; only where the kernel takes several SLRs"),
        ("`manifest.json`, `*.bin`", "registers, buffers, phase table and packed weights, for the host"),
        ("`host.py`", "runs it; a start for a program of your own"),
    ]
