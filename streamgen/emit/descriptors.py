"""Which descriptor fields vary, and how: constants are wired, the rest is sent, affine in the tiles.

Every field of every node is evaluated for every phase and every number of token tiles (all of them up
to 64, beyond that the ends, the powers of two and their neighbours). A field with one value everywhere
becomes a constant of the hardware. Any other must be base + slope * tiles in each phase.
"""

from dataclasses import dataclass

from streamgen.errors import GraphError
from streamgen.graph import Graph, Node, Program
from streamgen.manifest import Descriptor, PhaseTable, Section, Word

__all__ = ["Encoding", "encode"]

_ALL_TILES = 64


@dataclass(frozen=True)
class Encoding:
    """constants: by node, the fields wired to a value; varying: by node, the fields sent; targets: by
    node, its number on the descriptor bus; table: the program that the sequencer walks."""

    constants: dict[str, dict[str, int]]
    varying: dict[str, tuple[str, ...]]
    targets: dict[str, int]
    table: PhaseTable


def encode(program: Program, stores: set[str], first: set[str]) -> Encoding:
    """Descriptors of a program.

    stores: nodes whose completion a run waits for. first: nodes told before all but inputs in a phase
    (loads that run ahead), those last that share a channel with an input, which would wait behind them.
    GraphError when a field is not affine in the token tiles.
    """
    values = {tiles: _describe(program.at(tiles)) for tiles in _tiles(program.max_tiles)}
    largest = values[program.max_tiles]
    graph = program.graph
    constants: dict[str, dict[str, int]] = {}
    varying: dict[str, tuple[str, ...]] = {}
    for node in graph.nodes:
        fields = [field.name for field in node.params.descriptor_fields()]
        seen = {
            field: {
                v[node.name, phase][field] for v in values.values() for phase in _active(graph, node.name)
            }
            for field in fields
        }
        constants[node.name] = {field: next(iter(found)) for field, found in seen.items() if len(found) == 1}
        varying[node.name] = tuple(field for field in fields if len(seen[field]) > 1)
    targets = {node.name: i for i, node in enumerate(graph.nodes)}
    order = _order(graph, first)
    descriptors = []
    for phase in range(graph.phases):
        for node in order:
            if (node.name, phase) not in largest:
                continue
            words = tuple(
                _fit({t: v[node.name, phase][field] for t, v in values.items()}, node.name, field)
                for field in varying[node.name]
            )
            descriptors.append(Descriptor(target=targets[node.name], words=words, store=node.name in stores))
    table = PhaseTable(sections=(Section(descriptors=tuple(descriptors)),))
    return Encoding(constants, varying, targets, table)


def _order(graph: Graph, first: set[str]) -> list[Node]:
    """Nodes in the order in which they are told."""
    inputs = {tensor.node: tensor.channel for tensor in graph.tensors if tensor.role == "input"}
    shared = {tensor.node for tensor in graph.tensors if tensor.channel in inputs.values()}
    return sorted(graph.nodes, key=lambda n: (n.name not in inputs, n.name not in first, n.name in shared))


def _tiles(largest: int) -> list[int]:
    if largest <= _ALL_TILES:
        return list(range(1, largest + 1))
    near = {(1 << i) + d for i in range(largest.bit_length()) for d in (-1, 0, 1)}
    return sorted({t for t in near if 1 <= t <= largest} | {largest - 1, largest})


def _active(graph: Graph, name: str) -> list[int]:
    return [phase for phase, bounds in enumerate(graph.node(name).bounds) if bounds is not None]


def _describe(graph: Graph) -> dict[tuple[str, int], dict[str, int]]:
    return {
        (node.name, phase): dict(node.params.describe(bounds))
        for node in graph.nodes
        for phase, bounds in enumerate(node.bounds)
        if bounds is not None
    }


def _fit(points: dict[int, int], node: str, field: str) -> Word:
    tiles = sorted(points)
    slope = 0
    if len(tiles) > 1:
        slope = (points[tiles[1]] - points[tiles[0]]) // (tiles[1] - tiles[0])
    base = points[tiles[0]] - slope * tiles[0]
    for t in tiles:
        if base + slope * t != points[t]:
            raise GraphError(
                f"descriptor field {field!r} of node {node!r} is not affine in the token tiles: "
                f"{points[t]} at {t} tiles, {base} + {slope} * tiles expected"
            )
    return Word(base=base, tiles=slope)
