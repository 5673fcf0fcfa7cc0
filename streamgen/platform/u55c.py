"""The Alveo U55C: what a design may use, and how fast its memory is.

Part xcu55c-fsvh2892-2L-e on platform xilinx_u55c_gen3x16_xdma_3_202210_1. SLR figures are what the
shell leaves. The memory rate is the sustained sequential one (425 GB/s over all channels, measured on
the same memory of the U280), not the 14.375 GB/s a channel of the data sheet.
"""

from dataclasses import dataclass
from fractions import Fraction

from streamgen.cost import Resources
from streamgen.platform.axi import BEAT_BYTES

__all__ = ["U55C", "Board", "Hbm", "Slr"]


@dataclass(frozen=True, kw_only=True)
class Slr:
    """A super logic region and what it offers."""

    name: str
    resources: Resources


@dataclass(frozen=True, kw_only=True)
class Hbm:
    """Pseudo-channels, all at one SLR; channel i begins at i * channel_bytes.

    channel_rate: bytes per second of one channel, sustained. latency: cycles of the kernel clock from
    an address accepted to its first beat, in the model of every performance figure.
    """

    channels: int
    channel_bytes: int
    channel_rate: int
    latency: int
    slr: str

    def beats_per_cycle(self, clock_mhz: float) -> Fraction:
        """512-bit beats a cycle that one channel gives a kernel of this clock, at most 1."""
        if clock_mhz <= 0:
            raise ValueError(f"clock_mhz must be above 0, not {clock_mhz}")
        return min(Fraction(1), Fraction(self.channel_rate) / (BEAT_BYTES * Fraction(clock_mhz) * 10**6))


@dataclass(frozen=True, kw_only=True)
class Board:
    """A card. fill: the share of each SLR that a design may fill; beyond, it is not routed at speed."""

    part: str
    platform: str
    slrs: tuple[Slr, ...]
    hbm: Hbm
    clock_mhz: float
    watts: float
    fill: float

    @property
    def resources(self) -> Resources:
        """What all SLRs offer together."""
        total = Resources(lut=0, ff=0)
        for slr in self.slrs:
            total += slr.resources
        return total


U55C = Board(
    part="xcu55c-fsvh2892-2L-e",
    platform="xilinx_u55c_gen3x16_xdma_3_202210_1",
    slrs=(
        Slr(name="SLR0", resources=Resources(lut=386_000, ff=773_000, bram=600, uram=320, dsp=2664)),
        Slr(name="SLR1", resources=Resources(lut=364_000, ff=729_000, bram=576, uram=320, dsp=2784)),
        Slr(name="SLR2", resources=Resources(lut=381_000, ff=763_000, bram=600, uram=320, dsp=2856)),
    ),
    hbm=Hbm(channels=32, channel_bytes=512 << 20, channel_rate=13_300_000_000, latency=100, slr="SLR0"),
    clock_mhz=300.0,
    watts=150.0,
    fill=0.75,
)
