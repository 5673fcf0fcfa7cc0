"""The HTML page of a report: one file that opens in any browser without a network.

Plotly draws the charts; its code is in the file. Graphviz has laid out the graph
(`streamgen.observe.drawing`). A content security policy in the file forbids all other scripts and all
connections. The same report gives the same bytes.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from streamgen.base.extras import needed
from streamgen.compiler.emit.resources import SHELL
from streamgen.contract.cost import Resources
from streamgen.model.graph import kind_of
from streamgen.observe.alike import gathered, named, spread
from streamgen.observe.drawing import COLOURS, Picture, picture, svg
from streamgen.observe.page import charts
from streamgen.observe.page.charts import Chart, Pass
from streamgen.observe.report import GroupReport, KernelReport, Report
from streamgen.observe.study import figure
from streamgen.observe.view import GroupView

__all__ = ["page"]

MOST_BOXES = 400  # of a graph that is also drawn node by node; beyond, members are listed only


def page(report: Report, views: Sequence[GroupView]) -> str:
    """The page of a report. views: one view for each group. Raises MissingToolError without the extra
    `report`."""
    with needed("a report as HTML"):
        from plotly.offline import get_plotlyjs
    groups = [_Section(number, *both) for number, both in enumerate(zip(report.groups, views, strict=True))]
    study = {} if report.study is None else {"study-0": charts.study(report.study)}
    data = {
        "charts": study | {key: chart for group in groups for key, chart in group.charts.items()},
        "graphs": {group.id: group.details for group in groups},
    }
    scripts = [_file("page.js"), get_plotlyjs()]
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        _file("page.html")
    )
    return template.render(
        report=report,
        groups=groups,
        study=study,
        digits=figure,
        roles=COLOURS,
        style=Markup(_file("page.css")),
        scripts=[Markup(script) for script in scripts],
        hashes=[_digest(script) for script in scripts],
        data=_embedded(data),
    )


class _Section:
    """The part of the page for one group. charts: charts by the id of their element."""

    def __init__(self, number: int, report: GroupReport, view: GroupView) -> None:
        self.id = f"g{number}"
        self.report, self.view = report, view
        self.passes: list[Pass] = [*view.measured, *view.predicted]
        self.pass_titles = [charts.title_of(timed) for timed in self.passes]
        drawings = [picture(view.graph, prefix=f"{self.id}s")]
        whole = picture(view.graph, prefix=f"{self.id}f", full=True)
        if len(drawings[0].boxes) < len(whole.boxes) <= MOST_BOXES:
            drawings.append(whole)
        self.drawings = [Markup(svg(drawn)) for drawn in drawings]  # labels are escaped there
        self.details = _details(drawings, report, view)
        self.boxes, self.nodes = len(drawings[0].boxes), len(view.graph.nodes)
        shell = report.resources.parts.get(SHELL, Resources(lut=0, ff=0))
        self.charts: dict[str, Chart] = {}
        self.phases = self._kept("phases", [charts.phases(timed) for timed in self.passes])
        self.kernels = self._kept("kernels", [charts.kernels(timed) for timed in view.measured])
        self.roofline = self._kept("roofline", [charts.roofline(view, self.passes)])
        self.fifos = self._kept("fifos", [charts.fifos(report.fifos)])
        self.card = self._kept("card", charts.card(view, report.resources.slrs, shell))
        self.memory = self._kept("memory", [charts.memory(view)])
        self.occupied = any(fifo.greatest is not None for fifo in report.fifos)
        self.kernel_rows = list(_kernel_rows(report.kernels))
        self.tried = self._kept("tried", [charts.exploration(report.tried)] if report.tried else [])

    def _kept(self, what: str, drawn: Sequence[Chart]) -> list[tuple[str, Chart]]:
        kept = [(f"{self.id}-{what}-{number}", chart) for number, chart in enumerate(drawn)]
        self.charts.update(kept)
        return kept


def _kernel_rows(kernels: Sequence[KernelReport]) -> Iterator[list[str]]:
    """Rows of kernels as on a terminal: equal kernels share a row."""
    for several in gathered(kernels, lambda k: k.name, lambda k: k.kind):
        counts = [[getattr(k, what) for k in several] for what in ("busy", "stalled", "idle")]
        share = 100 * sum(counts[0]) / max(1, sum(map(sum, counts)))
        yield [named([k.name for k in several]), several[0].kind, *map(spread, counts), f"{share:.1f}"]


def _details(drawings: Sequence[Picture], report: GroupReport, view: GroupView) -> dict[str, Any]:
    """Details of each box and arrow by id, and the boxes that each arrow joins."""
    fifo_reports = {edge.name: edge for edge in report.fifos}
    counted = {kernel.name: kernel for kernel in report.kernels}
    boxes: dict[str, Any] = {}
    wires: dict[str, Any] = {}
    phases = view.phase_names
    for drawn in drawings:
        for box in drawn.boxes:
            rows = [] if box.role == "memory" else [_member(name, view, counted) for name in box.members]
            boxes[box.id] = {"title": box.lines[0], "kind": box.lines[1], "role": box.role, "rows": rows}
        for wire in drawn.wires:
            if not wire.edges:
                continue
            orders = {
                phase: str(it)
                for number, phase in enumerate(phases)
                if (it := view.graph.itensor(wire.edges[0], number)) is not None
            }
            fifos = [fifo_reports[edge.name] for edge in wire.edges]
            wires[wire.id] = {
                "source": wire.source,
                "target": wire.target,
                "itensors": _runs(orders),
                "rows": [[fifo.name, fifo.bits, fifo.depth, fifo.greatest] for fifo in fifos],
                "back": wire.back,
            }
    return {"boxes": boxes, "wires": wires, "run": bool(counted)}


def _member(name: str, view: GroupView, counted: Mapping[str, KernelReport]) -> list[Any]:
    """Name, kind, SLR, LUT, DSP, BRAM and URAM of a node; after a run also busy, stalled and idle cycles."""
    has = view.resources[name]
    row: list[Any] = [name, kind_of(view.graph.node(name).params), view.slrs.get(name, "")]
    row += [round(has.lut), round(has.dsp), has.bram, has.uram]
    if name in counted:
        row += [counted[name].busy, counted[name].stalled, counted[name].idle]
    return row


def _runs(orders: Mapping[str, str]) -> list[list[str]]:
    """Group phases with the same itensor."""
    by_order: dict[str, list[str]] = {}
    for phase, text in orders.items():
        by_order.setdefault(text, []).append(phase)
    return [[", ".join(phases), text] for text, phases in by_order.items()]


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _digest(script: str) -> str:
    """The hash with which a content security policy names a script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _embedded(value: Any) -> Markup:
    """JSON that cannot end the HTML element around it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))
