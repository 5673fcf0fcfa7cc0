"""Logical graphs of decoder-only language models, put together from their parts.

    x = embedding[ids]
    each layer:  n = attention_norm(x)
                 x = x + o(attention(rotate(q(n)), cache(rotate(k(n))), cache(v(n))))
                 m = feed_forward_norm(x)
                 x = x + down(function(gate(m)) * up(m))
    logits = head(norm(last row of x))          best = the greatest of them and its id

Frontends read the parts out of modules and checkpoints; whatever differs between families differs here.
Paths of operations are `embedding`, `layers[3].q`, `norm`, `head`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamgen.errors import GraphError
from streamgen.graph.logical import LogicalGraph, Operation, Operator, Repeat, Value
from streamgen.operations import (
    Attention,
    Binary,
    Cache,
    Embedding,
    LastRow,
    Linear,
    Norm,
    Rotary,
    TopK,
)

__all__ = ["AttentionParts", "FeedForwardParts", "decoder_layer", "language_model"]


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionParts:
    """frequencies: of the rotation, radians a position; None where nothing rotates. Rows of q, k and v lie
    head by head."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    frequencies: np.ndarray | None = None
    interleaved: bool = False
    window: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class FeedForwardParts:
    """down(function(gate(x)) * up(x))."""

    gate: Linear
    up: Linear
    down: Linear
    function: str


class _Ops:
    """Operations in the order in which they are added."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def add(self, name: str, op: Operator, *inputs: str) -> str:
        self.operations.append(Operation(name, op, inputs))
        return self.operations[-1].values[0]


def decoder_layer(
    attention_norm: Norm, attention: AttentionParts, feed_forward_norm: Norm, block: FeedForwardParts
) -> LogicalGraph:
    """One layer. GraphError when its parts do not fit."""
    a, ops = attention, _Ops()
    hidden = attention_norm.heads * len(attention_norm.weight)
    n = ops.add("attention_norm", attention_norm, "x")
    q, k, v = (ops.add(name, getattr(a, name), n) for name in "qkv")
    if a.frequencies is not None:
        f = tuple(a.frequencies)
        q = ops.add("rotate_q", Rotary(a.heads, a.head_dim, f, a.interleaved), q)
        k = ops.add("rotate_k", Rotary(a.kv_heads, a.head_dim, f, a.interleaved), k)
    keys, values = (
        ops.add(name, Cache(a.kv_heads, a.head_dim), one) for name, one in (("keys", k), ("values", v))
    )
    attend = Attention(a.heads, a.kv_heads, a.head_dim, a.scale, window=a.window)
    mixed = ops.add("o", a.o, ops.add("attention", attend, q, keys, values))
    y = ops.add("attention_sum", Binary("add"), "x", mixed)
    m = ops.add("feed_forward_norm", feed_forward_norm, y)
    gated = ops.add(
        "gated",
        Binary(f"{block.function}_mul"),
        ops.add("gate", block.gate, m),
        ops.add("up", block.up, m),
    )
    z = ops.add("feed_forward_sum", Binary("add"), y, ops.add("down", block.down, gated))
    return LogicalGraph((Value("x", hidden),), tuple(ops.operations), (z,))


def language_model(
    name: str, embedding: np.ndarray, layers: Sequence[LogicalGraph], norm: Norm, head: Linear, context: int
) -> LogicalGraph:
    """A model. embedding: float32 [vocabulary, hidden]. context: positions it was made for. A tied head has
    the very array `embedding` as its weight. GraphError when the parts do not fit."""
    if context < 1:
        raise GraphError(f"the context is {context} positions; at least 1 is needed")
    ops = _Ops()
    x = ops.add("embedding", Embedding(embedding), "ids")
    x = ops.add("layers", Repeat(tuple(layers)), x)
    logits = ops.add("logits", head, ops.add("norm", norm, ops.add("last", LastRow(), x)))
    ops.add("best", TopK(1), logits)
    return LogicalGraph(
        (Value("ids", 1, "ids"),),
        tuple(ops.operations),
        (logits, "best_values", "best_indices"),
        name=name,
        context=context,
        requested=frozenset({logits}),
    )
