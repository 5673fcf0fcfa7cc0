"""Resets of a top: every block has its own reset register behind a tree of registers.

A reset passes two registers. If blocks lie on several SLRs, it then passes as many registers as the longest
way to an SLR has. Then it passes the levels of the tree of its SLR. The number of registers is the same for
all blocks and for the control, so all leave reset in the same cycle. A register of a tree drives at most
FAN_OUT other registers, or one block.
"""

from collections.abc import Mapping, Sequence
from itertools import count

from amaranth import Cat, ClockDomain, Module, Signal, Value

PIN = "pin"  # the clock domain without a reset
FAN_OUT = 32
SHORTEST_RESET = 16
"""Fewest cycles for which `ap_rst_n` must be low. A memory that is reset with the kernel must not leave reset
before the reset has reached the whole kernel.
"""
_SYNCHRONISERS = 2
# Without these attributes synthesis would merge equal registers, or make shift registers of them.
_APART = {"dont_touch": "true", "shreg_extract": "no"}


def levels(blocks: Sequence[int], way: int = 0) -> int:
    """Levels of the trees. blocks: number of blocks on each SLR. way: registers on the way to the farthest
    SLR. Raises ValueError if a reset needs SHORTEST_RESET cycles or more to reach all blocks."""
    depth = next(level for level in count(1) if FAN_OUT**level >= max(blocks))
    if (cycles := _SYNCHRONISERS + way + depth) >= SHORTEST_RESET:
        raise ValueError(
            f"a reset takes {cycles} cycles to reach {sum(blocks)} blocks; it must take fewer than "
            f"{SHORTEST_RESET}"
        )
    return depth


def registers(blocks: Sequence[int], way: int = 0) -> int:
    """Flip-flops of all resets. blocks, way: see `levels`."""
    depth = levels(blocks, way)
    trees = sum(-(-slr_blocks // FAN_OUT**level) for slr_blocks in blocks for level in range(depth))
    return _SYNCHRONISERS + depth + way * (1 + len(blocks)) + trees


def way_name(slr: str, k: int) -> str:
    """Name of the k-th register on the way to an SLR, counted from the pin."""
    return f"reset_way_{slr}_{k}"


def tree_name(slr: str, level: int, k: int) -> str:
    """Name of a register of the tree of an SLR; level 0 drives blocks."""
    return f"reset_{slr}_{level}_{k}"


class Resets:
    """The resets of the blocks and the control of the top `m`. reset_n: resets everything. core_reset: resets
    only the blocks. blocks: number of blocks on each SLR. way: registers on the way to the farthest SLR."""

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
        """The reset of the next block on an SLR; the clock domain of the block is PIN."""
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
