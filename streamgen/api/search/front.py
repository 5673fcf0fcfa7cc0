"""What a search has found: a table, and a plot with everything that was tried."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from streamgen.api.search.evaluation import UNITS, Evaluation
from streamgen.base.tables import rendered, table
from streamgen.compiler.config import CompileConfig


def chosen(config: CompileConfig, base: CompileConfig) -> dict[str, object]:
    """What a configuration has that another one has not."""
    names = (field.name for field in fields(CompileConfig))
    return {name: getattr(config, name) for name in names if getattr(config, name) != getattr(base, name)}


def front_table(front: Sequence[Evaluation], base: CompileConfig) -> str:
    """A line for each: its figures, and in what it differs from the configuration that was asked for."""
    if not front:
        return "no point keeps all budgets"
    rows = table("chosen", *UNITS.values(), "DSPs")
    for one in front:
        figures = (
            f"{one.tokens_per_second:,.1f}",
            f"{one.first_token_ms:,.3f}",
            f"{one.luts:,.0f}",
            f"{one.joules:,.3g}",
            f"{one.dsps:,.0f}",
        )
        what = ", ".join(f"{name}={value!r}" for name, value in chosen(one.config, base).items())
        rows.add_row(what or "as given", *figures)
    exact = "cycles and resources as `streamgen estimate` has them"
    kind = exact if all(one.exact for one in front) else "bounds of cycles, least FIFOs"
    return rendered([rows, kind])


def plot(
    file: Path,
    objectives: Sequence[str],
    tried: Sequence[Mapping[str, float]],
    front: Sequence[Evaluation],
    base: CompileConfig,
) -> None:
    """A page that needs no network: all points that were tried, and the front, in the first two objectives;
    with a single one, in the order of the trials. OSError when it cannot be written."""
    import plotly.graph_objects as graphs

    first, second = objectives[0], objectives[1] if len(objectives) > 1 else None
    figure = graphs.Figure()
    numbers = list(range(1, len(tried) + 1))
    figure.add_scatter(
        x=numbers if second is None else [one[second] for one in tried],
        y=[one[first] for one in tried],
        mode="markers", name="tried (bounds)", marker={"symbol": "circle-open"},
    )  # fmt: skip
    figure.add_scatter(
        x=[numbers[-1] if second is None else one.value(second) for one in front],
        y=[one.value(first) for one in front],
        mode="markers", name="front", marker={"symbol": "diamond", "size": 12},
        text=[", ".join(f"{k}={v!r}" for k, v in chosen(one.config, base).items()) for one in front],
    )  # fmt: skip
    figure.update_xaxes(title="point" if second is None else UNITS[second])
    figure.update_yaxes(title=UNITS[first])
    figure.write_html(str(file), include_plotlyjs=True)
