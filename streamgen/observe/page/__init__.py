"""The HTML page of a report: one file that opens in any browser without a network.

The charts are HTML and CSS (`charts`), the graph is SVG that Graphviz has laid out
(`streamgen.observe.drawing`). A content security policy in the file forbids all scripts but its own, and all
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

from streamgen.compiler.emit.resources import SHELL
from streamgen.contract.cost import Resources
from streamgen.model.graph import kind_of
from streamgen.observe.alike import gathered, named, spread
from streamgen.observe.drawing import COLOURS, Box, Picture, picture, svg
from streamgen.observe.page import charts
from streamgen.observe.page.card import card
from streamgen.observe.page.figures import passes_of, result, tiles
from streamgen.observe.page.tracks import timeline
from streamgen.observe.profile import PassProfile
from streamgen.observe.report import GroupReport, KernelReport, Report
from streamgen.observe.study import figure
from streamgen.observe.view import GroupView

__all__ = ["page"]

MOST_BOXES = 400  # of a graph that is also drawn node by node; beyond, members are listed only


def page(report: Report, views: Sequence[GroupView]) -> str:
    """The page of a report. views: one view for each group. Raises MissingToolError without the extra
    `report`."""
    groups = [
        _Section(number, *both, report.clock_mhz)
        for number, both in enumerate(zip(report.groups, views, strict=True))
    ]
    script = _file("page.js")
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        _file("page.html")
    )
    return template.render(
        report=report,
        groups=groups,
        result=result(report, views),
        study=None if report.study is None else charts.study(report.study),
        digits=figure,
        roles=COLOURS,
        style=Markup(_file("page.css")),
        script=Markup(script),
        digest=_digest(script),
        data=_embedded({group.id: group.details for group in groups}),
    )


class _Section:
    """The part of the page for one group."""

    def __init__(self, number: int, report: GroupReport, view: GroupView, clock_mhz: float) -> None:
        self.id = f"g{number}"
        self.report, self.view = report, view
        self.titles, self.passes = zip(*passes_of(view), strict=True)
        self.tiles = tiles(view, clock_mhz)
        drawings = [picture(view.graph, prefix=f"{self.id}s")]
        whole = picture(view.graph, prefix=f"{self.id}f", full=True)
        if len(drawings[0].boxes) < len(whole.boxes) <= MOST_BOXES:
            drawings.append(whole)
        self.drawings = [Markup(svg(drawn, down=True)) for drawn in drawings]  # labels are escaped there
        self.details = _details(drawings, report, view)
        self.items = list(_items(drawings[0]))
        self.boxes, self.nodes = len(drawings[0].boxes), len(view.graph.nodes)
        shell = report.resources.parts.get(SHELL, Resources(lut=0, ff=0))
        self.kernels = [charts.kernels(timed) for timed in self.passes if isinstance(timed, PassProfile)][:1]
        self.timeline = next(
            (
                timeline(timed, view.rate, clock_mhz)
                for timed in self.passes
                if isinstance(timed, PassProfile)
            ),
            None,
        )
        self.phases = [charts.phases(timed, view.rate) for timed in self.passes]
        self.works = [charts.works(timed, view.rate) for timed in self.passes]
        self.roofline = charts.roofline(view, self.passes) if view.multipliers else None
        self.fifos = charts.fifos(report.fifos)
        self.card = card(view, report.resources.slrs, shell)
        self.memory = charts.memory(view)
        self.bandwidth = charts.bandwidth(view, self.passes[0], clock_mhz)
        self.occupied = any(fifo.greatest is not None for fifo in report.fifos)
        self.kernel_rows = list(_kernel_rows(report.kernels))
        self.tried = charts.exploration(report.tried) if report.tried else None


def _items(drawn: Picture) -> Iterator[tuple[Box, list[tuple[str, str]]]]:
    """The kernels of a picture in the order of the graph, each with the boxes that it sends to and the labels
    of the streams."""
    boxes = {box.id: box for box in drawn.boxes}
    for box in drawn.boxes:
        if box.role == "memory":
            continue
        ends = [(boxes[wire.target], wire.label) for wire in drawn.wires if wire.source == box.id]
        yield box, [(end.lines[0], label.replace("\n", ", ")) for end, label in ends]


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
