"""What a piece of hardware promises: resources, initiation interval, latency, cycles, token times.

All of it is plain numbers. `Cost` is the promise of one kernel, converter, FIFO or DMA for given
bounds; `Curve` says in which cycle each token of a port moves when nothing stalls.

Cycle 0 of a kernel is the cycle in which its descriptor is taken (`i_descriptor` valid and ready).
"""

from dataclasses import dataclass
from functools import reduce

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Resources:
    """FPGA resources; BRAM counts RAMB36 (a RAMB18 is 0.5)."""

    lut: float
    ff: float
    dsp: float = 0
    bram: float = 0
    uram: float = 0

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(
            lut=self.lut + other.lut,
            ff=self.ff + other.ff,
            dsp=self.dsp + other.dsp,
            bram=self.bram + other.bram,
            uram=self.uram + other.uram,
        )

    def __mul__(self, count: float) -> "Resources":
        return Resources(
            lut=self.lut * count,
            ff=self.ff * count,
            dsp=self.dsp * count,
            bram=self.bram * count,
            uram=self.uram * count,
        )

    __rmul__ = __mul__


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The promise of one block for given bounds. There are no defaults: nothing is free by neglect.

    resources: what synthesis finds, within a fifth.
    ii: cycles between tokens on the busiest port in steady state (1.0 = a token each cycle).
    latency: cycles from the first input token taken to the first output token offered.
    cycles: cycles from cycle 0 through the last output transfer, all ports always ready
        (curves' greatest output time + 1).
    """

    resources: Resources
    ii: float
    latency: int
    cycles: int


@dataclass(frozen=True)
class Curve:
    """Transfer cycle of each token of a port, counted from the kernel's cycle 0, nothing stalling.

    A curve is a sequence of pieces. A piece (first, loops) is a nest: loops are (trip, period) pairs,
    outermost first, and the token with loop indices i moves in cycle first + sum(i[l] * period[l]).
    So bursts, rows and panels are exact, and a curve of 10^6 tokens has a few numbers.
    A piece without loops is one token. Cycles never decrease from token to token.
    """

    pieces: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]

    @classmethod
    def nest(cls, first: int, *loops: tuple[int, int]) -> "Curve":
        """A curve of one piece."""
        return cls(((first, tuple(loops)),))

    @classmethod
    def at(cls, cycles: np.ndarray) -> "Curve":
        """The curve of these cycles: a piece for each run of tokens of one distance."""
        steps = np.diff(cycles)
        begins = np.flatnonzero(np.diff(steps, prepend=-1)) if len(steps) else np.zeros(0, np.int64)
        firsts, pieces, at = [*begins.tolist(), len(cycles)], [], 0
        for k, first in enumerate(firsts[:-1]):
            # a run of steps begins at the token before it, unless the run before has that token
            end = min(firsts[k + 1] + 1, len(cycles))
            if (count := end - max(at, first)) > 0:
                begin = max(at, first)
                pieces.append((int(cycles[begin]), ((count, int(steps[first])),)))
                at = end
        if at < len(cycles):
            pieces.append((int(cycles[at]), ((len(cycles) - at, 1),)))
        return cls(tuple(pieces))

    def cycles(self) -> np.ndarray:
        """int64 array: the cycle of each token."""
        if len(self.pieces) > 16 and all(len(loops) == 1 for _, loops in self.pieces):
            return self._runs()
        parts = []
        for first, loops in self.pieces:
            axes = [np.arange(trip, dtype=np.int64) * period for trip, period in loops]
            grid = reduce(lambda a, b: (a[:, None] + b[None, :]).reshape(-1), axes, np.zeros(1, np.int64))
            parts.append(grid + first)
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _runs(self) -> np.ndarray:
        """The same where all pieces have one loop."""
        first = np.array([first for first, _ in self.pieces], np.int64)
        trips, periods = np.array([loops[0] for _, loops in self.pieces], np.int64).T
        begins = np.repeat(np.cumsum(trips) - trips, trips)
        steps = np.arange(int(trips.sum())) - begins
        return np.repeat(first, trips) + steps * np.repeat(periods, trips)
