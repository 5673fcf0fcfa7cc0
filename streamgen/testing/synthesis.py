"""Synthesise components for the card: count cells, and find the deepest path in LUT levels.

    check_resources(params, bounds)     synthesis against the promise of a kernel, converter, DMA or block

The flow is Yosys `synth_xilinx -family xcup`, flattened. The counts are upper bounds: DSP registers are not
packed, carry chains are CARRY4, and there is no optimisation by placement.

A module of `gateware.arith.dsp` is one DSP by the laws of its Params, but Yosys cannot map it to one. It is
therefore a black box here: one DSP, in which paths begin and end.

A LUT of any size counts as 1. A LUT memory or a shift register counts as the LUTs that it occupies. Carry
chains and the multiplexers behind LUTs do not count. The unit of BRAM is a RAMB36. `streamgen.testing.paths`
counts the levels.
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
# Allowed error for a small block, of which 20 % would be less.
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
    """The result of synthesis. levels: LUT levels of the deepest path. cells: number of cells by type. path:
    named nets on the deepest path, and its end."""

    resources: Resources
    levels: int
    cells: dict[str, int]
    path: tuple[str, ...]


def synthesise(*components: wiring.Component) -> list[Synthesis]:
    """Map each component to the cells of UltraScale+, separately from the others.

    One call for many components is much faster, because starting the flow takes most of the time.
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
            # Yosys needs a write port for memories of LUTs. It makes tables into logic without this
            # attribute.
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
    """The resources that params promise in `cost(bounds)`; without bounds, in their attribute `resources`."""
    resources: Resources = params.resources if bounds is None else params.cost(bounds).resources
    return resources


def check_resources(
    params: Any, bounds: Bounds | None = None, *, tolerance: float = 0.2, levels: int = MAX_LEVELS
) -> Synthesis:
    """Synthesise the component of `params.build()`, and compare it with the promise.

    Raises AssertionError, with all figures, if a promised resource differs from the synthesised one by more
    than `tolerance` (a share of the synthesised one) and by more than SLACK, or if a path has more than
    `levels` levels.
    """
    (synthesis,) = check_all([(params, bounds)], tolerance=tolerance, levels=levels)
    return synthesis


def check_all(
    cases: Sequence[tuple[Any, Bounds | None]], *, tolerance: float = 0.2, levels: int = MAX_LEVELS
) -> list[Synthesis]:
    """`check_resources` for many pairs (params, bounds) in one run of Yosys. The error lists all failures."""
    measured = synthesise(*(params.build() for params, _ in cases))
    wrong = []
    for (params, bounds), synthesis in zip(cases, measured, strict=True):
        faults = _faults(promised(params, bounds), synthesis, tolerance, levels)
        if faults:
            wrong.append("\n  ".join([f"{params}", *faults]))
    if wrong:
        raise AssertionError("\n".join(wrong))
    return measured


def _faults(promise: Resources, synthesis: Synthesis, tolerance: float, levels: int) -> list[str]:
    faults = []
    for field in fields(Resources):
        cost, actual = getattr(promise, field.name), getattr(synthesis.resources, field.name)
        if field.name == "uram" and cost > actual > 0:
            continue  # Yosys puts several narrow rows into one, which the device cannot do
        if abs(cost - actual) > max(tolerance * actual, getattr(SLACK, field.name)):
            share = f"{cost / actual - 1:+.0%}" if actual else "none found"
            faults.append(f"{field.name}: {cost:g} promised, {actual:g} found ({share})")
    if synthesis.levels > levels:
        path = " -> ".join(synthesis.path)
        faults.append(f"a path has {synthesis.levels} LUT levels; {levels} are allowed: {path}")
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
