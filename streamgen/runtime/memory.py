"""The model of one HBM pseudo-channel, to which every figure of performance refers.

Each AXI master owns one channel of 512 MiB. The C++ model (`memory.h`) and the Python one (`sim.memory`)
follow the same laws and give equal cycles on one trace:

1. All pins that the memory drives are registers. One cycle is: sample the master's pins, then, in this
   order: count every gap down; drop the R beat and the B response that were taken; queue the accepted AR,
   AW and W; add credit; serve; present a B; compute the three `ready`.
2. Credit: `rate` = n/d beats a cycle, shared by reads and writes. A cycle adds n, up to at most n + d; a
   beat costs d. At most one R and one W beat a cycle; when both want one, they take turns.
3. A read burst is served in order once its time has come: a burst accepted in cycle t shows its first beat
   in cycle t + `latency` at the earliest. The next beat is shown when the one before was taken.
4. A W beat waits in a queue of 64 and is served in order, when its address is known. The response
   of a burst whose last beat was served in cycle t shows in cycle t + `latency` at the earliest, in order.
5. At most `outstanding` read and as many write addresses wait; then `arready`, `awready` are low.
6. An address outside the buffers of the channel answers DECERR, an injected error SLVERR; a burst answers
   its worst beat. Reads return what is in memory when the beat is served.
7. `delays` = D > 0 adds to the n-th address, response, or gap before the next ready or beat a random number
   of cycles up to D, a pure function of (`seed`, channel, kind, n): see `sim.memory.Channel.delay`.
8. Bursts are INCR, of full width, aligned, at most 64 beats, never across 4 KiB; WLAST marks the
   last beat; what is valid stays, unchanged, until it is taken. A breach ends the run with an error.
"""

from dataclasses import dataclass
from fractions import Fraction

from streamgen.boards import DEFAULT_BOARD
from streamgen.manifest import MemoryTiming

__all__ = ["MemoryModel"]

_HBM = DEFAULT_BOARD.hbm
_RATE = _HBM.beats_per_cycle(DEFAULT_BOARD.clock_mhz)


@dataclass(frozen=True, kw_only=True)
class MemoryModel:
    """Rate in beats of 64 bytes a cycle, latency in cycles; `delays` > 0 adds random cycles."""

    rate: Fraction = _RATE
    latency: int = _HBM.latency
    outstanding: int = 32
    delays: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        rate = Fraction(self.rate)
        object.__setattr__(self, "rate", rate)
        if not (0 < rate <= 1 and rate.denominator < 2**31):
            raise ValueError(f"rate is {rate} beats a cycle; more than 0 and at most 1 are allowed")
        for name, low in (("latency", 1), ("outstanding", 1), ("delays", 0), ("seed", 0)):
            value = getattr(self, name)
            if not low <= value < 2**31:
                raise ValueError(f"{name} is {value}; {low} to 2147483647 are allowed")

    @classmethod
    def of(cls, timing: MemoryTiming, **choices: int) -> "MemoryModel":
        """The channel that a manifest describes."""
        return cls(rate=Fraction(timing.beats, timing.cycles), latency=timing.latency, **choices)
