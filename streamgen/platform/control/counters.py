"""Counters: what each node did and how full each FIFO was, read out as 32-bit words.

Words in order: busy and stalled cycles of node 0, of node 1, …; then for each FIFO its greatest level
(low half) and its last level (high half). They count while `enable` is high, start at 0 after `clear`, and
form one long shift register: `word` is the first, `shift` moves the next one there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, Signature
from amaranth.utils import bits_for

from streamgen.contract.cost import Resources

DEEPEST = (1 << 16) - 1
"""Tokens of the deepest FIFO whose level is counted."""
CounterPort = Signature({"enable": Out(1), "clear": Out(1), "shift": Out(1), "word": In(32)})
"""The side of the one who reads the counters."""


@dataclass(frozen=True, kw_only=True)
class CountersParams:
    """nodes: number of nodes. depths: of the FIFOs, in tokens."""

    nodes: int
    depths: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.nodes < 0:
            raise ValueError(f"nodes of the counters must be at least 0, not {self.nodes}")
        for depth in self.depths:
            if not 1 <= depth <= DEEPEST:
                raise ValueError(f"the depth of a counted FIFO must be 1 to {DEEPEST}, not {depth}")
        if not self.words:
            raise ValueError("counters need at least one node or FIFO")

    @property
    def words(self) -> int:
        """Number of words."""
        return 2 * self.nodes + len(self.depths)

    @property
    def resources(self) -> Resources:
        counted = 2 * self.nodes
        levels = [bits_for(depth) for depth in self.depths]
        # What is shifted through a level's word is as wide as the widest that follows.
        shifted = sum(2 * max(levels[k:]) for k in range(len(levels)))
        last = 0 if levels else 28  # the last word takes in zeros
        return Resources(
            lut=32 * counted + shifted + 1.4 * sum(levels) - last, ff=33 * counted + shifted + sum(levels)
        )

    def build(self) -> "Counters":
        return Counters(self)


class Counters(wiring.Component):
    """`busy`, `stalled`: a bit for each node; `level_k`: tokens in FIFO k."""

    def __init__(self, params: CountersParams) -> None:
        self._params = params
        super().__init__(
            {
                "control": In(CounterPort),
                **({"busy": In(params.nodes), "stalled": In(params.nodes)} if params.nodes else {}),
                **{f"level_{k}": In(bits_for(depth)) for k, depth in enumerate(params.depths)},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        control = self.control
        steps = self._steps(m)
        words = [Signal(32, name=f"word_{k}") for k in range(len(steps))]
        m.d.comb += control.word.eq(words[0])
        for k, (word, step) in enumerate(zip(words, steps, strict=True)):
            with m.If(control.shift):
                m.d.sync += word.eq(words[k + 1] if k + 1 < len(words) else 0)
            with m.Elif(control.enable):
                m.d.sync += word.eq(step(word))
            with m.If(control.clear):
                m.d.sync += word.eq(0)
        return m

    def _steps(self, m: Module) -> Sequence[Any]:
        """For each word the function from its value to the next one."""
        steps: list[Any] = []
        for n in range(self._params.nodes):
            for kind in ("busy", "stalled"):
                now = Signal(name=f"{kind}_{n}")
                m.d.sync += now.eq(getattr(self, kind)[n])
                steps.append(lambda word, now=now: word + now)
        for k, depth in enumerate(self._params.depths):
            level = Signal(bits_for(depth), name=f"level_now_{k}")
            m.d.sync += level.eq(getattr(self, f"level_{k}"))
            steps.append(lambda word, level=level: _watermark(m, word, level))
        return steps


def _watermark(m: Module, word: Any, level: Any) -> Any:
    """As gates: a multiplexer that chose the old value would be found to be an enable of one half."""
    greatest, higher = word[:16], Signal()
    m.d.comb += higher.eq(level > greatest)
    mask = higher.replicate(16)
    return Cat(level & mask | greatest & ~mask, level)
