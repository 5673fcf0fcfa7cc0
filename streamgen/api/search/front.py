"""The results of a search: a table of the front, and a plot of all tried points."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from streamgen.api.search.evaluation import UNITS, Evaluation
from streamgen.base.tables import rendered, table
from streamgen.compiler.config import CompileConfig


def chosen(config: CompileConfig, base: CompileConfig) -> dict[str, object]:
    """The fields of a configuration that differ from a base configuration."""
    names = (field.name for field in fields(CompileConfig))
    return {name: getattr(config, name) for name in names if getattr(config, name) != getattr(base, name)}


def front_table(front: Sequence[Evaluation], base: CompileConfig) -> str:
    """A table with a line for each point of the front: its values, and its differences from the base
    configuration."""
    if not front:
        return "no point keeps all budgets"
    rows = table("chosen", *UNITS.values(), "DSPs")
    for point in front:
        figures = (
            f"{point.tokens_per_second:,.1f}",
            f"{point.first_token_ms:,.3f}",
            f"{point.luts:,.0f}",
            f"{point.joules:,.3g}",
            f"{point.dsps:,.0f}",
        )
        choice = ", ".join(f"{name}={value!r}" for name, value in chosen(point.config, base).items())
        rows.add_row(choice or "as given", *figures)
    exact = "cycles and resources are those of `streamgen estimate`"
    bounds = "cycles are lower bounds, and FIFOs have their least depths"
    kind = exact if all(point.exact for point in front) else bounds
    return rendered([rows, kind])


def plot(
    file: Path,
    objectives: Sequence[str],
    tried: Sequence[Mapping[str, float]],
    front: Sequence[Evaluation],
    base: CompileConfig,
) -> None:
    """Write an HTML page, which needs no network, with all tried points and the front in the first two
    objectives. With a single objective, the other axis is the order of the trials. Raises OSError if the file
    cannot be written."""
    import plotly.graph_objects as graphs

    first, second = objectives[0], objectives[1] if len(objectives) > 1 else None
    figure = graphs.Figure()
    numbers = list(range(1, len(tried) + 1))
    figure.add_scatter(
        x=numbers if second is None else [point[second] for point in tried],
        y=[point[first] for point in tried],
        mode="markers", name="tried (bounds)", marker={"symbol": "circle-open"},
    )  # fmt: skip
    figure.add_scatter(
        x=[numbers[-1] if second is None else point.value(second) for point in front],
        y=[point.value(first) for point in front],
        mode="markers", name="front", marker={"symbol": "diamond", "size": 12},
        text=[", ".join(f"{k}={v!r}" for k, v in chosen(point.config, base).items()) for point in front],
    )  # fmt: skip
    figure.update_xaxes(title="point" if second is None else UNITS[second])
    figure.update_yaxes(title=UNITS[first])
    figure.write_html(str(file), include_plotlyjs=True)
