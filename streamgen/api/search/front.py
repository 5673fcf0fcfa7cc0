"""The results of a search: a table of the front with the command of each point, and a plot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Any

from streamgen.api.search.evaluation import OBJECTIVES, UNITS, Evaluation
from streamgen.base.tables import rendered, table
from streamgen.compiler.config import CompileConfig


@dataclass(frozen=True, kw_only=True)
class FrontPoint:
    """A point of a front. number: in tables and plots. command: the command line that builds it. chosen: the
    fields of its configuration that differ from those of the search."""

    number: int
    evaluation: Evaluation
    command: str
    chosen: Mapping[str, object]

    def __str__(self) -> str:
        """The choice as text."""
        return ", ".join(f"{name}={value}" for name, value in self.chosen.items()) or "the compiler's choice"


def chosen(config: CompileConfig, base: CompileConfig) -> dict[str, object]:
    """The fields of a configuration that differ from a base configuration."""
    names = (field.name for field in fields(CompileConfig))
    return {name: getattr(config, name) for name in names if getattr(config, name) != getattr(base, name)}


def front_table(front: Sequence[FrontPoint]) -> str:
    """A table with a line for each point of the front, and the command of each point below it."""
    if not front:
        return "No point keeps all budgets."
    rows = table("number", *UNITS.values(), "DSPs")
    for point in front:
        found = point.evaluation
        figures = (
            f"{found.tokens_per_second:,.1f}",
            f"{found.first_token_ms:,.3f}",
            f"{found.luts:,.0f}",
            f"{found.joules:,.3g}",
            f"{found.dsps:,.0f}",
        )
        rows.add_row(f"{point.number}", *figures)
    if all(point.evaluation.exact for point in front):
        kind = "Cycles and resources are exact: those of `streamgen estimate`."
    else:
        kind = "Cycles are lower bounds, and FIFOs have their least depths."
    # a command is one line, however narrow the terminal is, so that it can be copied
    commands = [f"{point.number:>3}  {point.command}" for point in front]
    return "\n".join([rendered([rows, kind]), "", "Commands that build these designs, by number:", *commands])


def plot(
    file: Path,
    title: str,
    objectives: Sequence[str],
    tried: Sequence[Mapping[str, float]],
    exact: Sequence[Evaluation],
    front: Sequence[FrontPoint],
) -> None:
    """Write an HTML page, which needs no network, with the first two objectives. Open circles are bounds of
    tried points, filled circles are exact points that another point beats, and diamonds are the front, which
    a line joins. With a single objective, the other axis is the order in which points were tried, and the
    line is the best bound so far. Raises OSError if the file cannot be written."""
    import plotly.graph_objects as graphs

    figure = graphs.Figure()
    first, second = objectives[0], objectives[1] if len(objectives) > 1 else None
    numbers = [*range(1, len(tried) + 1)]
    grey = {"symbol": "circle-open", "color": "gray"}
    figure.add_scatter(
        x=numbers if second is None else [point[second] for point in tried],
        y=[point[first] for point in tried],
        mode="markers", name="tried points (bounds)", marker=grey,
    )  # fmt: skip
    best = [point.evaluation for point in front]
    beaten = [point for point in exact if point not in best]
    if second is not None and beaten:
        figure.add_scatter(
            x=[point.value(second) for point in beaten], y=[point.value(first) for point in beaten],
            mode="markers", name="other points (exact)", marker={"symbol": "circle", "color": "steelblue"},
        )  # fmt: skip
    kind = "exact" if all(point.exact for point in best) else "bounds"
    at: list[float] = [point.value(second) for point in best] if second is not None else numbers[-1:]
    joined: dict[str, Any] = {"mode": "markers+text"}
    if second is not None:  # nothing between two points can be built, so the line has steps
        step = "vh" if OBJECTIVES[second][1] else "hv"
        joined = {"mode": "lines+markers+text", "line": {"shape": step, "color": "crimson"}}
    elif tried:
        better = max if OBJECTIVES[first][1] else min
        figure.add_scatter(
            x=numbers, y=[*accumulate((point[first] for point in tried), better)],
            mode="lines", name="best bound so far", line={"shape": "hv", "color": "gray"},
        )  # fmt: skip
    order = sorted(range(len(at)), key=lambda number: at[number])
    figure.add_scatter(
        x=[at[n] for n in order], y=[best[n].value(first) for n in order],
        text=[f"{front[n].number}" for n in order], textposition="top center",
        hovertext=[f"{front[n].number}: {front[n]}" for n in order],
        name=f"front ({kind})", marker={"symbol": "diamond", "size": 12, "color": "crimson"}, **joined,
    )  # fmt: skip
    figure.update_layout(title=title)
    figure.update_xaxes(title="tried points" if second is None else _axis(second))
    figure.update_yaxes(title=_axis(first))
    figure.write_html(str(file), include_plotlyjs=True)


def _axis(objective: str) -> str:
    better = "more" if OBJECTIVES[objective][1] else "less"
    return f"{UNITS[objective]}; {better} is better"
