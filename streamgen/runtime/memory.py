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
6. An address outside the buffers of the channel answers DECERR, an injected `Fault` what it says; a burst
   that is written answers its worst beat. Reads return what is in memory when the beat is served. A late beat
   that is read is shown so many cycles after it would have been, and one that is written makes the response
   of its burst so much later; what is never shown is lost, and so is what comes behind it in order.
7. `delays` = D > 0 adds to the n-th address, response, or gap before the next ready or beat a random number
   of cycles up to D, a pure function of (`seed`, channel, kind, n): see `sim.memory.Channel.delay`.
8. Bursts are INCR, of full width, aligned, at most 64 beats, never across 4 KiB; WLAST marks the
   last beat; what is valid stays, unchanged, until it is taken. A breach ends the run with an error.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, get_args

from streamgen.artifact.manifest import MemoryTiming

_LOST = 2**64 - 1  # cycles, of a response that never comes
_Kind = Literal["SLVERR", "DECERR", "late", "never"]


@dataclass(frozen=True, kw_only=True)
class MemoryModel:
    """Rate in beats of 64 bytes a cycle, latency in cycles: None is the value of the design's board.
    `delays` > 0 adds random cycles.
    """

    rate: Fraction | None = None
    latency: int | None = None
    outstanding: int = 32
    delays: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rate is not None:
            rate = Fraction(self.rate)
            object.__setattr__(self, "rate", rate)
            if not (0 < rate <= 1 and rate.denominator < 2**31):
                raise ValueError(f"rate is {rate} beats a cycle; more than 0 and at most 1 are allowed")
        for name, low in (("latency", 1), ("outstanding", 1), ("delays", 0), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and not low <= value < 2**31:
                raise ValueError(f"{name} is {value}; {low} to 2147483647 are allowed")

    def on(self, timing: MemoryTiming) -> "MemoryModel":
        """This model with the rate and the latency of a manifest where it has none."""
        rate = Fraction(timing.beats, timing.cycles) if self.rate is None else self.rate
        return replace(self, rate=rate, latency=self.latency or timing.latency)


@dataclass(frozen=True)
class Fault:
    """What goes wrong with a beat: it answers SLVERR or DECERR, comes `cycles` "late", or "never". reads,
    writes: which accesses it meets."""

    kind: _Kind
    cycles: int = 0
    reads: bool = True
    writes: bool = True

    def __post_init__(self) -> None:
        if self.kind not in get_args(_Kind):
            raise ValueError(f"kind of a fault is {self.kind!r}; {', '.join(get_args(_Kind))} are allowed")
        if (self.kind == "late") != (self.cycles > 0) or not 0 <= self.cycles < 2**31:
            raise ValueError(f"{self.cycles} cycles of a fault {self.kind!r}; only one that is late has some")
        if not (self.reads or self.writes):
            raise ValueError("a fault that meets neither reads nor writes is none")

    @property
    def response(self) -> int:
        """Of the beat, as AXI writes it."""
        return {"SLVERR": 2, "DECERR": 3}.get(self.kind, 0)

    @property
    def delay(self) -> int:
        """Cycles that the response is late; 2^64 - 1 for ever."""
        return _LOST if self.kind == "never" else self.cycles
