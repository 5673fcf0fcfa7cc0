"""Resets of a top: every block has a register of its own, behind a tree of registers.

A reset passes two registers, then the levels of the tree: as many for all blocks, and for the control. So all
leave reset in the same cycle, and no register of the tree drives more than FAN_OUT others or one block.
"""

from itertools import count

from amaranth import Cat, ClockDomain, Module, Signal, Value

__all__ = ["FAN_OUT", "PIN", "SHORTEST_RESET", "Resets", "levels", "registers"]

PIN = "pin"  # the clock domain of what no reset of a domain resets
FAN_OUT = 32
SHORTEST_RESET = 8
"""Cycles that `ap_rst_n` must be low at least. A memory that is reset with the kernel must not come back
before the kernel has noticed.
"""
_SYNCHRONISERS = 2
# Synthesis would join equal registers again, or make shift registers of them.
_APART = {"dont_touch": "true", "shreg_extract": "no"}


def levels(blocks: int) -> int:
    """Levels of the tree. ValueError when a reset takes SHORTEST_RESET cycles to reach so many blocks."""
    found = next(level for level in count(1) if FAN_OUT**level >= blocks)
    if _SYNCHRONISERS + found >= SHORTEST_RESET:
        raise ValueError(f"a reset takes {_SYNCHRONISERS + found} cycles to reach {blocks} blocks")
    return found


def registers(blocks: int) -> int:
    """Flip-flops of all of it."""
    depth = levels(blocks)
    return _SYNCHRONISERS + depth + sum(-(-blocks // FAN_OUT**level) for level in range(depth))


class Resets:
    """What resets so many blocks of the top `m`, and its control; `core_reset` resets the blocks alone."""

    def __init__(self, m: Module, clock: Signal, reset_n: Value, core_reset: Value, blocks: int) -> None:
        depth = levels(blocks)
        self._m, self._clock, self._taken = m, clock, 0
        self._domain(PIN, None)
        asked = Signal(_SYNCHRONISERS, init=-1, attrs=_APART)
        m.d[PIN] += asked.eq(Cat(~reset_n, asked))
        control, above = asked[-1], [asked[-1] | core_reset]
        for level in reversed(range(depth)):
            copies = -(-blocks // FAN_OUT**level)
            control = self._copy(control, f"reset_control_{level}")
            above = [self._copy(above[k // FAN_OUT], f"reset_{level}_{k}") for k in range(copies)]
        self._leaves = above
        self._domain("sync", control)

    def next(self) -> Signal:
        """The reset of one more block, whose clock domain is PIN."""
        self._taken += 1
        return self._leaves[self._taken - 1]

    def _copy(self, value: Value, name: str) -> Signal:
        register = Signal(init=1, name=name, attrs=_APART)
        self._m.d[PIN] += register.eq(value)
        return register

    def _domain(self, name: str, reset: Value | None) -> None:
        domain = ClockDomain(name, reset_less=reset is None)
        domain.clk = self._clock
        if reset is not None:
            domain.rst = reset
        setattr(self._m.domains, name, domain)
