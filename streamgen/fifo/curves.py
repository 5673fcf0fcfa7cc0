"""What passes through a FIFO in one run, as plain numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

__all__ = ["ENOUGH", "Parts", "Stream", "parts_of"]

ENOUGH = 1 << 30  # a depth that no run fills


@dataclass(frozen=True, eq=False)
class Stream:
    """A stream between two nodes; None is the world outside, which always has a token or takes it.

    produced, consumed: integer arrays of equal length, rising, the cycles in which the tokens leave the
    source and enter the target, counted from the node's own start, nothing stalling.
    depth: the tokens that the FIFO is to hold, where that is not left to the schedule. Such a stream may
    close a cycle of nodes. latency: cycles through the FIFO, where it is not that of a queue of its depth.
    """

    source: str | None
    target: str | None
    bits: int
    produced: np.ndarray
    consumed: np.ndarray
    depth: int | None = None
    latency: int | None = None

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

    def __str__(self) -> str:
        return f"{self.source or 'outside'} -> {self.target or 'outside'}"


@dataclass(frozen=True, eq=False)
class Parts:
    """A kernel whose sides run on clocks of their own, as nodes of a run.

    names: of the parts, in topological order. ports: the part that each port belongs to. streams: between the
    parts, with depth and latency, the same number in every run.
    """

    names: tuple[str, ...]
    ports: Mapping[str, str]
    streams: tuple[Stream, ...]


def parts_of(name: str, params: Any, bounds: Any) -> Parts:
    """The parts of node `name`: those that `params.parts(bounds)` tells, where there is such a method."""
    parts = params.parts(bounds) if hasattr(params, "parts") else None
    if parts is None:
        return Parts((name,), {}, ())
    return Parts(
        tuple(f"{name}.{part}" for part in parts.names),
        {port: f"{name}.{part}" for port, part in parts.ports.items()},
        tuple(replace(s, source=f"{name}.{s.source}", target=f"{name}.{s.target}") for s in parts.streams),
    )
