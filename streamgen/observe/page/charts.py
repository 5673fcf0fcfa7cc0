"""Charts of a page: traces and layouts for Plotly, as plain values."""

from collections.abc import Mapping, Sequence
from typing import Any

from streamgen.contract.cost import Resources
from streamgen.model.graph import kind_of
from streamgen.model.graph.plan import Tried
from streamgen.observe.alike import gathered, named
from streamgen.observe.drawing import role_of
from streamgen.observe.estimate import PassEstimate, PhaseEstimate
from streamgen.observe.profile import KernelProfile, PassProfile, PhaseProfile
from streamgen.observe.report import FifoReport
from streamgen.observe.study import StudyReport, TrialReport, figure
from streamgen.observe.view import GroupView
from streamgen.platform.boards import Board

Chart = dict[str, Any]
"""A chart. title, alt: title and description. height: pixels. data, layout: values for Plotly."""

Pass = PassEstimate | PassProfile

# Okabe and Ito's colours, told apart by all kinds of sight; dark enough beside white.
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072b2", "#d55e00", "#00795c", "#9c4f82", "#6b7280"
MOST_FIFOS, LEAST = 40, 2  # rows of a chart, of FIFOs that are deeper than the least; the table has all
FREE = "#e5e7eb"
RESOURCES = ("lut", "ff", "dsp", "bram", "uram")


def _chart(title: str, alt: str, height: int, data: list[Any], **layout: Any) -> Chart:
    base = {
        "margin": {"l": 10, "r": 20, "t": 10, "b": 45},
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#111827"},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hoverlabel": {"align": "left"},
    }
    return {"title": title, "alt": alt, "height": height, "data": data, "layout": base | layout}


def _rows(names: Sequence[str], size: int = 12) -> dict[str, Any]:
    """An axis with one row for each name, from the top. Names may be equal."""
    places = list(range(len(names)))
    return _axis(
        "",
        range=[len(names) - 0.5, -0.5],
        tickvals=places,
        ticktext=list(names),
        tickfont={"size": size},
        showgrid=False,
        zeroline=False,
    )


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {
        "title": {"text": title},
        "gridcolor": "#e5e7eb",
        "zerolinecolor": "#9ca3af",
        "automargin": True,
        **more,
    }


def title_of(timed: Pass) -> str:
    """The title of a pass."""
    seen = "measured" if isinstance(timed, PassProfile) else "predicted"
    tokens = f"{timed.tokens} token{'' if timed.tokens == 1 else 's'}"
    return f"{tokens} at position {timed.position}, {seen}: {timed.cycles:,} cycles"


def phases(timed: Pass) -> Chart:
    """Cycles of each phase, and the fewest cycles that memory and multipliers need."""
    names = [f"{p.name} × {p.walks}" if p.walks > 1 else p.name for p in timed.phases]
    names = [_short(name, 48) for name in names]
    bars = (
        ("cycles", BLUE, [p.cycles for p in timed.phases]),
        ("memory needs", ORANGE, [round(p.memory_cycles) for p in timed.phases]),
        ("multipliers need", GREEN, [round(p.product_cycles) for p in timed.phases]),
    )
    timed_phases: Sequence[PhaseEstimate | PhaseProfile] = timed.phases
    longest = max(timed_phases, key=lambda p: p.cycles)
    return _chart(
        "Cycles by phase",
        f"Bars: {len(names)} phases of {title_of(timed)}. The longest is {longest.name} with "
        f"{100 * longest.cycles / timed.cycles:.0f} % of the cycles.",
        110 + 54 * len(names),
        [
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": list(range(len(names))),
                "x": values,
                "text": names,
                "textposition": "none",
                "marker": {"color": colour},
                "hovertemplate": "%{text}<br>%{x:,} cycles<extra>" + name + "</extra>",
            }
            for name, colour, values in bars
        ],
        barmode="group",
        bargap=0.25,
        xaxis=_axis("cycles of all walks", separatethousands=True),
        yaxis=_rows(names),
    )


