"""Charts of a page as plain values, which the macros of page.html draw in HTML.

Sizes are percentages, so that a chart fits any width and text keeps its size. Colours are names of classes in
page.css, which has them for light and dark screens.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from streamgen.artifact.packing import BEAT_BYTES
from streamgen.base.wording import counted
from streamgen.model.graph.plan import Tried
from streamgen.observe.alike import gathered, named
from streamgen.observe.estimate import PassEstimate, PhaseEstimate
from streamgen.observe.profile import KernelProfile, PassProfile, PhaseProfile
from streamgen.observe.report import FifoReport
from streamgen.observe.study import StudyReport, TrialReport, figure
from streamgen.observe.view import GroupView

Pass = PassEstimate | PassProfile
Phase = PhaseEstimate | PhaseProfile

COLOURS = ("c0", "c1", "c2", "c3", "c4")
SHAPES = ("circle", "square", "diamond")
MOST_FIFOS = 25  # rows of a chart; the table has all


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What all charts have. kind: name of the macro that draws it. alt: its content in words. legend: class
    and name of each colour."""

    kind: str
    title: str
    alt: str
    legend: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, kw_only=True)
class Bar:
    """share, inner: length of the bar and of the filled part in it, in per cent of the longest."""

    colour: str
    share: float
    text: str
    inner: float | None = None


@dataclass(frozen=True, kw_only=True)
class Bars(Chart):
    """Rows of horizontal bars. rows: label and bars."""

    kind: str = "bars"
    rows: Sequence[tuple[str, Sequence[Bar]]]


@dataclass(frozen=True, kw_only=True)
class Heat(Chart):
    """A table of percentages. rows: label, and for each column the value and its text."""

    kind: str = "heat"
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[tuple[float, str]]]]


@dataclass(frozen=True, kw_only=True)
class Spot:
    """x, y: place in per cent from the lower left corner. size: pixels."""

    colour: str
    shape: str
    x: float
    y: float
    size: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Points(Chart):
    """Points, and lines between places (x1, y1, x2, y2). x_ticks, y_ticks: place in per cent, and text."""

    kind: str = "scatter"
    dots: Sequence[Spot]
    lines: Sequence[tuple[float, float, float, float]] = ()
    dotted: Sequence[tuple[float, float, float, float]] = ()
    x_title: str
    y_title: str
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]


@dataclass(frozen=True, kw_only=True)
class Columns(Chart):
    """Stacked columns. columns: label, text, and for each part its colour and its height in per cent. top:
    text of the upper end of the axis."""

    kind: str = "columns"
    columns: Sequence[tuple[str, str, Sequence[tuple[str, float]]]]
    top: str
    axis: str


class Scale:
    """A logarithmic or linear axis over values. `place` gives per cent."""

    def __init__(self, values: Iterable[float], *, log: bool) -> None:
        known = [value for value in values if not log or value > 0] or [1.0]
        low, high = min(known), max(known)
        self._log = log
        if log:
            self._first, self._last = math.log10(low) - 0.15, math.log10(high) + 0.15
        else:
            room = (high - low or abs(high) or 1.0) * 0.08
            self._first, self._last = low - room, high + room

    def place(self, value: float) -> float:
        """Where a value is, in per cent of the axis. A logarithmic axis has 0 at its lower end."""
        if self._log and value <= 0:
            return 0.0
        at = math.log10(value) if self._log else value
        return round(100 * (at - self._first) / (self._last - self._first), 2)

    def ends(self) -> tuple[float, float]:
        """The values at the ends of the axis."""
        return (10**self._first, 10**self._last) if self._log else (self._first, self._last)

    def ticks(self) -> list[tuple[float, str]]:
        """Places and texts of round values."""
        if self._log:
            decades = range(math.floor(self._first), math.ceil(self._last) + 1)
            digits = (1, 2, 5) if self._last - self._first < 3 else (1,)
            values = [digit * 10.0**decade for decade in decades for digit in digits]
        else:
            step = 10.0 ** math.floor(math.log10((self._last - self._first) / 2))
            while (self._last - self._first) / step > 6:
                step *= 2
            first = math.ceil(self._first / step)
            values = [k * step for k in range(first, math.floor(self._last / step) + 1)]
        return [(at, f"{value:,.10g}") for value in values if 0 <= (at := self.place(value)) <= 100]


