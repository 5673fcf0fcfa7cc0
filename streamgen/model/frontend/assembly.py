"""Logical graphs of decoder-only language models, assembled from their parts.

    x = embedding[ids]
    each layer:  n = attention_norm(x)
                 x = x + o(attention(rotate(q(n)), cache(rotate(k(n))), cache(v(n))))
                 m = feed_forward_norm(x)
                 x = x + down(function(gate(m)) * up(m))
    logits = head(norm(last row of x))          best = the largest logit and its id

Frontends read the parts from modules and checkpoints; all differences between families are in these parts.
The paths of operations are `embedding`, `layers[3].q`, `norm`, `logits`; messages use them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.model.graph.logical import Input, LogicalGraph, Operation, Operator, Repeat
from streamgen.model.operations import (
    Attention,
    Binary,
    Cache,
    Embedding,
    LastRow,
    Linear,
    Norm,
    Rotary,
    TopK,
    Unary,
)
from streamgen.numbers.stored import StoredArray

IDS = Input("ids", 1, "ids")
TRACED = 3  # tokens of the pass for which a decoder is traced: one would hide a mask, two look like pairs


UNASKED = 2048  # positions for which a model is traced, when nobody asks for a number


def traced_positions(most: int, wanted: int | None) -> int:
    """The number of positions of a graph for texts of up to `wanted` positions; the model allows `most`."""
    return most if wanted is None else min(most, max(wanted, TRACED + 1))


@dataclass(frozen=True, eq=False)
class Rotation:
    """Rotary positions. frequencies: float64 [rotated / 2], in radians per position, after any scaling.

    interleaved: pairs are neighbours (2j, 2j + 1); otherwise they are halves (j, j + rotated / 2).
    """

    frequencies: np.ndarray
    interleaved: bool = False

    @property
    def rotated(self) -> int:
        """The number of rotated dimensions of a head."""
        return 2 * len(self.frequencies)


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionParts:
    """The parts of an attention. scale: the factor of each product of q and k. The rows of q, k and v are
    sorted by head. window: the number of positions that a query sees; None means all."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    rotation: Rotation | None = None
    window: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class FeedForwardParts:
    """down(function(gate(x)) * up(x))."""

    gate: Linear
    up: Linear
    down: Linear
    function: str


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerParts:
    """The parts of one layer."""

    attention_norm: Norm
    attention: AttentionParts
    feed_forward_norm: Norm
    feed_forward: FeedForwardParts


class Assembly:
    """A graph of one input. Operations are added in order; the output is the value of the last one."""

    def __init__(self, given: Input = IDS) -> None:
        self._given = given
        self._operations: list[Operation] = []

    def add(self, name: str, op: Operator, *inputs: str) -> str:
        """Add one operation; return the name of its value."""
        self._operations.append(Operation(name, op, inputs))
        return self._operations[-1].values[0]

    def graph(self) -> LogicalGraph:
        """The graph of a layer."""
        return LogicalGraph((self._given,), tuple(self._operations), (self._operations[-1].name,))

    def language_model(
        self, name: str, x: str, layers: Sequence[LogicalGraph], norm: Norm, head: Linear, context: int
    ) -> LogicalGraph:
        """The graph of a model: adds the layers, the norm and the head after `x`, the value made from the
        ids."""
        x = self.add("layers", Repeat(tuple(layers)), x)
        logits = self.add("logits", head, self.add("norm", norm, self.add("last", LastRow(), x)))
        self.add("best", TopK(1), logits)
        return LogicalGraph(
            (self._given,),
            tuple(self._operations),
            (logits, "best_values", "best_indices"),
            name=name,
            context=context,
            requested=frozenset({logits}),
        )


def language_model(
    name: str,
    embedding: np.ndarray | StoredArray,
    layers: Sequence[LayerParts],
    norm: Norm,
    head: Linear,
    context: int,
) -> LogicalGraph:
    """The graph of a model. embedding: float32 [vocabulary, hidden], in memory or in a file. context: the
    number of positions of the model.

    If the head is tied, its weight is the same array object as `embedding`. GraphError names the parts that
    do not fit.
    """
    if context < 1:
        raise GraphError(f"the context is {context} positions; at least 1 is needed")
    table = Embedding(embedding)
    vocabulary, hidden = embedding.shape
    if head.extents[0] != vocabulary:
        raise GraphError(f"logits has {head.extents[0]} rows; {vocabulary} are needed, as many as ids")
    graphs = [_placed(f"layers[{index}]", hidden, parts) for index, parts in enumerate(layers)]
    ops = Assembly()
    return ops.language_model(name, ops.add("embedding", table, "ids"), graphs, norm, head, context)


def _placed(path: str, hidden: int, parts: LayerParts) -> LogicalGraph:
    """The graph of a layer; errors name operations by their full paths."""
    try:
        _require(hidden, parts)
        return _layer(hidden, parts)
    except GraphError as error:
        named = re.sub(r"^'(\w+)'", rf"{path}.\1", str(error))
        raise GraphError(named if named.startswith(path) else f"{path}: {error}") from None


def _require(hidden: int, parts: LayerParts) -> None:
    """Check the number of rows of each Linear. A Linear checks its own columns; these are the needs of its
    readers."""
    a, block = parts.attention, parts.feed_forward
    Unary(block.function)
    wide = block.gate.extents[0]
    for name, linear, rows, reason in (
        ("q", a.q, a.heads * a.head_dim, f"{a.heads} heads of {a.head_dim}"),
        ("k", a.k, a.kv_heads * a.head_dim, f"{a.kv_heads} heads of {a.head_dim}"),
        ("v", a.v, a.kv_heads * a.head_dim, f"{a.kv_heads} heads of {a.head_dim}"),
        ("o", a.o, hidden, "the features of the residual"),
        ("up", block.up, wide, "as many as gate has"),
        ("down", block.down, hidden, "the features of the residual"),
    ):
        if (given := linear.extents[0]) != rows:
            raise GraphError(f"{name!r} has {given} rows; {rows} are needed, {reason}")


def _layer(hidden: int, parts: LayerParts) -> LogicalGraph:
    a, block, ops = parts.attention, parts.feed_forward, Assembly(Input("x", hidden))
    attend = Attention(a.heads, a.kv_heads, a.head_dim, a.scale, window=a.window)
    n = ops.add("attention_norm", parts.attention_norm, "x")
    q, k, v = (ops.add(name, linear, n) for name, linear in (("q", a.q), ("k", a.k), ("v", a.v)))
    if a.rotation is not None:
        f, interleaved = tuple(a.rotation.frequencies), a.rotation.interleaved
        q = ops.add("rotate_q", Rotary(a.heads, a.head_dim, f, interleaved), q)
        k = ops.add("rotate_k", Rotary(a.kv_heads, a.head_dim, f, interleaved), k)
    keys = ops.add("keys", Cache(a.kv_heads, a.head_dim), k)
    values = ops.add("values", Cache(a.kv_heads, a.head_dim), v)
    mixed = ops.add("o", a.o, ops.add("attention", attend, q, keys, values))
    y = ops.add("attention_sum", Binary("add"), "x", mixed)
    m = ops.add("feed_forward_norm", parts.feed_forward_norm, y)
    gate, up = ops.add("gate", block.gate, m), ops.add("up", block.up, m)
    gated = ops.add("gated", Binary(f"{block.function}_mul"), gate, up)
    ops.add("feed_forward_sum", Binary("add"), y, ops.add("down", block.down, gated))
    return ops.graph()