def kernels(profile: PassProfile) -> Chart:
    """Share of the cycles of each phase in which each kernel is busy."""
    rows: list[tuple[str, list[KernelProfile]]] = [
        (named([k.name for k in several]), several)
        for several in gathered(profile.kernels, lambda k: k.name, lambda k: k.kind)
    ]
    rows = [row for row in rows if any(sum(k.busy) + sum(k.stalled) for k in row[1])]
    busy, text = [], []
    for name, several in rows:
        shares, words = [], []
        for place, phase in enumerate(profile.phases):
            count = max(1, phase.cycles * len(several))
            moved = sum(k.busy[place] for k in several)
            waits = sum(k.stalled[place] for k in several)
            shares.append(round(100 * moved / count, 2))
            words.append(
                f"{name}<br>busy {100 * moved / count:.1f} %, stalled {100 * waits / count:.1f} % "
                f"of {phase.cycles:,} cycles"
            )
        busy.append(shares)
        text.append(words)
    names = [name for name, _ in rows]
    return _chart(
        "Busy kernels by phase",
        f"Heat map: percentage of the cycles of each phase in which each of {len(names)} kernels moves a "
        "token.",
        120 + 18 * len(names),
        [
            {
                "type": "heatmap",
                "x": list(range(len(profile.phases))),
                "y": list(range(len(names))),
                "z": busy,
                "text": text,
                "zmin": 0,
                "zmax": 100,
                "xgap": 1,
                "ygap": 1,
                "colorscale": [[0, "#f3f4f6"], [0.25, "#a6cee3"], [1, "#08306b"]],
                "colorbar": {
                    "title": {"text": "% busy"},
                    "thickness": 12,
                    "lenmode": "pixels",
                    "len": 240,
                    "y": 1,
                    "yanchor": "top",
                },
                "hovertemplate": "%{text}<extra></extra>",
            }
        ],
        xaxis=_axis(
            "",
            side="top",
            tickvals=list(range(len(profile.phases))),
            ticktext=[_short(p.name, 24) for p in profile.phases],
            tickangle=-30,
            showgrid=False,
            zeroline=False,
        ),
        yaxis=_rows([_short(name, 40) for name in names], 10),
        margin={"l": 10, "r": 10, "t": 90, "b": 10},
    )


def roofline(view: GroupView, passes: Sequence[Pass]) -> Chart:
    """Products per cycle against products per byte, under the limits of memory and multipliers."""
    channels = len({buffer.channel for buffer in view.buffers})
    memory, peak = view.rate * channels, view.multipliers
    points: list[tuple[Pass, PhaseEstimate | PhaseProfile]] = [
        (timed, p) for timed in passes for p in timed.phases if p.products and p.bytes and p.cycles
    ]

    def _roof(p: PhaseEstimate | PhaseProfile) -> float:
        return min(peak, memory * p.products / p.bytes)

    places = [p.products / p.bytes for _, p in points] or [1.0]
    ridge = peak / memory
    first, last = min(*places, ridge) / 3, max(*places, ridge) * 3
    data: list[Any] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"roof: {memory:.0f} bytes per cycle on {channels} channels, {peak:,} multipliers",
            "x": [first, ridge, last],
            "y": [first * memory, peak, peak],
            "line": {"color": "#111827", "width": 2},
            "hoverinfo": "skip",
        }
    ]
    marks = (("circle", BLUE), ("square", ORANGE), ("diamond", GREEN), ("triangle-up", PURPLE))
    for number, timed in enumerate(passes):
        own = [p for other, p in points if other is timed]
        if not own:
            continue
        symbol, colour = marks[number % len(marks)]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": title_of(timed),
                "x": [p.products / p.bytes for p in own],
                "y": [p.products / p.cycles for p in own],
                "text": [
                    f"{p.name}<br>{100 * p.products / p.cycles / _roof(p):.0f} % of the roof, "
                    f"{100 * p.cycles / timed.cycles:.1f} % of the cycles"
                    for p in own
                ],
                "marker": {
                    "symbol": symbol,
                    "color": colour,
                    "size": [round(8 + 26 * (p.cycles / timed.cycles) ** 0.5, 1) for p in own],
                    "opacity": 0.8,
                    "line": {"width": 1, "color": "white"},
                },
                "hovertemplate": "%{text}<br>%{x:.3g} products per byte<br>%{y:.4g} products per cycle"
                "<extra></extra>",
            }
        )
    return _chart(
        "Roofline",
        f"Points: {len(points)} phases under a roof of {memory:.0f} bytes and {peak} products per cycle.",
        430,
        data,
        xaxis=_axis("products per byte of memory traffic", type="log"),
        yaxis=_axis("products per cycle", type="log"),
        legend={"orientation": "h", "y": -0.22, "x": 0},
    )