def title_of(timed: Pass) -> str:
    """The title of a pass."""
    seen = "measured" if isinstance(timed, PassProfile) else "predicted"
    return f"{counted(timed.tokens, 'token')} at position {timed.position}, {seen}: {timed.cycles:,} cycles"


@dataclass(frozen=True, kw_only=True)
class PhaseWork:
    """A phase beside what it does in its own cycles. moved: bytes that memory moves during them. busy: cycles
    in which the busiest channel moves them. ahead: bytes of the phase that move during other phases."""

    phase: Phase
    moved: float
    busy: float
    ahead: float


def works(timed: Pass, rate: float) -> list[PhaseWork]:
    """The phases of a pass with what they do in their own cycles. rate: bytes per cycle of a channel.

    A measured phase has the bytes that were moved. A predicted phase has at most the bytes that its channels
    can move in its cycles; the others must be read ahead, during earlier phases."""
    found = []
    timed_phases: Sequence[Phase] = timed.phases
    for number, phase in enumerate(timed_phases):
        if isinstance(timed, PassProfile):
            windows = timed.windows
            steps = [step for step, of in enumerate(timed.sections) if of == number]
            inside = np.isin(windows.steps, steps)
            by_channel = BEAT_BYTES * windows.beats[inside].sum(axis=(0, 2)).astype(float)
            moved, most = float(by_channel.sum()), float(by_channel.max(initial=0))
            busy = min(most / rate, phase.cycles)
        else:
            busy = min(phase.memory_cycles, phase.cycles)
            moved = phase.bytes * busy / phase.memory_cycles if phase.memory_cycles else 0.0
        found.append(PhaseWork(phase=phase, moved=moved, busy=busy, ahead=max(0.0, phase.bytes - moved)))
    return found


def phases(timed: Pass, rate: float) -> Bars:
    """Cycles of each phase, and the cycles in which its memory and its multipliers work."""
    most = max(phase.cycles for phase in timed.phases) or 1
    rows = []
    for work in works(timed, rate):
        p = work.phase
        busy = round(work.busy), min(round(p.product_cycles), p.cycles)
        cycles = f"{p.cycles:,} cycles, {100 * p.cycles / max(1, timed.cycles):.0f} %"
        rows.append(
            (
                f"{p.name} × {p.walks}" if p.walks > 1 else p.name,
                [
                    Bar(colour="c0", share=100 * p.cycles / most, text=cycles),
                    *(
                        Bar(colour=colour, share=100 * value / most, text=f"{value:,} {name}")
                        for colour, value, name in zip(
                            ("c1", "c2"), busy, ("memory", "multipliers"), strict=True
                        )
                        if value
                    ),
                ],
            )
        )
    timed_phases: Sequence[Phase] = timed.phases
    longest = max(timed_phases, key=lambda p: p.cycles)
    return Bars(
        title="Cycles by phase",
        alt=f"{counted(len(rows), 'phase')} of {title_of(timed)}. The longest is {longest.name} with "
        f"{100 * longest.cycles / max(1, timed.cycles):.0f} % of the cycles.",
        legend=[("c0", "cycles of all walks"), ("c1", "memory works"), ("c2", "multipliers work")],
        rows=rows,
    )


