"""What passes through a FIFO in one run, as plain numbers."""

from dataclasses import dataclass

import numpy as np

ENOUGH = 1 << 30  # a depth that no run fills


@dataclass(frozen=True, eq=False)
class NodeStream:
    """A stream between two nodes; None is the world outside, which always has a token or takes it.

    produced, consumed: integer arrays of equal length, rising, the cycles in which the tokens leave the
    source and enter the target, counted from the node's own start, nothing stalling.
    depth: the tokens that the FIFO is to hold, where that is not left to the schedule. Such a stream may
    close a cycle of nodes. latency: cycles through the FIFO, where it is not that of a queue of its depth.
    sends, takes: `produced` and `consumed` on a clock that leaves out waits, with tokens as near one another
    as the node can move them, where other streams tell what the node waits for when nothing else stalls.
    inside: between parts of one kernel; what a part sends in the same cycle to other nodes goes first.
    way: cycles that a token is on its way to the FIFO, and then its place, once it is free, on the way back.
    """

    source: str | None
    target: str | None
    bits: int
    produced: np.ndarray
    consumed: np.ndarray
    depth: int | None = None
    latency: int | None = None
    sends: np.ndarray | None = None
    takes: np.ndarray | None = None
    inside: bool = False
    way: int = 0

    def __post_init__(self) -> None:
        if self.bits < 1:
            raise ValueError(f"stream {self}: bits must be at least 1, not {self.bits}")
        if self.depth is not None and self.depth < 1:
            raise ValueError(f"stream {self}: depth must be at least 1 or None, not {self.depth}")
        if len(self.produced) != len(self.consumed):
            raise ValueError(
                f"stream {self}: {len(self.produced)} tokens are produced, {len(self.consumed)} consumed"
            )
        for name in ("produced", "consumed"):
            curve = getattr(self, name)
            if len(curve) and curve[0] < 0:
                raise ValueError(f"stream {self}: the curve {name!r} begins in cycle {curve[0]}, before 0")
            if (wrong := np.flatnonzero(np.diff(curve) <= 0)).size:
                k = int(wrong[0])
                raise ValueError(
                    f"stream {self}: the curve {name!r} is not monotone: token {k} moves in cycle "
                    f"{curve[k]}, token {k + 1} in cycle {curve[k + 1]}; one token moves a cycle at most"
                )

    @property
    def clocks(self) -> tuple[np.ndarray, np.ndarray]:
        """The cycles of productions and of consumptions on the clocks of source and target."""
        return (
            self.produced if self.sends is None else self.sends,
            self.consumed if self.takes is None else self.takes,
        )

    def __str__(self) -> str:
        return f"{self.source or 'outside'} -> {self.target or 'outside'}"


@dataclass(frozen=True, eq=False)
class KernelSide:
    """A side of a kernel on a clock of its own.

    cycles: of its moves, nothing stalling from outside. pitch: cycles from a move to the next one when none
    waits for another part; None: those of `cycles`.
    """

    name: str
    cycles: np.ndarray
    pitch: int | None = 1

    @property
    def clock(self) -> np.ndarray:
        """What its clock shows at its moves: it leaves out the waits for other parts."""
        if self.pitch is None or not len(self.cycles):
            return self.cycles
        return self.cycles[0] + self.pitch * np.arange(len(self.cycles))

    def to(
        self,
        target: "KernelSide",
        sent: np.ndarray,
        taken: np.ndarray,
        *,
        depth: int = ENOUGH,
        latency: int = 1,
        after: int = 0,
    ) -> NodeStream:
        """Tokens from some moves to some of another part; after: cycles from a move to its token."""
        return NodeStream(
            *(self.name, target.name, 1, self.cycles[sent] + after, target.cycles[taken], depth, latency),
            sends=self.clock[sent] + after,
            takes=target.clock[taken],
            inside=True,
        )
