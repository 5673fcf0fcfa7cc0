"""What a component costs after synthesis for the card: cells, and the deepest path in LUT levels.

    check_resources(params, bounds)     the promise of a kernel, converter, DMA or block against synthesis

Yosys `synth_xilinx -family xcup`, flattened. The counts are upper bounds: no DSP registers are packed, carry
chains are CARRY4 and nothing is optimised by placement.

A module of `gateware.arith.dsp` is one DSP by the laws of its Params, which Yosys cannot map as such. It is
a black box here: one DSP, in which paths begin and end.

A LUT of any size counts 1, a LUT memory or shift register the LUTs it occupies; carry chains and the
multiplexers behind LUTs are free. BRAM counts RAMB36. Levels are counted by `streamgen.testing.paths`.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from amaranth.lib import wiring

from streamgen.contract import Bounds
from streamgen.contract.cost import Resources
from streamgen.gateware.arith.dsp import DspParams
from streamgen.gateware.rtl import Library, run_yosys, to_rtlil
from streamgen.testing.paths import deepest

MAX_LEVELS = 8  # LUT levels between registers
# How far a small block may be off, where 20 % of it is less.
SLACK = Resources(lut=20, ff=20, dsp=0, bram=0, uram=0)

# LUTs that one cell occupies.
_LUT_CELLS = {
    **{f"LUT{inputs}": 1 for inputs in range(1, 7)},
    **dict.fromkeys(("INV", "SRL16", "SRL16E", "SRLC16E", "SRLC32E", "RAM32X1S", "RAM64X1S"), 1),
    **dict.fromkeys(("RAM32X1D", "RAM64X1D", "RAM128X1S"), 2),
    **dict.fromkeys(("RAM32M", "RAM64M", "RAM128X1D", "RAM256X1S"), 4),
    **dict.fromkeys(("RAM32M16", "RAM64M8", "RAM256X1D", "RAM512X1S"), 8),
}
_FF_CELLS = ("FDRE", "FDSE", "FDCE", "FDPE")
_BRAM_CELLS = {"RAMB18E2": 0.5, "RAMB36E2": 1.0}
_URAM_CELLS = ("URAM288", "URAM288_BASE")


@dataclass(frozen=True, kw_only=True)
class Synthesis:
    """What was found. cells: count by type. path: named nets on the deepest path, then its end."""

    resources: Resources
    levels: int
    cells: dict[str, int]
    path: tuple[str, ...]


def synthesise(*components: wiring.Component) -> list[Synthesis]:
    """Map components, and the blocks they share, to the cells of UltraScale+, each on its own.

    One call for many is much faster: most of the time goes into starting the flow.
    """
    library = Library()
    names = [f"block_{k}" for k in range(len(components))]
    texts = [to_rtlil(component, name, library) for name, component in zip(names, components, strict=True)]
    boxes = [name for params, name in library.names.items() if isinstance(params, DspParams)]
    instances = [f"attribute \\keep 1\ncell \\{name} \\u_{name}\nend" for name in names]
    top = "\n".join(["module \\every_block", *instances, "end"])
    with tempfile.TemporaryDirectory() as folder:
        for name, source in library.sources.items():
            Path(folder, name).write_text(source)
        files = " ".join(f"{folder}/{name}" for name in library.sources)
        text = run_yosys(
            "\n".join([library.text(), *texts, top]),
            *([f"read_verilog -sv {files}"] if files else []),
            # Its memories of LUTs have a write port; tables of LUTs are logic to it without being told.
            "setattr -unset rom_style a:rom_style=distributed",
            *([f"blackbox {' '.join(boxes)}"] if boxes else []),
            f"setattr -mod -set keep_hierarchy 1 {' '.join(names)}",
            "synth_xilinx -family xcup -flatten -noiopad -noclkbuf -top every_block",
            "delete t:$scopeinfo",
            writer="write_json",
        )
    modules = json.loads(text)["modules"]
    return [_count(modules[name], frozenset(boxes)) for name in names]


def promised(params: Any, bounds: Bounds | None = None) -> Resources:
    """What params promise: by `cost(bounds)`, without bounds by their attribute `resources`."""
    promised: Resources = params.resources if bounds is None else params.cost(bounds).resources
    return promised


def check_resources(
    params: Any, bounds: Bounds | None = None, *, tolerance: float = 0.2, levels: int = MAX_LEVELS
) -> Synthesis:
    """Synthesise what `params.build()` makes and hold the promise to it.

    AssertionError, with every figure, when a resource promised differs from the one found by more than
    `tolerance` of what was found and by more than SLACK, or when a path is longer than `levels`.
    """
    (found,) = check_all([(params, bounds)], tolerance=tolerance, levels=levels)
    return found


def check_all(
    cases: Sequence[tuple[Any, Bounds | None]], *, tolerance: float = 0.2, levels: int = MAX_LEVELS
) -> list[Synthesis]:
    """`check_resources` of many (params, bounds) in one run of Yosys; the error lists all that fail."""
    measured = synthesise(*(params.build() for params, _ in cases))
    wrong = []
    for (params, bounds), found in zip(cases, measured, strict=True):
        faults = _faults(promised(params, bounds), found, tolerance, levels)
        if faults:
            wrong.append("\n  ".join([f"{params}", *faults]))
    if wrong:
        raise AssertionError("\n".join(wrong))
    return measured


def _faults(promise: Resources, found: Synthesis, tolerance: float, levels: int) -> list[str]:
    faults = []
    for field in fields(Resources):
        said, is_so = getattr(promise, field.name), getattr(found.resources, field.name)
        if field.name == "uram" and said > is_so > 0:
            continue  # Yosys puts narrow rows beside one another, as the device cannot
        if abs(said - is_so) > max(tolerance * is_so, getattr(SLACK, field.name)):
            share = f"{said / is_so - 1:+.0%}" if is_so else "none found"
            faults.append(f"{field.name}: {said:g} promised, {is_so:g} found ({share})")
    if found.levels > levels:
        faults.append(f"a path of {found.levels} LUT levels, {levels} are allowed: {' -> '.join(found.path)}")
    return faults


def _count(netlist: dict[str, Any], boxes: Set[str]) -> Synthesis:
    cells = dict(sorted(Counter(cell["type"] for cell in netlist["cells"].values()).items()))
    levels, path = deepest(netlist, boxes)
    return Synthesis(
        resources=Resources(
            lut=sum(_LUT_CELLS.get(kind, 0) * count for kind, count in cells.items()),
            ff=sum(cells.get(kind, 0) for kind in _FF_CELLS),
            dsp=sum(cells.get(kind, 0) for kind in ("DSP48E2", *boxes)),
            bram=sum(blocks * cells.get(kind, 0) for kind, blocks in _BRAM_CELLS.items()),
            uram=sum(cells.get(kind, 0) for kind in _URAM_CELLS),
        ),
        levels=levels,
        cells=cells,
        path=path,
    )