def kernels(profile: PassProfile) -> Heat:
    """Share of the cycles of each phase in which each kernel is busy."""
    rows = []
    for name, several in gathered_kernels(profile):
        cells = []
        for place, phase in enumerate(profile.phases):
            count = max(1, phase.cycles * len(several))
            busy = 100 * sum(k.busy[place] for k in several) / count
            stalled = 100 * sum(k.stalled[place] for k in several) / count
            cells.append((round(busy, 1), f"{phase.name}: busy {busy:.1f} %, stalled {stalled:.1f} %"))
        rows.append((name, cells))
    return Heat(
        title="Busy kernels by phase",
        alt=f"{title_of(profile)}. Per cent of the cycles of each phase in which each of "
        f"{counted(len(rows), 'kernel')} moves a token. Equal kernels share a row.",
        columns=[phase.name for phase in profile.phases],
        rows=rows,
    )


def gathered_kernels(profile: PassProfile) -> list[tuple[str, list[KernelProfile]]]:
    """The kernels that work in a pass, with their name; equal kernels are together."""
    groups = gathered(profile.kernels, lambda k: k.name, lambda k: k.kind)
    return [
        (named([k.name for k in several]), several)
        for several in groups
        if any(sum(k.busy) + sum(k.stalled) for k in several)
    ]


def roofline(view: GroupView, passes: Sequence[Pass]) -> Points:
    """Products per cycle against products per byte that memory moves, under the limits of both."""
    channels = len({buffer.channel for buffer in view.buffers})
    memory, peak = view.rate * channels, view.multipliers
    points: list[tuple[int, Pass, PhaseWork, float, float]] = []
    for number, timed in enumerate(passes):
        for work in works(timed, view.rate):
            p = work.phase
            if p.products and work.moved and p.cycles:
                products = min(p.products, peak * p.cycles)
                points.append((number, timed, work, products / work.moved, products / p.cycles))
    ridge = peak / memory
    x = Scale([ridge / 3, ridge * 3, *(point[3] for point in points)], log=True)
    y = Scale([peak, peak / 30, *(point[4] for point in points)], log=True)
    first, last = x.ends()
    roof = [
        (x.place(first), y.place(memory * first), x.place(ridge), y.place(peak)),
        (x.place(ridge), y.place(peak), x.place(last), y.place(peak)),
    ]
    looks = [(COLOURS[k % len(COLOURS)], SHAPES[k % len(SHAPES)]) for k in range(len(passes))]
    dots = []
    for number, timed, work, across, up in points:
        share = work.phase.cycles / timed.cycles
        ahead = f", {work.ahead / 1024:,.0f} KiB read ahead" if work.ahead >= BEAT_BYTES else ""
        colour, shape = looks[number]
        text = (
            f"{work.phase.name}: {up:,.4g} products per cycle, {across:,.3g} per byte, "
            f"{100 * up / min(peak, memory * across):.0f} % of the roof, "
            f"{100 * share:.0f} % of the cycles{ahead}"
        )
        dots.append(
            Spot(
                colour=colour,
                shape=shape,
                x=x.place(across),
                y=y.place(up),
                size=round(9 + 24 * share**0.5, 1),
                text=text,
            )
        )
    return Points(
        title="Roofline",
        alt=f"{counted(len(points), 'phase')} under a roof of {memory:.0f} bytes per cycle on "
        f"{counted(channels, 'channel')} and {peak:,} products per cycle. Only bytes that move during a "
        "phase count; weights that were read ahead count in the phase in which they moved.",
        legend=[(" ".join(look), title_of(timed)) for look, timed in zip(looks, passes, strict=True)],
        dots=dots,
        lines=roof,
        x_title="products per byte of memory traffic",
        y_title="products per cycle",
        x_ticks=x.ticks(),
        y_ticks=y.ticks(),
    )


