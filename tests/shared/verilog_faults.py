"""Faults put into written Verilog: one operator of one module is another."""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from streamgen.gateware.rtl import block_name
from streamgen.model.graph import Graph

__all__ = ["flip_operator", "module_owners"]

OTHER = {"+": "-", "-": "+", "&": "|", "|": "&", "^": "|", "==": "!=", "<": ">="}
MODULE = re.compile(r"^module (\\\S+|\w+) ?\((.*?)^endmodule", re.MULTILINE | re.DOTALL)
INSTANCE = re.compile(r"^  (\\\S+|\w+) +(?:\\\S+|\w+) +\($", re.MULTILINE)
OPERATOR = re.compile(r"^  assign [^\n]*? = [^\n?]*? (\+|-|&|\||\^|==|<) [^\n?]*;$", re.MULTILINE)


def module_owners(verilog: str, graph: Graph) -> Mapping[str, frozenset[str]]:
    """By module, the nodes whose hardware holds it; modules of control, FIFOs and masters are left out."""
    bodies = {match[1]: match[2] for match in MODULE.finditer(verilog)}

    def inside(name: str) -> Iterator[str]:
        yield name
        for child in INSTANCE.findall(bodies[name]):
            if child in bodies:
                yield from inside(child)

    owners: dict[str, set[str]] = {}
    for node in graph.nodes:
        for module in inside(block_name(node.params)):
            owners.setdefault(module, set()).add(node.name)
    return {module: frozenset(nodes) for module, nodes in owners.items()}


def flip_operator(verilog: str, graph: Graph, rng: np.random.Generator) -> tuple[str, frozenset[str], str]:
    """The Verilog with one operator of a random kernel flipped, the nodes that hold it, and the line."""
    owners = module_owners(verilog, graph)
    node = rng.choice(sorted({name for nodes in owners.values() for name in nodes}))
    modules = sorted(module for module, nodes in owners.items() if node in nodes)
    while True:
        module = modules[rng.integers(len(modules))]
        start = verilog.index(f"\nmodule {module}{' ' if module[0] == chr(92) else ''}(") + 1
        end = verilog.index("\nendmodule", start)
        if places := list(OPERATOR.finditer(verilog, start, end)):
            place = places[rng.integers(len(places))]
            changed = verilog[: place.start(1)] + OTHER[place[1]] + verilog[place.end(1) :]
            return changed, owners[module], f"{module}: {place[0].strip()}"
