"""Resets of a top: every block has a register of its own, behind a tree of registers.

A reset passes two registers, then, where blocks lie on several SLRs, as many as the farthest way has, then
the levels of the tree of its SLR: as many for all blocks, and for the control. So all leave reset in the same
cycle, and no register of a tree drives more than FAN_OUT others or one block.
"""

from collections.abc import Mapping, Sequence
from itertools import count

from amaranth import Cat, ClockDomain, Module, Signal, Value

PIN = "pin"  # the clock domain of what no reset of a domain resets
FAN_OUT = 32
SHORTEST_RESET = 16
"""Cycles that `ap_rst_n` must be low at least. A memory that is reset with the kernel must not come back
before the kernel has noticed.
"""
_SYNCHRONISERS = 2
# Synthesis would join equal registers again, or make shift registers of them.
_APART = {"dont_touch": "true", "shreg_extract": "no"}


def levels(blocks: Sequence[int], way: int = 0) -> int:
    """Levels of the trees. blocks: of each SLR. way: registers on the way to the farthest one. ValueError
    when a reset takes SHORTEST_RESET cycles to reach so many blocks."""
    found = next(level for level in count(1) if FAN_OUT**level >= max(blocks))
    if (cycles := _SYNCHRONISERS + way + found) >= SHORTEST_RESET:
        raise ValueError(f"a reset takes {cycles} cycles to reach {sum(blocks)} blocks")
    return found


def registers(blocks: Sequence[int], way: int = 0) -> int:
    """Flip-flops of all of it."""
    depth = levels(blocks, way)
    trees = sum(-(-one // FAN_OUT**level) for one in blocks for level in range(depth))
    return _SYNCHRONISERS + depth + way * (1 + len(blocks)) + trees


def way_name(slr: str, k: int) -> str:
    """The k-th register on the way to an SLR, the nearest to the pin first."""
    return f"reset_way_{slr}_{k}"


def tree_name(slr: str, level: int, k: int) -> str:
    """A register of the tree of an SLR; level 0 drives blocks."""
    return f"reset_{slr}_{level}_{k}"


class Resets:
    """What resets so many blocks of each SLR in the top `m`, and its control; `core_reset` resets the blocks
    alone. way: registers on the way to the farthest SLR."""

    def __init__(
        self,
        m: Module,
        clock: Signal,
        reset_n: Value,
        core_reset: Value,
        blocks: Mapping[str, int],
        way: int = 0,
    ) -> None:
        depth = levels([*blocks.values()], way)
        self._m, self._clock = m, clock
        self._domain(PIN, None)
        asked = Signal(_SYNCHRONISERS, init=-1, attrs=_APART)
        m.d[PIN] += asked.eq(Cat(~reset_n, asked))
        control: Value = asked[-1]
        roots: dict[str, Value] = {slr: asked[-1] | core_reset for slr in blocks}
        for k in range(way):
            control = self._copy(control, way_name("control", k))
            roots = {slr: self._copy(root, way_name(slr, k)) for slr, root in roots.items()}
        for level in reversed(range(depth)):
            control = self._copy(control, f"reset_control_{level}")
        self._leaves = {slr: iter(self._tree(slr, roots[slr], n, depth)) for slr, n in blocks.items()}
        self._domain("sync", control)

    def next(self, slr: str) -> Signal:
        """The reset of one more block on an SLR, whose clock domain is PIN."""
        return next(self._leaves[slr])

    def _tree(self, slr: str, root: Value, blocks: int, depth: int) -> list[Signal]:
        above = [root]
        leaves: list[Signal] = []
        for level in reversed(range(depth)):
            copies = range(-(-blocks // FAN_OUT**level))
            leaves = [self._copy(above[k // FAN_OUT], tree_name(slr, level, k)) for k in copies]
            above = [*leaves]
        return leaves

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