def fifos(reports: Sequence[FifoReport]) -> Bars:
    """Bits of the largest FIFOs, and the most that they held."""
    groups = gathered(reports, lambda f: f.name, lambda f: f.bits)
    groups.sort(key=lambda fs: (-sum(f.bits * f.depth for f in fs), fs[0].name))
    total = sum(f.bits * f.depth for f in reports)
    groups = groups[:MOST_FIFOS]
    most = max((sum(f.bits * f.depth for f in several) for several in groups), default=1)
    ran = any(f.greatest is not None for f in reports)
    rows = []
    for several in groups:
        room = sum(f.bits * f.depth for f in several)
        held = sum(f.bits * (f.greatest or 0) for f in several)
        depth, greatest = max(f.depth for f in several), max(f.greatest or 0 for f in several)
        tokens = f"held {greatest:,} of {depth:,} tokens" if ran else f"depth {depth:,} tokens"
        text = f"{room:,} bits, {tokens}"
        inner = 100 * held / most if ran else None
        rows.append(
            (
                named([f.name for f in several]),
                [Bar(colour="free", share=100 * room / most, text=text, inner=inner)],
            )
        )
    shown = sum(f.bits * f.depth for several in groups for f in several)
    share = f"{100 * shown / total:.0f} % of the" if total else "the"
    filled = " The filled part is the most that the FIFO held." if ran else ""
    return Bars(
        title="FIFOs",
        alt=f"The {len(rows)} largest of {len(reports)} FIFOs, which have {share} {total:,} bits of all "
        f"FIFOs. A bar is the bits of a FIFO: its width times its depth.{filled} Equal FIFOs share a bar.",
        legend=[("free", "room"), ("c0", "most that was held")] if ran else [("free", "room")],
        rows=rows,
    )


ROLES = {"weights": "c0", "resident": "c0", "state": "c1", "spill": "c3", "input": "c2", "output": "c4"}


def memory(view: GroupView) -> Columns:
    """Bytes of each channel by role of the buffer."""
    held: dict[int, dict[str, int]] = {channel: {} for channel in range(view.board.hbm.channels)}
    for buffer in view.buffers:
        by_role = held[buffer.channel]
        by_role[buffer.role] = by_role.get(buffer.role, 0) + buffer.bytes
    most = max((sum(by_role.values()) for by_role in held.values()), default=0) or 1
    total, room = sum(sum(by_role.values()) for by_role in held.values()), view.board.hbm.channel_bytes
    roles = dict.fromkeys(role for by_role in held.values() for role in by_role)
    return Columns(
        title="Memory by channel",
        alt=f"{_bytes(total)} on {sum(map(bool, held.values()))} of {len(held)} channels. The fullest "
        f"channel holds {_bytes(most)}, {100 * most / room:.2g} % of its {_bytes(room)}.",
        legend=[(ROLES.get(role, "other"), "KV cache" if role == "state" else role) for role in roles],
        columns=[
            (
                str(channel),
                f"channel {channel}: {_bytes(sum(by_role.values()))}",
                [(ROLES.get(role, "other"), 100 * count / most) for role, count in by_role.items()],
            )
            for channel, by_role in held.items()
        ],
        top=_bytes(most),
        axis="memory channel",
    )


def bandwidth(view: GroupView, timed: Pass, clock_mhz: float) -> Columns:
    """Mean GB/s of each channel during a pass, beside what the channel can do."""
    peak = view.rate * clock_mhz / 1e3
    columns = []
    sums = {channel: sum(ways) for channel, ways in timed.moved.items()}
    for channel in range(view.board.hbm.channels):
        speeds = [
            count / max(1, timed.cycles) * clock_mhz / 1e3 for count in timed.moved.get(channel, (0, 0))
        ]
        text = f"channel {channel}: {speeds[0]:.2f} GB/s read, {speeds[1]:.2f} GB/s written"
        columns.append((str(channel), text, [("c0", 100 * speeds[0] / peak), ("c1", 100 * speeds[1] / peak)]))
    mean = sum(sums.values()) / max(1, timed.cycles) * clock_mhz / 1e3
    used = sum(map(bool, sums.values()))
    return Columns(
        title="Bandwidth by channel",
        alt=f"{title_of(timed)}. Memory moves {_bytes(sum(sums.values()))}, on average {mean:,.1f} GB/s of "
        f"the {used * peak:,.1f} GB/s that {counted(used, 'channel')} can move: "
        f"{100 * mean / (used * peak or 1):.0f} %.",
        legend=[("c0", "read"), ("c1", "written")],
        columns=columns,
        top=f"{peak:.1f} GB/s",
        axis="memory channel",
    )


