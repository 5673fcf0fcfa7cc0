"""Spills: which holds go through memory, and where their values lie.

The holds with the most bits go to memory, one after the other, until those left have no more bits than
allowed; the n-th lies on the n-th channel of the engine from the last one down, round and round. Every value
of a run has a place of its own, numbered as the values are written: a walk writes as many as the walk before,
so places grow evenly from walk to walk, and nothing is overwritten that is still to be read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from streamgen.compiler.schedule.phases import Schedule


@dataclass(frozen=True)
class Places:
    """Of the values of a hold: first by phase, in its first walk; step from walk to walk; count in a run."""

    first: Mapping[int, int]
    step: int
    count: int


def chosen(bits: Mapping[str, int], allowed: int) -> tuple[str, ...]:
    """Names of the holds that go to memory. bits: of each on the chip."""
    left, found = sum(bits.values()), []
    for name in sorted(bits, key=lambda name: (-bits[name], name)):
        if left <= allowed:
            break
        left -= bits[name]
        found.append(name)
    return tuple(found)


def places(found: Schedule, phases: Iterable[int]) -> Places | None:
    """The places of the values that these phases write, or read; None where they do not grow evenly from
    walk to walk, as those of several sections that are walked."""
    wanted, count = set(phases), 0
    numbers: dict[int, list[int]] = {}
    for section in found.sections:
        for _ in range(section.walks):
            for phase in (one.number for one in section.phases if one.number in wanted):
                numbers.setdefault(phase, []).append(count)
                count += 1
    steps = {b - a for several in numbers.values() for a, b in pairwise(several)}
    if len(steps) > 1:
        return None
    first = {phase: several[0] for phase, several in numbers.items()}
    return Places(first, max(steps, default=0), count)
