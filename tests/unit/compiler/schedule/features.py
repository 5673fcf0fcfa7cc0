"""Language models with features that decoders of one family lack, made of plain ones."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from streamgen.model.graph.logical import LogicalGraph, Operation, Repeat
from streamgen.model.operations import Attention, Norm, Rotary

__all__ = ["FEATURES", "post_norms", "query_norms", "soft_caps", "windows"]

Change = Callable[[int, Operation], list[Operation]]


def _changed(model: LogicalGraph, change: Change) -> LogicalGraph:
    """Every operation of every layer replaced by those that `change` gives."""

    def layer(index: int, graph: LogicalGraph) -> LogicalGraph:
        return replace(graph, operations=tuple(new for o in graph.operations for new in change(index, o)))

    (layers,) = (o.op for o in model.operations if isinstance(o.op, Repeat))
    repeat = Repeat(tuple(layer(index, graph) for index, graph in enumerate(layers.layers)))
    return replace(
        model,
        operations=tuple(replace(o, op=repeat) if isinstance(o.op, Repeat) else o for o in model.operations),
    )


def _norm(index: int, features: int, heads: int = 1) -> Norm:
    weight = np.random.default_rng(index).normal(size=features).astype(np.float32)
    return Norm("rms", weight, 1e-6, heads=heads, plus_one=True)


def windows(model: LogicalGraph) -> LogicalGraph:
    """Layers in turn see three positions and all of them."""

    def change(index: int, o: Operation) -> list[Operation]:
        local = isinstance(o.op, Attention) and index % 2 == 0
        return [replace(o, op=replace(o.op, window=3)) if local else o]  # type: ignore[type-var]

    return _changed(model, change)


def soft_caps(model: LogicalGraph) -> LogicalGraph:
    """Scores are soft-capped."""

    def change(index: int, o: Operation) -> list[Operation]:
        return [replace(o, op=replace(o.op, soft_cap=0.5)) if isinstance(o.op, Attention) else o]

    return _changed(model, change)


def query_norms(model: LogicalGraph) -> LogicalGraph:
    """Heads of queries and keys are normalised before they rotate."""

    def change(index: int, o: Operation) -> list[Operation]:
        if not isinstance(o.op, Rotary):
            return [o]
        name = f"norm_{o.name}"
        norm = _norm(index, o.op.head_dim, o.op.heads)
        return [Operation(name, norm, o.inputs), replace(o, inputs=(name,))]

    return _changed(model, change)


def post_norms(model: LogicalGraph) -> LogicalGraph:
    """What is added to the residual is normalised before."""

    def change(index: int, o: Operation) -> list[Operation]:
        if not o.name.endswith("_sum"):
            return [o]
        before, added = o.inputs
        features = model.shapes["embedding"].features
        norm = Operation(f"post_{o.name}", _norm(index, features), (added,))
        return [norm, replace(o, inputs=(before, norm.name))]

    return _changed(model, change)


FEATURES: dict[str, Callable[[LogicalGraph], LogicalGraph]] = {
    "windows in turn": windows,
    "soft-caps": soft_caps,
    "norms of queries and keys": query_norms,
    "norms behind attention": post_norms,
}
