"""The timeline of a measured pass on a page: its phases, and what kernels and channels do over time.

A track is a curve over the cycles of the pass: the path of an SVG element that is `WIDTH` wide and 100 high.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamgen.artifact.packing import BEAT_BYTES
from streamgen.observe.page.charts import gathered_kernels, title_of
from streamgen.observe.profile import PassProfile

WIDTH = 240


@dataclass(frozen=True, kw_only=True)
class Track:
    """areas: colour and path of each area, the lowest in front."""

    name: str
    text: str
    areas: Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """walks: name and share of the cycles in per cent of each walk of a phase, in order. kernels, channels:
    their tracks. ticks: place in per cent, and text."""

    title: str
    alt: str
    walks: Sequence[tuple[str, float]]
    kernels: Sequence[Track]
    channels: Sequence[Track]
    ticks: Sequence[tuple[float, str]]


def timeline(profile: PassProfile, rate: float, clock_mhz: float) -> Timeline:
    """The timeline of a pass. rate: bytes per cycle of a channel."""
    windows = profile.windows
    ends = np.cumsum(windows.cycles).astype(float)
    total = max(1.0, float(ends[-1]))
    edges = np.linspace(0, total, min(WIDTH, len(ends)) + 1)

    def binned(counts: np.ndarray) -> np.ndarray:
        """Counts of windows, spread evenly over the equal parts of the pass."""
        sums = np.interp(edges, [0.0, *ends], [0.0, *np.cumsum(counts.astype(float))])
        return np.asarray(np.diff(sums) / np.diff(edges))

    places = {kernel.name: k for k, kernel in enumerate(profile.kernels)}
    kernels = []
    for name, several in gathered_kernels(profile):
        nodes = [places[kernel.name] for kernel in several]
        busy = binned(windows.busy[:, nodes].mean(axis=1))
        stalled = binned(windows.stalled[:, nodes].mean(axis=1))
        text = f"busy {100 * _mean(several, 'busy', total):.0f} %"
        if (waits := _mean(several, "stalled", total)) >= 0.005:
            text += f", stalled {100 * waits:.0f} %"
        kernels.append(
            Track(name=name, text=text, areas=[("c1", _path(busy + stalled)), ("c0", _path(busy))])
        )
    channels = []
    for port, channel in enumerate(profile.moved):
        read, written = (binned(BEAT_BYTES * windows.beats[:, port, way] / rate) for way in (0, 1))
        mean = sum(profile.moved[channel]) / total * clock_mhz / 1e3
        text = f"{mean:.1f} of {rate * clock_mhz / 1e3:.1f} GB/s"
        areas = [("c1", _path(read + written)), ("c0", _path(read))]
        channels.append(Track(name=f"channel {channel}", text=text, areas=areas))
    walks = []
    for step, phase in enumerate(profile.sections):
        share = 100 * float(windows.cycles[windows.steps == step].sum()) / total
        if share:
            walks.append((profile.phases[phase].name, round(share, 3)))
    ticks = [(25.0 * part, f"{total * part / 4 / clock_mhz:,.1f} µs") for part in range(5)]
    return Timeline(
        title="Timeline",
        alt=f"{title_of(profile)}, {total / clock_mhz:,.1f} µs from left to right. The height of a track is "
        "the share of cycles in which a kernel is busy or stalled, or the share of its bandwidth that a "
        "channel uses. Equal kernels share a track.",
        walks=walks,
        kernels=kernels,
        channels=channels,
        ticks=ticks,
    )


def _mean(several: Sequence[object], what: str, total: float) -> float:
    return sum(sum(getattr(kernel, what)) for kernel in several) / (total * len(several))


def _path(shares: np.ndarray) -> str:
    """The area below shares of 0 to 1."""
    heights = np.round(100 - 100 * np.clip(shares, 0, 1)).astype(int)
    scale = WIDTH / len(heights)
    parts, before = ["M0 100"], 100
    for place, height in enumerate(heights.tolist()):
        if height != before:
            parts.append(f"H{place * scale:.4g}V{height}")
            before = height
    return "".join([*parts, f"H{WIDTH}V100Z"])