def exploration(tried: Sequence[Tried]) -> Points:
    """Designs that the compiler tried: cycles against multipliers, in the order of the search."""
    groups: dict[str, list[Tried]] = {}
    for design in tried:
        groups.setdefault(design.group, []).append(design)
    x = Scale([design.multipliers for design in tried], log=True)
    y = Scale([design.cycles for design in tried], log=True)
    dots, dotted, legend = [], [], []
    for number, (group, designs) in enumerate(groups.items()):
        colour = COLOURS[number % len(COLOURS)]
        legend.append((f"{colour} circle", group))
        places = [(x.place(design.multipliers), y.place(design.cycles)) for design in designs]
        dotted += [(*a, *b) for a, b in pairwise(places)]
        for design, (across, up) in zip(designs, places, strict=True):
            text = f"{design.what}: {design.multipliers:,} multipliers, {design.cycles:,.0f} cycles"
            dots.append(Spot(colour=colour, shape="circle", x=across, y=up, size=10, text=text))
    return Points(
        title="Designs that the compiler tried",
        alt=f"Cycles and multipliers of {counted(len(tried), 'design')} that the compiler tried.",
        legend=legend,
        dots=dots,
        dotted=dotted,
        x_title="multipliers",
        y_title="cycles of the smallest and the largest pass together",
        x_ticks=x.ticks(),
        y_ticks=y.ticks(),
    )


def study(report: StudyReport) -> Points:
    """The trials of a search in its first two objectives. With one objective, in the order of the trials."""
    kinds: list[tuple[str, str, str, list[TrialReport]]] = [
        ("over a budget", "square", "other", [trial for trial in report.trials if trial.state == "over"]),
        (
            "within the budgets",
            "circle",
            "c0",
            [trial for trial in report.trials if trial.state == "kept" and not trial.front],
        ),
        ("front", "diamond", "c1", list(report.front)),
    ]
    alone = len(report.objectives) == 1
    shown = [trial for _, _, _, trials in kinds for trial in trials]
    x = Scale([trial.number if alone else trial.values[1] for trial in shown], log=False)
    y = Scale([trial.values[0] for trial in shown], log=False)
    directions = zip(report.units, report.maximised, strict=True)
    units = [f"{unit}, {'more' if more else 'less'} is better" for unit, more in directions]
    return Points(
        title="Study",
        alt=f"Points: {report}.",
        legend=[(f"{colour} {shape}", name) for name, shape, colour, trials in kinds if trials],
        dots=[
            Spot(
                colour=colour,
                shape=shape,
                x=x.place(trial.number if alone else trial.values[1]),
                y=y.place(trial.values[0]),
                size=13 if name == "front" else 9,
                text=_trial(trial, report),
            )
            for name, shape, colour, trials in kinds
            for trial in trials
        ],
        x_title="trial" if alone else units[1],
        y_title=units[0],
        x_ticks=x.ticks(),
        y_ticks=y.ticks(),
    )


def _trial(trial: TrialReport, report: StudyReport) -> str:
    """The text beside a point."""
    values = [f"{figure(value)} {unit}" for value, unit in zip(trial.values, report.units, strict=True)]
    choice = [f"{name}={value}" for name, value in trial.choice.items()] or ["the compiler's choice"]
    return f"trial {trial.number}: {', '.join(values)}; {', '.join(choice)}"


def _bytes(count: float) -> str:
    """A number of bytes in a unit that leaves few digits."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"
