"""Single bits that turn over, in one Verilog: each does so in a cycle of a run, when its number is told.

That is between two edges of the clock, so whatever reads the bit sees it, until it is written again.

As with `verilog_mutants`, one simulator has all of them, and what is told stands in `timeout`, the cycles of
the watchdog, which a host writes before each run.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

__all__ = ["COUNTED", "Flip", "with_flips"]

COUNTED = 4  # the bit of the counted cycles that is turned over to see that something is
NUMBER, CYCLE = 8, 9  # bits of `timeout`: of the number and of the cycle; the one above is always high
MODULE = re.compile(r"^module (\\\S+|\w+) ?\((.*?)^endmodule", re.MULTILINE | re.DOTALL)
INSTANCE = re.compile(r"^  (\\\S+|\w+) +(\\\S+|\w+) +\($", re.MULTILINE)
STATE = re.compile(r"^  reg (?:\[(\d+):0\] )?(\\\S+|\w+) ?(?: = [^;]+| \[(\d+):0\])?;$", re.MULTILINE)


@dataclass(frozen=True)
class Flip:
    """number: from 1. place: the register or the word of memory, by its name from the top. bit: of it."""

    number: int
    place: str
    bit: int

    def timeout(self, cycle: int) -> int:
        """What to write there so that it happens in this cycle of the run, 0 to 511."""
        return 1 << NUMBER + CYCLE | cycle << NUMBER | self.number


def with_flips(verilog: str, top: str, rng: np.random.Generator, count: int) -> tuple[str, list[Flip]]:
    """The Verilog with so many flips, at most 254; every instance of a block has the same share of them,
    whether it holds a wide word or a single bit. Behind them one of `COUNTED`."""
    bodies = {match[1]: match[2] for match in MODULE.finditer(verilog)}
    instances = [
        (path, found) for path, name in _inside(bodies, top, top) if (found := _states(bodies[name]))
    ]
    flips, lines = [], []
    for number in range(1, count + 1):
        path, states = instances[rng.integers(len(instances))]
        name, bits, words = states[rng.integers(len(states))]
        bit = int(rng.integers(bits))
        place = f"{path}.{name}" + (f"[{rng.integers(words)}]" if words else "")
        target = f"{place}[{bit}]" if bits > 1 or words else place
        flips.append(Flip(number, place, bit))
        lines.append(f"        {number}: {target} <= ~{target};\n")
    control = f"{top}.control"
    known = f"{control}.cycles"
    flips.append(Flip(count + 1, known, COUNTED))
    lines.append(f"        {count + 1}: {known}[{COUNTED}] <= ~{known}[{COUNTED}];\n")
    told = f"{control}.timeout"
    block = (
        f"  always @(negedge ap_clk)\n"
        f"    if ({told}[{NUMBER + CYCLE}] && {control}.cycles == {told}[{NUMBER + CYCLE - 1}:{NUMBER}])\n"
        f"      case ({told}[{NUMBER - 1}:0])\n{''.join(lines)}      endcase\n"
    )
    (match,) = (one for one in MODULE.finditer(verilog) if one[1] == top)
    end = match.end(2)
    return verilog[:end] + block + verilog[end:], flips


def _inside(bodies: dict[str, str], path: str, name: str) -> Iterator[tuple[str, str]]:
    """All instances in a module: their names from the top, and their modules."""
    yield path, name
    for module, instance in INSTANCE.findall(bodies[name]):
        if module in bodies:
            yield from _inside(bodies, f"{path}.{_spaced(instance)}", module)


def _states(body: str) -> list[tuple[str, int, int]]:
    """Registers and memories that are written: name, bits, and words, 0 of a register."""
    return [
        (_spaced(name), int(high or 0) + 1, int(last) + 1 if last else 0)
        for high, name, last in STATE.findall(body)
        if re.search(rf"^ +([^\n;]*\) )?{re.escape(name)} ?(\[[^\]]*\])* <=", body, re.MULTILINE)
    ]


def _spaced(name: str) -> str:
    """An escaped name ends at a space."""
    return f"{name} " if name.startswith("\\") else name
