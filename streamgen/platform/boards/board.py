"""A board: its regions, its memory, its fabric."""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from streamgen.artifact.packing import BEAT_BYTES
from streamgen.contract.cost import Resources
from streamgen.gateware.fabric import Fabric

_MOST_CYCLES = 1 << 20  # of the rate of a channel, as a fraction


class Channel(NamedTuple):
    """A memory channel as kernels of one clock meet it: beats of 512 bits a cycle, and cycles from an address
    accepted to its first beat."""

    rate: float
    latency: int


@dataclass(frozen=True, kw_only=True)
class Slr:
    """A super logic region and what it offers."""

    name: str
    resources: Resources


@dataclass(frozen=True, kw_only=True)
class Hbm:
    """Pseudo-channels, all at one SLR; channel i begins at i * channel_bytes.

    channel_rate: bytes per second of one channel, sustained. latency: cycles of the kernel clock from
    an address accepted to its first beat, in the model of every performance figure. data_sheet: bytes per
    second of all channels in the card's data sheet, to which papers refer; None if unknown.

    Raises ValueError for numbers below 1.
    """

    channels: int
    channel_bytes: int
    channel_rate: int
    latency: int
    slr: str
    data_sheet: float | None = None

    def __post_init__(self) -> None:
        for name in ("channels", "channel_bytes", "channel_rate", "latency"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} of the memory of a board must be at least 1, not {value}")

    @property
    def rate(self) -> float:
        """Bytes per second of all channels, sustained."""
        return float(self.channels * self.channel_rate)

    def beats_per_cycle(self, clock_mhz: float) -> Fraction:
        """512-bit beats a cycle that one channel gives a kernel of this clock, at most 1; to a millionth,
        since predictions count in its denominator."""
        if clock_mhz <= 0:
            raise ValueError(f"clock_mhz must be above 0, not {clock_mhz}")
        rate = Fraction(self.channel_rate) / (BEAT_BYTES * Fraction(clock_mhz) * 10**6)
        return min(Fraction(1), rate.limit_denominator(_MOST_CYCLES))


@dataclass(frozen=True, kw_only=True)
class Shell:
    """The vendor's logic on a card, to which v++ links kernels.

    platform: its name. tools: the oldest release of Vivado and Vitis that knows the platform, like "2022.1";
    ValueError for a text of another form.
    """

    platform: str
    tools: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\d{4}\.\d", self.tools):
            raise ValueError(
                f"tools of the shell {self.platform!r} is {self.tools!r}; a release is like 2022.1"
            )


@dataclass(frozen=True, kw_only=True)
class Board:
    """A card. name: as the command line and reports call it. shell: what kernels are linked to; None: the
    card is for estimates, compilation and simulation, not for packages. slrs: what designs may use of each,
    in order. wires: between two that are neighbours. clock_mhz: of kernels, unless asked otherwise. fill: the
    share of each SLR that a design may fill; beyond, it is not routed at speed. wires_fill: the same of the
    wires."""

    name: str
    part: str
    shell: Shell | None
    fabric: Fabric
    slrs: tuple[Slr, ...]
    wires: int
    hbm: Hbm
    clock_mhz: float
    watts: float
    fill: float
    wires_fill: float

    def __post_init__(self) -> None:
        names = [slr.name for slr in self.slrs]
        if not isinstance(self.hbm, Hbm):
            raise ValueError(f"board {self.name!r} has no memory (hbm); designs read their weights from it")
        if self.hbm.slr not in names:
            raise ValueError(
                f"the memory of board {self.name!r} lies at {self.hbm.slr}; its SLRs are {names}"
            )
        for name in ("fill", "wires_fill"):
            if not 0 < (share := getattr(self, name)) <= 1:
                raise ValueError(f"{name} of board {self.name!r} must be above 0 and at most 1, not {share}")

    @property
    def home(self) -> Slr:
        """The SLR at the memory."""
        return next(slr for slr in self.slrs if slr.name == self.hbm.slr)

    @property
    def resources(self) -> Resources:
        """What all SLRs offer together."""
        total = Resources(lut=0, ff=0)
        for slr in self.slrs:
            total += slr.resources
        return total

    @property
    def room(self) -> float:
        """Wires between two neighbouring SLRs that a design may use."""
        return self.wires * self.wires_fill

    @property
    def memory_bits(self) -> int:
        """Bits of its block and ultra RAMs."""
        offered = self.resources
        return int(offered.bram * self.fabric.bram_bits + offered.uram * self.fabric.uram_bits)

    def channel(self, clock_mhz: float | None = None) -> Channel:
        """A memory channel at a clock; None is the board's."""
        return Channel(float(self.hbm.beats_per_cycle(clock_mhz or self.clock_mhz)), self.hbm.latency)
