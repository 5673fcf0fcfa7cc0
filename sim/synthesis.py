"""What a component costs after synthesis for the card: cells, and the deepest path in LUT levels.

    check_resources(params, bounds)     the promise of a kernel, converter, DMA or block against synthesis

Yosys `synth_xilinx -family xcup`, flattened. The counts are upper bounds: no DSP registers are packed, carry
chains are CARRY4 and nothing is optimised by placement.

* A LUT of any size counts 1, a LUT memory or shift register the LUTs it occupies; carry chains and the
  multiplexers behind LUTs are free. BRAM counts RAMB36.
* A level is one LUT on a path between registers or ports. A carry chain of any length is one level, a
  LUT memory read is one level. The multiplexers MUXF7-9 are part of their LUT. DSP, BRAM and URAM are
  ends of paths, as their registers, which this flow does not pack, are on the card.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from amaranth.lib import wiring

from streamgen.contract import Bounds
from streamgen.cost import Resources
from streamgen.rtl import Library, run_yosys, to_rtlil

__all__ = ["MAX_LEVELS", "SLACK", "Synthesis", "check_all", "check_resources", "promised", "synthesise"]

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
# Nothing passes through these from input to output within a cycle (see above for DSP and memories).
_ENDS = {*_FF_CELLS, *_BRAM_CELLS, *_URAM_CELLS, "DSP48E2"}
_MUXES = ("MUXF7", "MUXF8", "MUXF9")


@dataclass(frozen=True, kw_only=True)
class Synthesis:
    """What was found. cells: count by type. path: named nets on the deepest path, then its end."""

    resources: Resources
    levels: int
    cells: dict[str, int]
    path: tuple[str, ...]


def synthesise(*components: wiring.Component) -> list[Synthesis]:
    """Map components, and the blocks they share, to the cells of the U55C's family, each on its own.

    One call for many is much faster: most of the time goes into starting the flow.
    """
    library = Library()
    names = [f"block_{k}" for k in range(len(components))]
    texts = [to_rtlil(component, name, library) for name, component in zip(names, components, strict=True)]
    instances = [f"attribute \\keep 1\ncell \\{name} \\u_{name}\nend" for name in names]
    top = "\n".join(["module \\every_block", *instances, "end"])
    text = run_yosys(
        "\n".join([library.text(), *texts, top]),
        f"setattr -mod -set keep_hierarchy 1 {' '.join(names)}",
        "synth_xilinx -family xcup -flatten -noiopad -noclkbuf -top every_block",
        "delete t:$scopeinfo",
        writer="write_json",
    )
    modules = json.loads(text)["modules"]
    return [_count(modules[name]) for name in names]


def promised(params: Any, bounds: Bounds | None = None) -> Resources:
    """What params promise: by `cost(bounds)`, without bounds by their attribute `resources`."""
    found: Resources = params.resources if bounds is None else params.cost(bounds).resources
    return found


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
        if abs(said - is_so) > max(tolerance * is_so, getattr(SLACK, field.name)):
            share = f"{said / is_so - 1:+.0%}" if is_so else "none found"
            faults.append(f"{field.name}: {said:g} promised, {is_so:g} found ({share})")
    if found.levels > levels:
        faults.append(f"a path of {found.levels} LUT levels, {levels} are allowed: {' -> '.join(found.path)}")
    return faults


def _count(netlist: dict[str, Any]) -> Synthesis:
    cells = dict(sorted(Counter(cell["type"] for cell in netlist["cells"].values()).items()))
    levels, path = _deepest(netlist)
    return Synthesis(
        resources=Resources(
            lut=sum(_LUT_CELLS.get(kind, 0) * count for kind, count in cells.items()),
            ff=sum(cells.get(kind, 0) for kind in _FF_CELLS),
            dsp=cells.get("DSP48E2", 0),
            bram=sum(blocks * cells.get(kind, 0) for kind, blocks in _BRAM_CELLS.items()),
            uram=sum(cells.get(kind, 0) for kind in _URAM_CELLS),
        ),
        levels=levels,
        cells=cells,
        path=path,
    )


def _deepest(netlist: dict[str, Any]) -> tuple[int, tuple[str, ...]]:
    """Levels and nets of the longest path between registers or ports."""
    driver: dict[int, tuple[str, str]] = {}  # net -> cell, port
    for name, cell in netlist["cells"].items():
        if (
            cell["type"] not in _ENDS
            and cell["type"] not in _LUT_CELLS
            and cell["type"] not in ("CARRY4", *_MUXES)
        ):
            raise ValueError(f"cell {name} is of type {cell['type']}, which this count does not know")
        if cell["type"] in _ENDS:
            continue
        for port, bits in cell["connections"].items():
            if cell["port_directions"][port] == "output":
                driver.update((bit, (name, port)) for bit in bits)
    arrival: dict[int, tuple[int, int | None]] = {}  # net -> level, net before
    for net in driver:
        _arrive(net, netlist["cells"], driver, arrival)
    names = _net_names(netlist)
    ends = [
        (bit, name)
        for name, port in netlist["ports"].items()
        if port["direction"] == "output"
        for bit in port["bits"]
    ]
    for cell in netlist["cells"].values():
        if cell["type"] in _ENDS or cell["type"].startswith(("RAM", "SRL")):
            outputs = [p for p, direction in cell["port_directions"].items() if direction == "output"]
            label = next((names[bit] for p in outputs for bit in cell["connections"][p] if bit in names), "?")
            ends += [
                (bit, f"{label}.{p}")
                for p, bits in cell["connections"].items()
                if p not in outputs
                for bit in bits
            ]
    end, label = max((e for e in ends if e[0] in arrival), key=lambda e: arrival[e[0]][0], default=(None, ""))
    if end is None:
        return 0, ()
    path = [label]
    net: int | None = end
    while net is not None:
        if net in names:
            path.insert(0, names[net])
        net = arrival[net][1] if net in arrival else None
    return arrival[end][0], tuple(path)


def _arrive(
    goal: int,
    cells: dict[str, Any],
    driver: dict[int, tuple[str, str]],
    arrival: dict[int, tuple[int, int | None]],
) -> None:
    """Fill `arrival` for `goal` and all it depends on."""
    stack = [goal]
    under_way: set[int] = set()
    while stack:
        net = stack[-1]
        if net in arrival:
            stack.pop()
            continue
        cell = cells[driver[net][0]]
        sources = [
            (bit, port)
            for port, bits in cell["connections"].items()
            if cell["port_directions"][port] == "input" and _passes(cell["type"], port)
            for bit in bits
            if isinstance(bit, int)
        ]
        missing = [bit for bit, _ in sources if bit in driver and bit not in arrival]
        if missing:
            if net in under_way:
                raise ValueError(f"net {net} is part of a combinational loop")
            under_way.add(net)
            stack += missing
            continue
        stack.pop()
        level, before = 0, None
        for bit, port in sources:
            chained = (
                cell["type"] == "CARRY4"
                and port == "CI"
                and cells.get(driver.get(bit, ("",))[0], {}).get("type") == "CARRY4"
            )
            reached = arrival[bit][0] if bit in arrival else 0
            reached += 0 if chained or cell["type"] in _MUXES else 1
            if before is None or reached > level:
                level, before = reached, bit
        arrival[net] = max(level, 1), before


def _passes(kind: str, port: str) -> bool:
    """Whether a path goes from this input to the outputs; memories are passed from the address."""
    if kind.startswith("RAM"):
        return bool(re.match(r"ADDR|DPRA|A\d*$", port))
    return not kind.startswith("SRL") or port.startswith("A")


def _net_names(netlist: dict[str, Any]) -> dict[int, str]:
    """The names that the design itself gives to its nets."""
    names: dict[int, str] = {}
    for name, entry in netlist["netnames"].items():
        if not entry["hide_name"]:
            for k, bit in enumerate(entry["bits"]):
                names[bit] = f"{name}[{k}]" if len(entry["bits"]) > 1 else name
    return names
