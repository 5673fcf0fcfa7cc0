"""The deepest path of a mapped netlist, in LUT levels, by the names of its nets.

A level is one LUT on a path between registers or ports. A carry chain of any length is one level, and so is
the read of a LUT memory. The multiplexers MUXF7-9 belong to the LUTs that they choose from; a path through
their select input has one level more. BRAM, URAM and black boxes begin and end paths. A multiplier (DSP)
counts as 5 levels, about its delay without the registers inside, which this flow does not use.
"""

import re
from collections.abc import Set
from typing import Any

_REGISTERS = ("FDRE", "FDSE", "FDCE", "FDPE")
_BLOCK_MEMORIES = ("RAMB18E2", "RAMB36E2", "URAM288", "URAM288_BASE")
# Nothing passes through these from input to output within a cycle.
_ENDS = (*_REGISTERS, *_BLOCK_MEMORIES)
_MUXES = ("MUXF7", "MUXF8", "MUXF9")
_DSP = "DSP48E2"
_DSP_LEVELS = 5


def deepest(netlist: dict[str, Any], boxes: Set[str] = frozenset()) -> tuple[int, tuple[str, ...]]:
    """The levels and the net names of the longest path between registers or ports. netlist: a module of
    Yosys' JSON. boxes: types of black boxes. Raises ValueError for an unknown type of cell and for a
    combinational loop."""
    stops = {*_ENDS, *boxes}
    driver: dict[int, str] = {}  # net -> cell
    for name, cell in netlist["cells"].items():
        if cell["type"] not in (*stops, "CARRY4", *_MUXES, _DSP) and not _is_lut(cell["type"]):
            raise ValueError(f"cell {name} has the type {cell['type']}, which has no known number of levels")
        if cell["type"] not in stops:
            driver.update((bit, name) for bit in _bits(cell, "output"))
    arrival: dict[int, tuple[int, int | None]] = {}  # net -> level, net before
    names = _net_names(netlist)
    for driven in driver:
        _arrive(driven, netlist["cells"], driver, names, arrival)
    ends = [
        (bit, name)
        for name, port in netlist["ports"].items()
        if port["direction"] == "output"
        for bit in port["bits"]
    ]
    for cell in netlist["cells"].values():
        if cell["type"] in stops or cell["type"].startswith(("RAM", "SRL")):
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
    driver: dict[int, str],
    names: dict[int, str],
    arrival: dict[int, tuple[int, int | None]],
) -> None:
    """Fill `arrival` for the net `goal` and all nets on which it depends."""
    stack = [goal]
    under_way: set[int] = set()
    while stack:
        net = stack[-1]
        if net in arrival:
            stack.pop()
            continue
        cell = cells[driver[net]]
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
                raise ValueError(f"net {names.get(net, net)} is part of a combinational loop")
            under_way.add(net)
            stack += missing
            continue
        stack.pop()
        level, before = 0, None
        for bit, port in sources:
            reached = arrival[bit][0] if bit in arrival else 0
            reached += _levels(cell["type"], port, cells.get(driver.get(bit, ""), {}).get("type"))
            if before is None or reached > level:
                level, before = reached, bit
        arrival[net] = max(level, 1), before


def _levels(kind: str, port: str, before: str | None) -> int:
    """The levels that a cell adds to a path. port: input at which the path enters. before: kind of the cell
    before this cell."""
    if kind == _DSP:
        return _DSP_LEVELS
    part_of_lut = kind in _MUXES and port != "S" and (before in _MUXES or (before or "").startswith("LUT"))
    chained = kind == before == "CARRY4" and port == "CI"
    return 0 if part_of_lut or chained else 1


def _bits(cell: dict[str, Any], direction: str) -> list[int]:
    """The nets at the ports of a direction, without constants."""
    return [
        bit
        for port, bits in cell["connections"].items()
        if cell["port_directions"][port] == direction
        for bit in bits
        if isinstance(bit, int)
    ]


def _is_lut(kind: str) -> bool:
    """Whether a cell consists of LUTs: as logic, as a shift register or as a memory."""
    return kind.startswith(("LUT", "INV", "SRL", "RAM")) and not kind.startswith("RAMB")


def _passes(kind: str, port: str) -> bool:
    """Whether a path goes from an input to the outputs. In a memory, it only goes from the address."""
    if kind.startswith("RAM"):
        return bool(re.match(r"ADDR|DPRA|A\d*$", port))
    return not kind.startswith("SRL") or port.startswith("A")


def _net_names(netlist: dict[str, Any]) -> dict[int, str]:
    """The names that the design gives to its nets."""
    names: dict[int, str] = {}
    for name, entry in netlist["netnames"].items():
        if not entry["hide_name"]:
            for k, bit in enumerate(entry["bits"]):
                names[bit] = f"{name}[{k}]" if len(entry["bits"]) > 1 else name
    return names
