"""The Makefile and the README of a package."""

from collections.abc import Sequence

from streamgen.artifact.manifest import Manifest
from streamgen.package.constraints import CONSTRAINTS
from streamgen.package.link import LINK
from streamgen.package.linkage import told_wires
from streamgen.package.steps import SCRIPT, ToolStep
from streamgen.platform.boards import Board, shell_of
from streamgen.runtime.card import CARD_FILE, Card
from streamgen.runtime.xrt import BUILD

_SHELL = "SHELL := /bin/bash\n.SHELLFLAGS := -o pipefail -c\n.DELETE_ON_ERROR:\n"
_CLEAN = ".PHONY: all clean\n"


def makefile(steps: Sequence[ToolStep]) -> str:
    """A Makefile that makes missing and outdated files. `make clean` deletes all made files."""
    tools = " and ".join(dict.fromkeys(step.tool for step in steps))
    lines = [f"# Runs {tools}, which must be on PATH.", _SHELL]
    lines += [f"all: {steps[-1].product}", ""]
    for step in steps:
        lines += [
            f"{step.product}: {' '.join(step.needs)}",
            f"\tmkdir -p {step.place}",
            f"\t{step.command} 2>&1 | tee {step.log}",
            "",
        ]
    places = " ".join(dict.fromkeys(step.place for step in steps))
    return "\n".join([*lines, "clean:", f"\trm -rf {places}", "", _CLEAN])


def readme(
    card: Card,
    board: Board,
    manifests: Sequence[Manifest],
    steps: Sequence[ToolStep],
    texts: set[str],
    wires: Sequence[int],
) -> str:
    """The README of a package. manifests: manifests of the kernels in order. texts: folders of language
    models. wires: estimated wires between neighbouring SLRs."""
    count, shell = len(card.kernels), shell_of(board)
    what = "A kernel" if count == 1 else f"{count} kernels in one binary"
    lines = [
        f"# {card.name}",
        "",
        f"{what} for the board {board.name} (part {board.part}), made by streamgen.",
        "",
        "## Building",
        "",
        f"You need Vivado and Vitis of one release, {shell.tools} or later (source their `settings64.sh`),",
        f"and the platform `{shell.platform}`. `make` runs",
        "",
        *(f"    {step.command}" for step in steps),
        "",
        "## Running",
        "",
        "The host of the board needs XRT with its Python module pyxrt (`source /opt/xilinx/xrt/setup.sh`) "
        "and",
        "`pip install streamgen`.",
        "",
    ]
    for model in card.models:
        name = "" if model == "." else f"{model} "
        options = '--prompt "The sea"' if model in texts else "-i x.npy -o y.npy"
        lines.append(f"    python host.py {name}{options}")
    if count > 1:
        lines += [
            "",
            "| kernel | folder | SLR | memory banks |",
            "|---|---|---|---|",
            *(
                f"| {kernel.name} | `{kernel.folder}` | {kernel.slr or 'several'} | "
                f"{_ranges(set(kernel.banks.values()))} |"
                for kernel in card.kernels
            ),
            "",
            "If one kernel writes data that another kernel reads, both use one buffer, and the host copies "
            "nothing.",
        ]
    if count > 1 and wires:
        lines += [
            "",
            f"Estimated wires between SLRs: {told_wires(wires, board)}.",
            "The ports of a kernel that is away from the memory lie beside the memory.",
        ]
    lines += ["", "## Files", "", "| file | contents |", "|---|---|"]
    lines += [f"| {file} | {what} |" for file, what in _files(card, manifests)]
    return "\n".join(lines) + "\n"


def _ranges(numbers: set[int]) -> str:
    """0, 1, 2, 5 as `0-2, 5`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _files(card: Card, manifests: Sequence[Manifest]) -> list[tuple[str, str]]:
    several = "" if len(card.kernels) == 1 else ", in the folder of each kernel"
    names = ", ".join(f"`{name}`" for name in dict.fromkeys(n for m in manifests for n in m.verilog_files))
    top = f"top module `{manifests[0].top}`" if len(manifests) == 1 else "top module: the kernel's name"
    return [
        (names, f"the hardware{several}; {top}"),
        ("`kernel.xml`", f"ports and arguments of the kernel, for the linker and XRT{several}"),
        (f"`{SCRIPT}`", f"makes `{BUILD}/KERNEL.xo` in Vivado{several}"),
        (f"`{CONSTRAINTS}`", "placement constraints; only for a kernel on several SLRs"),
        (
            "`manifest.json`, `*.bin`",
            f"registers, buffers, phase table and packed weights, for the host{several}",
        ),
        (f"`{LINK}`", "platform, clock, kernels and memory banks, for v++"),
        (f"`{CARD_FILE}`", "the models and the kernels of the binary, for the host"),
        ("`host.py`", "runs the models; a start for your own program"),
    ]