def fifos(reports: Sequence[FifoReport]) -> Chart:
    """Depth and greatest occupancy of the largest FIFOs."""
    groups = gathered(reports, lambda f: f.name, lambda f: f.bits)
    groups.sort(key=lambda fs: (-sum(f.bits * f.depth for f in fs), fs[0].name))
    groups = ([some for some in groups if max(f.depth for f in some) > LEAST] or groups)[:MOST_FIFOS]
    names = [_short(named([f.name for f in several]), 64) for several in groups]
    depths = [max(f.depth for f in several) for several in groups]
    most = [max((f.greatest for f in several if f.greatest is not None), default=None) for several in groups]
    data: list[Chart] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": "depth",
            "y": list(range(len(names))),
            "x": depths,
            "marker": {"color": FREE, "line": {"color": GREY, "width": 1}},
            "text": [
                f"{name}<br>{several[0].bits} bits wide, {sum(f.bits * f.depth for f in several):,} bits"
                for name, several in zip(names, groups, strict=True)
            ],
            "textposition": "none",
            "hovertemplate": "%{text}<br>depth %{x}<extra></extra>",
        }
    ]
    if any(value is not None for value in most):
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": "greatest occupancy",
                "y": list(range(len(names))),
                "x": most,
                "width": 0.45,
                "text": names,
                "textposition": "none",
                "marker": {"color": BLUE},
                "hovertemplate": "%{text}<br>held at most %{x}<extra></extra>",
            }
        )
    return _chart(
        "FIFO depth and greatest occupancy",
        f"Bars: the {len(names)} largest FIFOs that are deeper than {LEAST} tokens. Equal FIFOs share a bar. "
        f"The deepest FIFO holds {max(depths, default=0):,} tokens.",
        110 + 20 * len(names),
        data,
        barmode="overlay",
        xaxis=_axis("tokens (logarithmic scale)", type="log"),
        yaxis=_rows(names, 10),
    )


def card(view: GroupView, slrs: Mapping[str, tuple[Resources, Resources]], shell: Resources) -> list[Chart]:
    """The SLRs of the card, the last on top, filled with their blocks: a chart for each resource."""
    return [_regions(view, slrs, shell, name) for name in RESOURCES]


def _regions(
    view: GroupView, slrs: Mapping[str, tuple[Resources, Resources]], shell: Resources, name: str
) -> Chart:
    data = []
    board: Board = view.board
    regions = list(reversed(board.slrs))
    for row, slr in enumerate(regions):
        used, offered = (float(getattr(part, name)) for part in slrs[slr.name])
        labels, parents, values, colours, words = _blocks(view, slr.name, shell, name)
        rest = used - sum(values)
        if rest > 0.5:
            labels.append("others")
            parents.append(slr.name)
            values.append(rest)
            colours.append("#9ca3af")
            words.append("")
        labels.append("free")
        parents.append(slr.name)
        values.append(max(0.0, offered - used))
        colours.append("#f3f4f6")
        words.append("")
        share = 100 * used / offered if offered else 0.0
        height = 1 / len(regions)
        data.append(
            {
                "type": "treemap",
                "labels": [f"{slr.name}: {share:.1f} % of {offered:,.0f} {name.upper()}", *labels],
                "ids": [slr.name, *(f"{slr.name}/{label}" for label in labels)],
                "parents": ["", *(slr.name for _ in parents)],
                "values": [max(used, offered), *(round(value, 1) for value in values)],
                "branchvalues": "total",
                "text": ["", *words],
                "textinfo": "label+text",
                "hovertemplate": "%{label}<br>%{value:,} " + name.upper() + "<br>%{text}<extra></extra>",
                "marker": {"colors": ["#ffffff", *colours], "line": {"width": 1, "color": "white"}},
                "tiling": {"packing": "squarify"},
                "pathbar": {"visible": False},
                "sort": True,
                "domain": {"x": [0, 1], "y": [1 - (row + 1) * height + 0.008, 1 - row * height - 0.008]},
            }
        )
    total = sum(getattr(used, name) for used, _ in slrs.values())
    return _chart(
        name.upper(),
        f"{total:,.0f} {name.upper()} on the {len(regions)} SLRs of {board.name}. The memory is beside "
        f"{board.hbm.slr}.",
        540,
        data,
        margin={"l": 4, "r": 4, "t": 4, "b": 4},
    )


def _blocks(
    view: GroupView, slr: str, shell: Resources, name: str
) -> tuple[list[str], list[str], list[float], list[str], list[str]]:
    """Blocks of an SLR that use a resource. Equal blocks share a box."""
    nodes = [node for node in view.graph.nodes if view.slrs.get(node.name) == slr]
    labels, values, colours, words = [], [], [], []
    for several in gathered(nodes, lambda n: n.name, lambda n: kind_of(n.params)):
        value = sum(float(getattr(view.resources[n.name], name)) for n in several)
        if value:
            labels.append(named([n.name for n in several]))
            values.append(value)
            words.append(kind_of(several[0].params) + (f" × {len(several)}" if len(several) > 1 else ""))
            colours.append(_FILL[role_of(several[0])])
    if slr == view.board.hbm.slr and getattr(shell, name):
        labels.append("control and masters")
        values.append(float(getattr(shell, name)))
        colours.append("#fca5a5")  # what stands around the graph is in no picture of it
        words.append("around the graph")
    return labels, [slr] * len(labels), values, colours, words


