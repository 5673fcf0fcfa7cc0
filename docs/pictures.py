"""Pictures of the numbers: the tables of numbers.md as bars, so that no figure stands in two places."""

import re
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

__all__ = ["draw", "tables"]

PICTURE = re.compile(r"<!-- picture: (\w+) -->\n\n((?:\|[^\n]*\n)+)")


def tables(
    text: str,
) -> dict[str, tuple[list[str], list[tuple[str, list[float]]]]]:
    """The tables that have a picture, by its name: the head, and rows of a label and numbers."""
    found = {}
    for name, table in PICTURE.findall(text):
        head, _, *rows = (
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in table.splitlines()
        )
        found[name] = (
            head,
            [(row[0], [_number(cell) for cell in row[1:]]) for row in rows],
        )
    return found


def draw(document: Path, folder: Path) -> None:
    """Write a picture of each table, as SVG; the same table, the same bytes."""
    folder.mkdir(exist_ok=True)
    with rc_context(
        {"svg.hashsalt": "streamgen", "svg.fonttype": "none", "font.size": 9}
    ):
        for name, (head, rows) in tables(document.read_text()).items():
            _bars(head, rows).savefig(
                folder / f"{name}.svg", metadata={"Date": None}
            )


def _bars(head: list[str], rows: list[tuple[str, list[float]]]) -> Figure:
    """A bar a number, in groups by row."""
    several = len(head) - 1
    figure = Figure(
        figsize=(7, 0.6 + 0.3 * len(rows) * several), layout="constrained"
    )
    axes, height = figure.subplots(), 0.8 / several
    for column, label in enumerate(head[1:]):
        places = [row + height * column for row in range(len(rows))]
        bars = axes.barh(
            places, [values[column] for _, values in rows], height, label=label
        )
        axes.bar_label(bars, fmt="{:,.6g}", padding=2)
    axes.set_yticks(
        [row + 0.4 - height / 2 for row in range(len(rows))],
        [label for label, _ in rows],
    )
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    if several > 1:
        axes.legend(frameon=False)
    else:
        axes.set_xlabel(head[1])
    return figure


def _number(cell: str) -> float:
    found = re.match(r"[\d,.]+", cell)
    if found is None:
        raise ValueError(f"{cell!r} is no number; a picture needs one")
    return float(found[0].replace(",", ""))
