"""Encode the descriptors of a program: constant fields are wired, all others are sent as affine words.

Every field of every node is evaluated for every phase, for several numbers of token tiles, for the first,
second and last walk of a section, for positions at both ends of the context, and for one, two and the most
rows of a source. The numbers of token tiles
are all numbers up to 64, and beyond that the powers of two, their neighbours and both ends. If nothing is
emitted yet, they are only the ends. A field with one value everywhere becomes a constant of the hardware. In
each phase any other field must equal base + layer * (walk) + position * (first position) + tiles * (number of
tiles) + source * (rows of the source).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from streamgen.artifact.phase_table import Descriptor, PhaseTable, TableSection, Word
from streamgen.base.errors import GraphError
from streamgen.model.graph import Graph, Node, Program

_ALL_TILES = 64
_WHOLE = ""  # name of the run that leaves out nothing, beside the names of its variants


@dataclass(frozen=True)
class Encoding:
    """The descriptors of a program.

    constants: values of the wired fields of each node. varying: fields of each node that are sent. targets:
    number of each node on the descriptor bus. table: program that the sequencer walks. variants: programs of
    the variants of a run, by name.
    """

    constants: dict[str, dict[str, int]]
    varying: dict[str, tuple[str, ...]]
    targets: dict[str, int]
    table: PhaseTable
    variants: dict[str, PhaseTable]


def encode(program: Program, awaited: set[str], first: set[str], *, ends: bool = False) -> Encoding:
    """The descriptors of a program.

    awaited: nodes for whose completion a run waits. first: nodes that get their descriptors first in a phase,
    after the inputs (loads that run ahead). Among them, nodes that share a channel with an input come last,
    because the input would have to wait for them. ends: evaluate only one token tile and the largest number
    of tiles. The result is the same for a program that can be emitted.

    Raises GraphError if a field is not affine in walk, position, token tiles and rows of the source.
    """
    graph = program.graph
    variants: dict[str, Callable[[Graph], Graph]] = {_WHOLE: lambda graph: graph, **program.variants}
    values: dict[str, _Values] = {name: {} for name in variants}
    for run in _runs(program, sorted({1, program.max_tiles}) if ends else _tiles(program.max_tiles)):
        whole = program.at(run.tiles, run.position, None, run.source)
        for name, variant in variants.items():
            values[name][run] = _describe(variant(whole), run.end)
    constants: dict[str, dict[str, int]] = {}
    varying: dict[str, tuple[str, ...]] = {}
    for node in graph.nodes:
        described = [
            of_fields
            for runs in values.values()
            for v in runs.values()
            for phase in range(graph.phases)
            if (of_fields := v.get((node.name, phase))) is not None
        ]
        fields = [field.name for field in node.params.descriptor_fields()]
        seen = {field: {of_fields[field] for of_fields in described} for field in fields}
        constants[node.name] = {field: next(iter(sent)) for field, sent in seen.items() if len(sent) == 1}
        varying[node.name] = tuple(field for field in fields if len(seen[field]) > 1)
    targets = {node.name: i for i, node in enumerate(graph.nodes)}
    order = _order(graph, first)

    fits: dict[tuple[int, tuple[int, ...]], Word] = {}

    def fit(runs: _Values, walks: int, name: str, phase: int, field: str) -> Word:
        """The word of `_fit`, computed once for equal nodes."""
        key = walks, tuple([described[name, phase][field] for described in runs.values()])
        if key not in fits:
            fits[key] = _fit(dict(zip(runs, key[1], strict=True)), walks, name, field)
        return fits[key]

    def table(runs: _Values) -> PhaseTable:
        told = next(iter(runs.values()))
        sections: list[TableSection] = []
        for phases, walks in graph.walked():
            descriptors = []
            for phase in phases:
                for name in (node.name for node in order if (node.name, phase) in told):
                    words = tuple(fit(runs, walks, name, phase, field) for field in varying[name])
                    descriptors.append(Descriptor(target=targets[name], words=words, awaited=name in awaited))
            if descriptors:
                sections.append(TableSection(descriptors=tuple(descriptors), repeats=walks))
        return PhaseTable(sections=tuple(sections))

    tables = {name: table(runs) for name, runs in values.items()}
    return Encoding(constants, varying, targets, tables.pop(_WHOLE), tables)


def _order(graph: Graph, first: set[str]) -> list[Node]:
    """Nodes in the order in which they get their descriptors."""
    inputs = {tensor.node: tensor.channel for tensor in graph.tensors if tensor.role == "input"}
    shared = {tensor.node for tensor in graph.tensors if tensor.channel in inputs.values()}
    return sorted(graph.nodes, key=lambda n: (n.name not in inputs, n.name not in first, n.name in shared))


@dataclass(frozen=True)
class _Walk:
    """A run and a walk for which descriptors are evaluated. source: rows of a source. end: 0 for the first
    walk of each section, 1 for the second, 2 for the last."""

    tiles: int
    source: int
    position: int = 0
    end: int = 0


_Described = dict[tuple[str, int], Mapping[str, int]]  # values of the fields, by node and phase
_Values = dict[_Walk, _Described]


def _runs(program: Program, tiles: list[int]) -> list[_Walk]:
    """The walks to evaluate. The first ones differ from the very first in only one variable, by one step if
    there is room for it."""
    least, most = min(1, program.source), program.source
    runs = [_Walk(tiles[0], least)]
    runs += [_Walk(tiles[0], rows) for rows in (2, most) if rows <= most]
    if program.last_position(1):
        runs.append(_Walk(tiles[0], least, 1))
    ends = range(1, 3) if any(walks > 1 for _, walks in program.graph.walked()) else ()
    runs += [_Walk(tiles[0], least, end=end) for end in ends]
    runs += [_Walk(t, least) for t in tiles[1:]]
    runs += [
        _Walk(t, rows, program.last_position(t), end)
        for rows in (least, most)
        for t in (tiles[0], tiles[-1])
        for end in (0, *ends)
    ]
    return list(dict.fromkeys(runs))


def _tiles(largest: int) -> list[int]:
    if largest <= _ALL_TILES:
        return list(range(1, largest + 1))
    near = {(1 << i) + d for i in range(largest.bit_length()) for d in (-1, 0, 1)}
    return sorted({t for t in near if 1 <= t <= largest} | {largest - 1, largest})


def _walk(end: int, walks: int) -> int:
    return (0, min(1, walks - 1), walks - 1)[end]


def _describe(graph: Graph, end: int) -> _Described:
    return {
        (node.name, phase): described
        for phases, walks in graph.walked()
        for phase in phases
        for node in graph.nodes
        if (described := node.described(phase, _walk(end, walks))) is not None
    }


def _fit(points: dict[_Walk, int], walks: int, node: str, field: str) -> Word:
    first, *others = points
    steps = {run: _steps(run, walks) for run in points}
    slopes = dict.fromkeys(steps[first], 0)
    for run in others:
        moved = {name: steps[run][name] - steps[first][name] for name in slopes}
        (name, *rest) = [name for name, step in moved.items() if step] or [""]
        if name and not rest and not slopes[name]:
            slopes[name] = (points[run] - points[first]) // moved[name]
    base = points[first] - sum(slopes[name] * steps[first][name] for name in slopes)
    for run, value in points.items():
        promised = base + sum(slopes[name] * steps[run][name] for name in slopes)
        if promised != value:
            law = " + ".join([str(base), *(f"{slope} * {name}" for name, slope in slopes.items() if slope)])
            where = ", ".join(f"{name} {step}" for name, step in steps[run].items())
            *names, last = slopes
            raise GraphError(
                f"descriptor field {field!r} of node {node!r} is not affine in {', '.join(names)} and "
                f"{last}: it is {value} at {where}; expected {law}"
            )
    return Word(base=base, **slopes)


def _steps(run: _Walk, walks: int) -> dict[str, int]:
    steps = {"layer": _walk(run.end, walks), "position": run.position, "tiles": run.tiles}
    return steps | ({"source": run.source} if run.source else {})
