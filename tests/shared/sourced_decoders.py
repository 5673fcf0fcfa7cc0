"""Language models of random weights whose texts have a source."""

from dataclasses import replace
from typing import Any

import numpy as np

from streamgen.model.graph.logical import LogicalGraph, Operation, Repeat
from streamgen.model.operations import Binary, Linear, Norm, SourceAttention
from tests.shared.decoders import random_decoder


def sourced_decoder(
    seed: int = 0, source: int = 12, cross: tuple[int, int] = (4, 2), **changes: Any
) -> LogicalGraph:
    """`random_decoder` whose layers also attend over a source. cross: its query heads and key heads, each as
    wide as a head of the text."""
    graph = random_decoder(seed, **changes)
    rng = np.random.default_rng(seed + 1)

    def with_source(operation: Operation) -> Operation:
        if not isinstance(operation.op, Repeat):
            return operation
        layers = tuple(_with_source(layer, rng, cross) for layer in operation.op.layers)
        return replace(operation, op=Repeat(layers))

    operations = tuple(with_source(operation) for operation in graph.operations)
    return replace(graph, operations=operations, source=source)


def _with_source(layer: LogicalGraph, rng: np.random.Generator, cross: tuple[int, int]) -> LogicalGraph:
    hidden, (heads, kv_heads) = layer.inputs[0].features, cross
    size = layer.by_name["attention"].op.head_dim  # type: ignore[attr-defined]

    def linear(n: int, k: int) -> Linear:
        return Linear((rng.normal(size=(n, k)) * k**-0.5).astype(np.float32), None)

    norm = Norm("rms", np.ones(hidden, np.float32), 1e-5)
    attention = SourceAttention(heads, kv_heads, size, size**-0.5)
    own = [
        Operation("cross_norm", norm, ("attention_sum",)),
        Operation("cross_q", linear(heads * size, hidden), ("cross_norm",)),
        Operation("cross", attention, ("cross_q",)),
        Operation("cross_o", linear(hidden, heads * size), ("cross",)),
        Operation("cross_sum", Binary("add"), ("attention_sum", "cross_o")),
    ]
    operations: list[Operation] = []
    for operation in layer.operations:
        later = operation.name in ("feed_forward_norm", "feed_forward_sum")
        inputs = tuple("cross_sum" if later and n == "attention_sum" else n for n in operation.inputs)
        operations.append(replace(operation, inputs=inputs))
        if operation.name == "attention_sum":
            operations += own
    return replace(layer, operations=tuple(operations))


def random_source(graph: LogicalGraph, rows: int, seed: int = 0) -> list[np.ndarray]:
    """Keys and values of each layer in turn, with so many rows."""
    rng = np.random.default_rng(seed)
    found = [o.op for _, o in graph.walk() if isinstance(o.op, SourceAttention)]
    return [
        rng.normal(size=(rows, op.kv_heads * op.head_dim)).astype(np.float32)
        for op in found
        for _ in range(2)
    ]
