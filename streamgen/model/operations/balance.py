"""Moves scales between operations, so that 8-bit codes lose less. The function of the graph stays the same.

Normalised queries and keys become codes with one scale per head, and only products of the two matter. If a
norm's weight makes a feature of keys large, it usually makes that of queries small, and the neighbouring
features lose precision without need. A factor for each feature balances the two:

    norm_q'[d] = norm_q[d] · f[d]     norm_k'[d] = norm_k[d] / f[d]     f[d] = sqrt(|norm_k[d]| / |norm_q[d]|)

Features that rotate as a pair have one factor, from the roots of their mean squares, because a rotation mixes
them. Source of the idea: SmoothQuant (Xiao et al., arXiv 2211.10438), which moves scales between activations
and weights.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from streamgen.model.graph.logical import LogicalGraph, Operation, Operator, Repeat
from streamgen.model.operations.attention import Attention
from streamgen.model.operations.cache import Cache
from streamgen.model.operations.norm import Norm
from streamgen.model.operations.rotary import Rotary


def balanced(graph: LogicalGraph) -> LogicalGraph:
    """The graph, with its norms of queries and keys balanced. A graph that is already balanced is returned
    unchanged."""
    changed: dict[str, Operator] = {}
    for operation in graph.operations:
        if operation.op.layers:
            layers = tuple(balanced(layer) for layer in operation.op.layers)
            if any(new is not old for new, old in zip(layers, operation.op.layers, strict=True)):
                changed[operation.name] = Repeat(layers)
        elif isinstance(operation.op, Attention):
            changed |= _evened(graph, operation, operation.op)
    if not changed:
        return graph
    operations = tuple(replace(o, op=changed.get(o.name, o.op)) for o in graph.operations)
    return replace(graph, operations=operations)


def _evened(graph: LogicalGraph, operation: Operation, attention: Attention) -> Mapping[str, Operator]:
    """By name, the balanced norms before an attention; empty if it has no such norms."""
    norms = [_norm_before(graph, value, attention.head_dim) for value in operation.inputs[:2]]
    if None in norms:
        return {}
    (q_name, q, q_turns), (k_name, k, k_turns) = norms  # type: ignore[misc]
    if q_name == k_name or q_turns != k_turns:
        return {}
    of_q, of_k = (_of_pairs(np.square(_factors(norm)), q_turns) for norm in (q, k))
    used = (of_q > 0) & (of_k > 0)
    f = np.where(used, of_k / np.where(used, of_q, 1.0), 1.0) ** 0.25
    return {} if np.allclose(f, 1, rtol=1e-5) else {q_name: _scaled(q, f), k_name: _scaled(k, 1 / f)}


def _norm_before(graph: LogicalGraph, value: str, head_dim: int) -> tuple[str, Norm, list[Rotary]] | None:
    """The norm of heads that computes an operand of an attention, and the rotations between the two, as
    rotations of one head. None if another operation reads a value in between."""
    makers = {result: operation for operation in graph.operations for result in operation.values}
    turns: list[Rotary] = []
    while value in makers and value not in graph.outputs:
        if sum(value in operation.inputs for operation in graph.operations) > 1:
            return None
        operation = makers[value]
        op = operation.op
        if isinstance(op, Norm):
            return (operation.name, op, turns) if len(op.weight) == head_dim else None
        if isinstance(op, Rotary):
            turns.append(replace(op, heads=1))
        elif not isinstance(op, Cache):
            return None
        (value,) = operation.inputs
    return None


def _of_pairs(squares: np.ndarray, turns: list[Rotary]) -> np.ndarray:
    """The squares of a head's features; features that rotate as a pair get their mean."""
    for turn in turns:
        rotated = squares[: turn.rotated]
        pairs = rotated.reshape(-1, 2) if turn.interleaved else rotated.reshape(2, -1).T
        pairs[:] = pairs.mean(axis=1, keepdims=True)
    return squares


def _factors(norm: Norm) -> np.ndarray:
    """The factors of a norm's features, float64."""
    weight: np.ndarray = norm.weight.astype(np.float64) + norm.plus_one
    return weight


def _scaled(norm: Norm, by: np.ndarray) -> Norm:
    """A norm whose features are larger by the factors `by`."""
    weight = (_factors(norm) * by - norm.plus_one).astype(np.float32)
    return replace(
        norm, weight=weight, bias=None if norm.bias is None else (norm.bias * by).astype(np.float32)
    )