# The colours of the graph's boxes, somewhat darker, still light enough for black text.
_FILL = {"matmul": "#93c5fd", "kernel": "#c4b5fd", "moves": "#fcd34d", "transfer": "#6ee7b7"}
_ROLE = {"weights": BLUE, "state": ORANGE, "spill": PURPLE, "input": GREEN, "output": "#b45309"}


def memory(view: GroupView) -> Chart:
    """Bytes of each channel by role of the buffer."""
    channels = range(view.board.hbm.channels)
    held: dict[str, dict[int, int]] = {}
    for buffer in view.buffers:
        by_channel = held.setdefault(buffer.role, {})
        by_channel[buffer.channel] = by_channel.get(buffer.channel, 0) + buffer.bytes
    data = [
        {
            "type": "bar",
            "name": "KV cache" if role == "state" else role,
            "x": list(channels),
            "y": [by_channel.get(channel, 0) / 2**20 for channel in channels],
            "marker": {"color": _ROLE.get(role, GREY)},
            "hovertemplate": "channel %{x}<br>%{y:,.3f} MiB<extra>" + role + "</extra>",
        }
        for role, by_channel in held.items()
    ]
    total = sum(map(sum, (by.values() for by in held.values())))
    room = view.board.hbm.channel_bytes
    return _chart(
        "Memory by channel",
        f"Stacked bars: {total / 2**20:,.1f} MiB on {len({b.channel for b in view.buffers})} of "
        f"{len(channels)} channels of {room / 2**20:,.0f} MiB.",
        330,
        data,
        barmode="stack",
        xaxis=_axis(f"HBM channel, {room / 2**20:,.0f} MiB each", dtick=1, tickfont={"size": 10}),
        yaxis=_axis("MiB"),
    )


def exploration(tried: Sequence[Tried]) -> Chart:
    """Designs that the compiler tried: cycles against multipliers, in the order of the search."""
    groups: dict[str, list[Tried]] = {}
    for design in tried:
        groups.setdefault(design.group, []).append(design)
    colours = (BLUE, ORANGE, GREEN, PURPLE, GREY)
    return _chart(
        "Exploration",
        f"Points: cycles and multipliers of {len(tried)} designs that the compiler tried.",
        400,
        [
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": group,
                "x": [design.multipliers for design in designs],
                "y": [design.cycles for design in designs],
                "text": [design.what for design in designs],
                "marker": {"color": colours[number % len(colours)], "size": 8},
                "line": {"width": 1, "dash": "dot"},
                "hovertemplate": "%{text}<br>%{x:,} multipliers<br>%{y:,.0f} cycles<extra></extra>",
            }
            for number, (group, designs) in enumerate(groups.items())
        ],
        xaxis=_axis("multipliers", type="log"),
        yaxis=_axis("cycles of the smallest and the largest pass together", type="log"),
    )


def study(report: StudyReport) -> Chart:
    """The trials of a search in its first two objectives. With one objective, in the order of the trials."""
    kinds: list[tuple[str, str, str, list[TrialReport]]] = [
        ("over a budget", "x", GREY, [trial for trial in report.trials if trial.state == "over"]),
        (
            "within the budgets",
            "circle-open",
            BLUE,
            [trial for trial in report.trials if trial.state == "kept" and not trial.front],
        ),
        ("front", "diamond", ORANGE, list(report.front)),
    ]
    alone = len(report.objectives) == 1
    directions = zip(report.units, report.maximised, strict=True)
    units = [f"{unit}, {'more' if more else 'less'} is better" for unit, more in directions]
    return _chart(
        "Study",
        f"Points: {report}.",
        430,
        [
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [trial.number if alone else trial.values[1] for trial in trials],
                "y": [trial.values[0] for trial in trials],
                "text": [_trial(trial, report) for trial in trials],
                "marker": {"symbol": symbol, "color": colour, "size": 12 if name == "front" else 8},
                "hovertemplate": "%{text}<extra></extra>",
            }
            for name, symbol, colour, trials in kinds
            if trials
        ],
        showlegend=True,
        xaxis=_axis("trial" if alone else units[1]),
        yaxis=_axis(units[0]),
    )


def _trial(trial: TrialReport, report: StudyReport) -> str:
    """The text beside a point."""
    values = [f"{figure(value)} {unit}" for value, unit in zip(trial.values, report.units, strict=True)]
    choice = [f"{name}={value}" for name, value in trial.choice.items()] or ["the compiler's choice"]
    return "<br>".join([f"trial {trial.number}: {', '.join(values)}", *choice])


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most // 2 - 1] + "…" + text[-(most // 2) :]
