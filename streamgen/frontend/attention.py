"""Attention of an exported decoder: found from its output back to q, k, v, verified by what is computed.

Heads, repeats, halves and the cache are read from `Origins`, whatever calls move them. Tables are run:

* the mask must be causal over the whole context, with the queries at its end, so that a window shows;
* cosines and sines give the frequencies of the rotation (`rotation`).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from streamgen.frontend.assembly import AttentionParts, Rotation
from streamgen.frontend.origins import Origins, renamed
from streamgen.frontend.rotation import Turn, find_rotary
from streamgen.frontend.trace import Mismatch, aten, shape
from streamgen.frontend.values import Values
from streamgen.operations import Linear

__all__ = ["match_attention"]

MASKED = -1e4  # a mask adds at most this: nothing is left of the term in any float


@dataclass
class _Projection:
    """Heads of one Linear. rows: [heads, head_dim] of its weight. turned: None, or how pairs rotate."""

    linear: Node
    rows: torch.Tensor
    rotation: Rotation | None


@dataclass
class _Call:
    """softmax(scale q @ k.T, masked) @ v; q, k, v nodes of shape [.., heads, tokens, head_dim]."""

    q: Node
    k: Node
    v: Node
    scale: float
    transposed_keys: bool


def match_attention(
    values: Values, o: Linear, inner: Node, layer: int, context: int
) -> tuple[AttentionParts, Node]:
    """The attention of a layer whose output projection o reads `inner`, and the rows that it reads itself."""
    return _Matcher(values, layer, context).run(o, inner)


class _Matcher:
    def __init__(self, values: Values, layer: int, context: int) -> None:
        self.values = values
        self.context = context
        self.origins = Origins()
        layers = (len(values.inputs) - 2) // 2
        self.past = (values.inputs[2 + layer], values.inputs[2 + layers + layer])
        self.present = (values.results[1 + layer], values.results[1 + layers + layer])
        self.kv_heads, P, self.head_dim = shape(self.past[0])[1:]
        self.positions = torch.arange(P, context)

    def run(self, o: Linear, inner: Node) -> tuple[AttentionParts, Node]:
        source = self._side_by_side(inner)
        call = self._call(source)
        T, S = len(self.positions), self.context
        q = self.origins.of(call.q)
        heads = q.numel() // (T * self.head_dim)
        if q.numel() != heads * T * self.head_dim or heads % self.kv_heads:
            raise Mismatch(
                source, f"queries of shape {list(q.shape)} do not fit key heads of {self.head_dim} features"
            )
        stored = [self._cache(self.present[i], self.past[i]) for i in (0, 1)]
        group = torch.arange(heads) // (heads // self.kv_heads)
        for name, node, kept in (("keys", call.k, stored[0]), ("values", call.v, stored[1])):
            read = self.origins.of(node)
            if name == "keys" and call.transposed_keys:
                read = read.transpose(-1, -2)
            expected = kept if read.numel() == kept.numel() else kept[group]
            if read.shape[-2:] != (S, self.head_dim) or not torch.equal(
                read.reshape(expected.shape), expected
            ):
                raise Mismatch(
                    source, f"query head h must read the {name} of head h // {heads // self.kv_heads}"
                )
        P = S - T
        parts = {
            "q": self._projection(q.reshape(heads, T, self.head_dim), source),
            "k": self._projection(stored[0][:, P:], source),
            "v": self._projection(stored[1][:, P:], source),
        }
        if parts["v"].rotation is not None:
            raise Mismatch(source, "values must not rotate")
        self._same_rotation(parts["q"].rotation, parts["k"].rotation, source)
        linears = {}
        reads = []
        for name, part in parts.items():
            linears[name], x = self.values.taken(part.linear, part.rows.reshape(-1))
            reads.append(self.values.rows(x))
        if any(x is not reads[0] for x in reads):
            raise Mismatch(source, "q, k and v must be made of the same rows")
        attention = AttentionParts(
            heads=heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            scale=call.scale,
            q=linears["q"],
            k=linears["k"],
            v=linears["v"],
            o=o,
            rotation=parts["q"].rotation,
        )
        return attention, reads[0]

    def _side_by_side(self, inner: Node) -> Node:
        """The call whose heads [heads, T, head_dim] are the rows [T, heads * head_dim] of `inner`."""
        indices = self.origins.of(inner)
        parts = self.origins.split(indices)
        source = parts[0][0]
        T = len(self.positions)
        if len(parts) != 1 or self.values.target(source) not in (
            aten.scaled_dot_product_attention.default,
            aten.matmul.default,
        ):
            raise Mismatch(source, "the output of an attention is needed here")
        if shape(source)[-2] != T or shape(inner)[:-1].numel() != T:
            raise Mismatch(source, f"its queries must be the {T} tokens of the pass")
        heads = self.origins.of(source).reshape(-1, T, shape(source)[-1])
        if not torch.equal(indices.reshape(T, -1), heads.transpose(0, 1).reshape(T, -1)):
            raise Mismatch(source, "its heads must lie side by side in the rows of the output projection")
        return source

    def _call(self, node: Node) -> _Call:
        values = self.values
        if values.target(node) == aten.scaled_dot_product_attention.default:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            given: dict[str, Any] = dict(zip(names, node.args, strict=False)) | node.kwargs
            if given.get("dropout_p"):
                raise Mismatch(node, "it has dropout; call module.eval() first")
            if given.get("is_causal"):
                raise Mismatch(
                    node, "is_causal lines up the first query with the first key of the cache; give it a mask"
                )
            mask = given.get("attn_mask")
            if mask is None:
                raise Mismatch(node, "it has no causal mask")
            self._causal(node, mask, False)
            scale = given.get("scale")
            q, factor_q = self._unscaled(given["query"])
            k, factor_k = self._unscaled(given["key"])
            scale = 1 / math.sqrt(self.head_dim) if scale is None else float(scale)
            return _Call(q, k, given["value"], scale * factor_q * factor_k, False)
        terms, v = node.args
        softmax = renamed(terms)
        if values.target(softmax) != aten.softmax.int or softmax.args[1] not in (-1, len(shape(softmax)) - 1):
            raise Mismatch(softmax, "a softmax over the keys is needed here")
        scores = self._unmasked(renamed(softmax.args[0]))
        scores, scale = self._unscaled(scores)
        if values.target(scores) != aten.matmul.default:
            raise Mismatch(scores, "scores must be scale * q @ k.T, masked by one mask")
        q, factor_q = self._unscaled(scores.args[0])
        k, factor_k = self._unscaled(scores.args[1])
        return _Call(q, k, v, scale * factor_q * factor_k, True)

    def _unscaled(self, node: Node) -> tuple[Node, float]:
        """What a product with one number reads, and the number."""
        node = renamed(node)
        for target, inverse in ((aten.mul.Tensor, False), (aten.div.Tensor, True)):
            pair = self.values.data_and_other(node, target)
            factor = None if pair is None else self.values.scalar(pair[1])
            if pair is not None and factor is not None and (not inverse or node.args[0] is pair[0]):
                inner, before = self._unscaled(pair[0])
                return inner, before / factor if inverse else before * factor
        return node, 1.0

    def _unmasked(self, node: Node) -> Node:
        """The scores under a mask that is added or filled in."""
        values = self.values
        added = values.data_and_other(node, aten.add.Tensor)
        if added is not None and values.is_table(added[1]):
            self._causal(node, added[1], False)
            return renamed(added[0])
        if values.target(node) in (aten.masked_fill.Scalar, aten.masked_fill.Tensor):
            scores, mask, fill = node.args
            self._filled(node, fill)
            self._causal(node, mask, True)
            return renamed(scores)
        if values.target(node) in (aten.where.ScalarOther, aten.where.self):
            mask, scores, fill = node.args
            self._filled(node, fill)
            self._causal(node, mask, False)
            return renamed(scores)
        raise Mismatch(node, "scores must have a causal mask, added or filled in before the softmax")

    def _filled(self, node: Node, fill: Any) -> None:
        number = self.values.scalar(fill)
        if number is None or number > MASKED:
            raise Mismatch(node, f"masked scores must become one number of at most {MASKED:.0f}")

    def _causal(self, node: Node, mask: Any, inverted: bool) -> None:
        """Query t of position p sees keys 0 ... p, of all the context; inverted: true where it does not."""
        if not self.values.is_table(mask):
            raise Mismatch(node, "its mask depends on more than positions")
        table = self.values.table(mask, self.positions)
        if table.dtype == torch.bool:
            seen = ~table if inverted else table
        else:
            seen = table == 0
            if inverted or not (seen | (table <= MASKED)).all():
                raise Mismatch(node, f"its mask adds something else than 0 or at most {MASKED:.0f}")
        causal = torch.arange(self.context) <= self.positions[:, None]
        try:
            seen = seen.broadcast_to((*seen.shape[:-2], *causal.shape))
        except RuntimeError:
            raise Mismatch(node, f"its mask has shape {list(table.shape)}") from None
        if not (seen == causal).all():
            first = int(seen.reshape(-1, *causal.shape)[0, -1].int().argmax())
            window = f"; the last query starts at key {first}" if first else ""
            raise Mismatch(
                node, f"its mask is not causal over the whole context of {self.context} positions{window}"
            )

    def _cache(self, present: Node, past: Node) -> torch.Tensor:
        """Indices [kv_heads, context, head_dim] of a cache that starts with the one before."""
        indices = self.origins.of(present)
        before = self.origins.of(past)
        P = before.shape[2]
        if indices.shape != (1, self.kv_heads, self.context, self.head_dim) or not torch.equal(
            indices[:, :, :P], before
        ):
            raise Mismatch(present, "the cache returned must be the cache given, with this pass behind it")
        return indices[0]

    def _projection(self, indices: torch.Tensor, node: Node) -> _Projection:
        """What makes the heads [n, T, head_dim] of q, k or v: rows of one Linear, rotated or not."""
        T = indices.shape[1]
        main = torch.zeros_like(indices)  # 1 + position in the output of the Linear
        partner = torch.zeros_like(indices)  # the same of the other of a pair, negative where subtracted
        linear: Node | None = None
        turns: list[Turn] = []
        for source, mask, positions in self.origins.split(indices):
            if self.values.target(source) == aten.linear.default:
                found, straight = source, torch.where(indices > 0, 1 + positions, 0)
                main[mask] = straight[mask]
            else:
                turn = Turn(self.values, source, positions, mask, T)
                found = turn.linear
                main[mask], partner[mask] = turn.main, turn.partner
                turns.append(turn)
            if linear is not None and found is not linear:
                raise Mismatch(source, "heads must come from one Linear")
            linear = found
        if linear is None:
            raise Mismatch(node, "heads must come from a Linear")
        features = shape(linear)[-1]
        rows = (main[:, 0] - 1) % features
        tokens = torch.arange(T)[None, :, None] * features
        if (main <= 0).any() or not torch.equal(main - 1, tokens + rows[:, None]):
            raise Mismatch(linear, "its features are mixed from token to token")
        rotation = find_rotary(rows, partner, turns, self.context) if turns else None
        return _Projection(linear, rows, rotation)

    def _same_rotation(self, q: Rotation | None, k: Rotation | None, node: Node) -> None:
        if q is None and k is None:
            return
        if (
            q is None
            or k is None
            or q.interleaved != k.interleaved
            or not np.array_equal(q.frequencies, k.frequencies)
        ):
            raise Mismatch(node, "q and k must rotate alike")
