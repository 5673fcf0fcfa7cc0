"""The layers of a language model: pieces of its graph that are alike become a `Repeat`.

The graph is cut wherever all later operations need only one earlier value: between layers, and between
attention and feed-forward. A layer reaches from one attention to the next. The pieces before the first
attention are the start of the model; those after the last layer are computed for the last row alone. A graph
that cannot be cut in this way stays one list of operations.

Operations are named by their purpose (`roles`): `layers[3].q` computes queries. Layers that share one body of
a repetition have one format for each matmul, the widest that one of them asks for.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, pairwise

from streamgen.base.errors import GraphError
from streamgen.model.frontend.fuse import fused
from streamgen.model.frontend.roles import names_around, names_in_layer
from streamgen.model.graph.logical import Input, LogicalGraph, Operation, Operator, Repeat
from streamgen.model.operations import Attention, Binary, LastRow, Linear, PositionRows, TopK

Piece = list[Operation]


def folded(name: str, operations: Sequence[Operation], logits: str, context: int) -> LogicalGraph:
    """The graph of a language model from the operations that compute `logits` from `ids`."""
    pieces = _pieces(_beside_readers(fused(operations, (logits,), gates=True)))
    first, layers = _layers(pieces)
    count = sum(len(layer) for layer in layers)
    before, behind = _joined(pieces[:first]), _joined(pieces[first + count :])
    names_behind = names_around(behind, logits=logits)
    names = names_around(before, taken=names_behind.values())
    rebuilt = _renamed(before, names)
    end = before[-1].name
    if layers:
        rebuilt.append(Operation("layers", _of_one_format(Repeat(_graphs(before, layers))), (names[end],)))
        end = layers[-1][-1][-1].name
        names[end] = "layers"
    if not behind:  # the graph cannot be cut before its logits
        rebuilt = [replace(o, name="all_logits") if o.name == names[end] else o for o in rebuilt]
        rebuilt.append(Operation("logits", LastRow(), ("all_logits",)))
    else:
        rebuilt.append(Operation("last", LastRow(), (names[end],)))
        rebuilt += _of_last_row(_renamed(behind, names | {end: "last"} | names_behind))
    rebuilt.append(Operation("best", TopK(1), ("logits",)))
    return LogicalGraph(
        (Input("ids", 1, "ids"),),
        tuple(rebuilt),
        ("logits", "best_values", "best_indices"),
        name=name,
        context=context,
        requested=frozenset({"logits"}),
    )


def _of_last_row(operations: Sequence[Operation]) -> list[Operation]:
    """Operations on the last row, with the last row of each table of positions."""
    names: dict[str, str] = {}
    found = []
    for operation in operations:
        found.append(replace(operation, inputs=tuple(names.get(name, name) for name in operation.inputs)))
        if isinstance(operation.op, PositionRows):
            names[operation.name] = f"{operation.name}_of_last"
            found.append(Operation(names[operation.name], LastRow(), (operation.name,)))
    return found


def _beside_readers(operations: Sequence[Operation]) -> list[Operation]:
    """The operations, with constants and other sources just before their first reader."""
    sources = {o.name: o for o in operations if not o.inputs}
    ordered: list[Operation] = []
    for operation in operations:
        if operation.inputs:
            ordered += [sources.pop(name) for name in operation.inputs if name in sources]
            ordered.append(operation)
    return ordered


def _pieces(operations: Sequence[Operation]) -> list[Piece]:
    """Cut the operations wherever later ones need only one value."""
    last = {name: index for index, o in enumerate(operations) for name in o.inputs}
    pieces: list[Piece] = [[]]
    live = 0
    for index, operation in enumerate(operations):
        pieces[-1].append(operation)
        live += 1 - sum(last[name] == index and name != "ids" for name in set(operation.inputs))
        if live == 1 and index + 1 < len(operations):
            pieces.append([])
    return pieces


def _joined(pieces: Sequence[Piece]) -> Piece:
    return list(chain.from_iterable(pieces))


def _layers(pieces: Sequence[Piece]) -> tuple[int, list[list[Piece]]]:
    """The number of pieces before the layers, and the pieces of each layer. If the layers are not alike: the
    number of pieces before the last row, and no layers."""
    attentions = [index for index, piece in enumerate(pieces) for o in piece if isinstance(o.op, Attention)]
    ends = (i for i, piece in enumerate(pieces) if i in attentions or any(map(_is_sum, piece)))
    end = 1 + max(ends, default=0)
    steps = {b - a for a, b in pairwise(attentions)} or {end - index for index in attentions}
    if len(steps) != 1 or 0 in steps:
        return end, []
    (size,) = steps
    best: tuple[int, int, list[list[Piece]]] | None = None
    for first in range(attentions[0], max(attentions[0] - size, 0), -1):
        layers = [list(pieces[first + k * size :][:size]) for k in range(len(attentions))]
        if first + size * len(attentions) >= len(pieces):
            continue
        try:
            period = Repeat(_graphs(_joined(pieces[:first]), layers)).period
        except GraphError:
            continue
        if best is None or period < best[0]:
            best = period, first, layers
    return (end, []) if best is None else best[1:]


def _is_sum(operation: Operation) -> bool:
    return operation.op == Binary("add")


def _graphs(before: Piece, layers: Sequence[Sequence[Piece]]) -> tuple[LogicalGraph, ...]:
    """The graph of each layer; its one input is `x`."""
    graphs, source = [], before[-1].name
    features = _features(before)
    for layer in layers:
        operations = _joined(layer)
        names = {source: "x"} | names_in_layer(operations)
        source = operations[-1].name
        renamed = tuple(_renamed(operations, names))
        graphs.append(LogicalGraph((Input("x", features),), renamed, (names[source],)))
    return tuple(graphs)


def _of_one_format(repeat: Repeat) -> Repeat:
    """Give matmuls that share a body the same format."""
    asked: dict[tuple[int, str], str] = {}
    for index, layer in enumerate(repeat.layers):
        for name, operation in layer.walk():
            if isinstance(operation.op, Linear) and (wanted := operation.op.wanted):
                key = index % repeat.period, name
                asked[key] = max(asked.get(key, ""), wanted)

    def widened(index: int, name: str, op: Operator) -> Operator:
        wanted = asked.get((index % repeat.period, name))
        if not isinstance(op, Linear) or op.wanted == wanted:
            return op
        return replace(op, asked=wanted, grid=None)

    graphs = (
        layer.map(lambda name, operation, index=index: widened(index, name, operation.op))  # type: ignore[misc]
        for index, layer in enumerate(repeat.layers)
    )
    return Repeat(tuple(graphs))


def _features(before: Piece) -> int:
    """The number of features of the value before the layers."""
    last = before[-1].name
    return LogicalGraph((Input("ids", 1, "ids"),), tuple(before), (last,), context=1).features(last)


def _renamed(operations: Sequence[Operation], names: dict[str, str]) -> list[Operation]:
    return [
        replace(o, name=names[o.name], inputs=tuple(names.get(name, name) for name in o.inputs))
        for o in operations
    ]
