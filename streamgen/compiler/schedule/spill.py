"""Spills: choose the holds that go through memory, and the places of their values.

The largest holds go to memory, one after the other, until the remaining ones have no more bits than allowed.
The n-th spilled hold lies on the n-th channel of the engine, counted from the last one down and starting
again at the last. Every value of a run has its own place; places are numbered in the order of the writes.
Each walk writes the same number of values, so places grow evenly from walk to walk. No value is overwritten
before it is read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from streamgen.compiler.schedule.phases import Schedule


@dataclass(frozen=True)
class Places:
    """The places of the values of a hold. first: place in the first walk of each phase. step: growth from
    walk to walk. count: number of places in a run."""

    first: Mapping[int, int]
    step: int
    count: int


def chosen(bits: Mapping[str, int], allowed: int) -> tuple[str, ...]:
    """Names of the holds that go to memory. bits: bits of each hold on the chip. allowed: limit on the bits
    of all holds on the chip."""
    left, names = sum(bits.values()), []
    for name in sorted(bits, key=lambda name: (-bits[name], name)):
        if left <= allowed:
            break
        left -= bits[name]
        names.append(name)
    return tuple(names)


def places(schedule: Schedule, phases: Iterable[int]) -> Places | None:
    """The places of the values that these phases write or read. None if they do not grow evenly from walk to
    walk, as for phases of several sections that are walked more than once."""
    wanted, count = set(phases), 0
    numbers: dict[int, list[int]] = {}
    for section in schedule.sections:
        for _ in range(section.walks):
            for phase in (p.number for p in section.phases if p.number in wanted):
                numbers.setdefault(phase, []).append(count)
                count += 1
    steps = {b - a for several in numbers.values() for a, b in pairwise(several)}
    if len(steps) > 1:
        return None
    first = {phase: several[0] for phase, several in numbers.items()}
    return Places(first, max(steps, default=0), count)
