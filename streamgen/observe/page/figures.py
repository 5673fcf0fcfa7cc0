"""The figures at the top of a page: the result in a sentence, and a tile for each kind of pass."""

from collections.abc import Sequence
from dataclasses import dataclass

from streamgen.base.wording import counted
from streamgen.observe.page.charts import Pass, title_of
from streamgen.observe.profile import PassProfile
from streamgen.observe.report import Report
from streamgen.observe.view import GroupView, RunPass, by_tokens, shown


@dataclass(frozen=True, kw_only=True)
class Tile:
    """title, speed in tokens per second, and the text below it."""

    title: str
    speed: str
    text: str


def result(report: Report, views: Sequence[GroupView]) -> str:
    """What the accelerator does, in words."""
    totals = [_alike(view) for view in views]
    clock = report.clock_mhz
    if all(ran for ran, _ in totals):
        runs = [passes for _, passes in totals]
        tokens, cycles = sum(p.tokens for p in runs[0]), sum(p.cycles for passes in runs for p in passes)
        how = f"in {counted(len(runs[0]), 'pass', 'passes')} of the last run, measured"
    else:
        largest = [max(view.predicted, key=lambda p: p.tokens) for view in views]
        tokens, cycles = largest[0].tokens, sum(p.cycles for p in largest)
        how = "in one pass, predicted"
    seconds = cycles / (clock * 1e6)
    shares = [
        max(
            100 * getattr(group.resources.total, name) / getattr(group.resources.available, name)
            for group in report.groups
        )
        for name in ("lut", "dsp")
    ]
    return (
        f"{counted(tokens, 'token')} {'takes' if tokens == 1 else 'take'} {_time(seconds)}, which is "
        f"{tokens / seconds:,.0f} tokens per second ({cycles:,} cycles at {clock:g} MHz {how}). The design "
        f"takes {shares[0]:.0f} % of the LUTs and {shares[1]:.0f} % of the DSPs of a {views[0].board.name}."
    )


def passes_of(view: GroupView) -> list[tuple[str, Pass]]:
    """The passes that have charts, each with its title: passes of the last run, then predicted ones."""
    passes: list[tuple[str, Pass]] = [(title_of(timed), timed) for timed in shown(view.measured)]
    for run, expected in view.expected:
        tokens = counted(run.tokens, "token")
        title = f"{tokens} at position {run.position}, measured: {run.cycles:,} cycles; phases are predicted"
        passes.append((title, expected))
    return [*passes, *((title_of(timed), timed) for timed in view.predicted)]


def tiles(view: GroupView, clock_mhz: float) -> list[Tile]:
    """A tile for each number of tokens of measured passes, and one for each predicted pass."""
    ran, passes = _alike(view)
    found = []
    if ran:
        for same in by_tokens(passes):
            tokens, cycles = sum(p.tokens for p in same), sum(p.cycles for p in same)
            first, last = same[0].position, same[-1].position
            where = f"position {first}" if first == last else f"positions {first} to {last}"
            several = f"{len(same)} passes of " if len(same) > 1 else ""
            title = f"{several}{counted(same[0].tokens, 'token')} at {where}, measured"
            found.append(_tile(title, tokens, cycles, clock_mhz))
    for one in view.predicted:
        title = f"{counted(one.tokens, 'token')} at position {one.position}, predicted"
        found.append(_tile(title, one.tokens, one.cycles, clock_mhz))
    return found


def _alike(view: GroupView) -> tuple[bool, Sequence[PassProfile | RunPass]]:
    """Whether the group has run, and the passes of the last run."""
    passes: Sequence[PassProfile | RunPass] = view.measured or view.runs
    return bool(passes), passes


def _tile(title: str, tokens: int, cycles: int, clock_mhz: float) -> Tile:
    seconds = cycles / (clock_mhz * 1e6)
    return Tile(title=title, speed=f"{tokens / seconds:,.0f}", text=f"{cycles:,} cycles, {_time(seconds)}")


def _time(seconds: float) -> str:
    """A time in a unit that leaves few digits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:,.2f} {unit}"
    return f"{seconds * 1e6:,.1f} µs"
