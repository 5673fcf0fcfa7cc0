"""Many faults in one Verilog: each does nothing until its number is in a register of the design.

A simulator takes minutes to build and seconds to run, so one has all of them. The number stands in the low
bits of `timeout`, the cycles of the watchdog, which a host writes before each run.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

__all__ = ["BITS", "Mutant", "with_mutants"]

BITS = 10  # of the number of a fault; none is 0
OTHER = {
    "+": "-",
    "-": "+",
    "&": "|",
    "|": "&",
    "^": "|",
    "==": "!=",
    "<": ">=",
    ">": "<=",
    "<<": ">>",
    ">>": "<<",
}
MODULE = re.compile(r"^module (\\\S+|\w+) ?\(.*?^endmodule", re.MULTILINE | re.DOTALL)
BINARY = re.compile(
    r"^  assign ([^=\n]+?) = ([^?;\n]+?) (\+|-|&|\||\^|==|<|>|<<|>>) ([^?;\n]+?);$", re.MULTILINE
)
CHOICE = re.compile(r"^  assign ([^=\n]+?) = ([^?;\n]+?) \? ([^?:{};\n]+?) : ([^?{};\n]+?);$", re.MULTILINE)
INVERSE = re.compile(r"^  assign ([^=\n]+?) = ~ ?([^?;\n]+?);$", re.MULTILINE)
REGISTER = re.compile(  # but what it is after reset, which it also is before
    r"^    (?!if \(rst\))(?:else )?(?:if \([^\n]*?\) )?(\S.*?) <= ([^;\n]+?);$", re.MULTILINE
)


@dataclass(frozen=True)
class Mutant:
    """number: that the register must have. module: of the Verilog. was, now: its line."""

    number: int
    module: str
    was: str
    now: str


def with_mutants(verilog: str, select: str, rng: np.random.Generator, count: int) -> tuple[str, list[Mutant]]:
    """The Verilog with so many faults, of which every block has its share. select: the register, by its name
    from the top."""
    modules = {match[1]: match.span() for match in MODULE.finditer(verilog)}
    places = {name: list(_places(verilog, *span)) for name, span in modules.items()}
    names = [name for name, found in places.items() if found]
    chosen: list[tuple[str, tuple[int, int, str, str]]] = []
    while len(chosen) < count:
        name = names[rng.integers(len(names))]
        if found := places[name]:
            chosen.append((name, found.pop(int(rng.integers(len(found))))))
    chosen.sort(key=lambda one: one[1][0])
    mutants, parts, last = [], [], 0
    for number, (name, (start, end, was, now)) in enumerate(chosen, 1):
        value = f"({select}[{BITS - 1}:0] == {BITS}'d{number}) ? ({now}) : ({was})"
        parts += [verilog[last:start], value]
        mutants.append(Mutant(number, name, was, now))
        last = end
    return "".join([*parts, verilog[last:]]), mutants


def _places(verilog: str, start: int, end: int) -> Iterator[tuple[int, int, str, str]]:
    """Where an expression begins and ends, what it is, and a wrong one."""
    for match in BINARY.finditer(verilog, start, end):
        yield (
            match.start(2),
            match.end(4),
            verilog[match.start(2) : match.end(4)],
            (f"{match[2]} {OTHER[match[3]]} {match[4]}"),
        )
    for match in CHOICE.finditer(verilog, start, end):
        yield (
            match.start(2),
            match.end(4),
            verilog[match.start(2) : match.end(4)],
            (f"{match[2]} ? {match[4]} : {match[3]}"),
        )
    for match in INVERSE.finditer(verilog, start, end):
        yield match.end(1) + 3, match.end(2), verilog[match.end(1) + 3 : match.end(2)], match[2]
    for match in REGISTER.finditer(verilog, start, end):
        if "[" not in match[1]:  # of a memory, which has no value of its own
            yield match.start(2), match.end(2), match[2], match[1]
