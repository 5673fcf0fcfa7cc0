"""The model of an HBM pseudo-channel. All performance figures refer to it.

Each AXI master owns one channel of 512 MiB. The C++ model (`memory.h`) and the Python one (`sim.memory`)
follow the same laws and give the same cycles on the same trace:

1. All pins that the memory drives are registers. In each cycle the memory samples the pins of the master and
   then, in this order: counts down every gap; drops the R beat and the B response that were taken; queues the
   accepted AR, AW and W; adds credit; serves; presents a B response; computes the three `ready` signals.
2. Credit: reads and writes share `rate` = n/d beats a cycle. A cycle adds n, up to a total of n + d; a beat
   costs d. A cycle serves at most one R and one W beat. If both are waiting, they take turns.
3. Read bursts are served in order. A burst that is accepted in cycle t shows its first beat in cycle t +
   `latency` at the earliest. The next beat is shown after the beat before it was taken.
4. W beats wait in a queue of 64. They are served in order, after their address is known. If the last beat of
   a burst is served in cycle t, its response shows in cycle t + `latency` at the earliest. Responses keep the
   order of bursts.
5. At most `outstanding` read addresses and as many write addresses wait. At this limit, `arready` or
   `awready` is low.
6. An address outside the buffers of the channel answers DECERR. A beat with an injected `Fault` answers as
   the fault says. The response of a written burst is that of its worst beat. Reads return the content of
   memory at the time when the beat is served. A late fault delays a read beat, or the response of a written
   burst, by its cycles. A response that never comes is lost, and so are all responses behind it in order.
7. `delays` = D > 0 adds a random number of cycles, at most D, to the n-th address, the n-th response, and the
   n-th gap before the next ready or beat. The number is a pure function of (`seed`, channel, kind, n): see
   `sim.memory.Channel.delay`.
8. Bursts are INCR, aligned, of full width and at most 64 beats, and never cross a 4 KiB boundary. WLAST marks
   the last beat. A valid beat stays unchanged until it is taken. A breach of these rules ends the run with an
   error.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, get_args

from streamgen.artifact.manifest import MemoryTiming

_LOST = 2**64 - 1  # delay in cycles of a response that never comes
_Kind = Literal["SLVERR", "DECERR", "late", "never"]


@dataclass(frozen=True, kw_only=True)
class MemoryModel:
    """Parameters of the memory model.

    rate: beats of 64 bytes a cycle, above 0 and at most 1. latency: cycles. None stands for the value of the
    design's board. outstanding: the most addresses that wait. delays: the most random cycles that are added;
    0 for none. seed: seed of the random cycles. Raises ValueError for values out of range.
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
        """This model, with the rate and the latency of a manifest in place of None."""
        rate = Fraction(timing.beats, timing.cycles) if self.rate is None else self.rate
        return replace(self, rate=rate, latency=self.latency or timing.latency)


@dataclass(frozen=True)
class Fault:
    """A fault of a beat. kind: "SLVERR" or "DECERR" for an error response; "late" for a response that comes
    `cycles` cycles late; "never" for a response that never comes. reads, writes: whether it affects reads and
    writes. Raises ValueError for any other kind, and for cycles that do not match the kind."""

    kind: _Kind
    cycles: int = 0
    reads: bool = True
    writes: bool = True

    def __post_init__(self) -> None:
        if self.kind not in get_args(_Kind):
            raise ValueError(f"kind of a fault is {self.kind!r}; {', '.join(get_args(_Kind))} are allowed")
        if (self.kind == "late") != (self.cycles > 0) or not 0 <= self.cycles < 2**31:
            raise ValueError(
                f"cycles of a fault {self.kind!r} are {self.cycles}; a late fault needs 1 or more, others "
                "take 0"
            )
        if not (self.reads or self.writes):
            raise ValueError("a fault must affect reads or writes")

    @property
    def response(self) -> int:
        """The code of its AXI response."""
        return {"SLVERR": 2, "DECERR": 3}.get(self.kind, 0)

    @property
    def delay(self) -> int:
        """Cycles by which the response is late; 2^64 - 1 if it never comes."""
        return _LOST if self.kind == "never" else self.cycles
