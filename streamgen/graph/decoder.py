"""Decoder-only language models: what a checkpoint says, before anything is said about hardware.

A `Decoder` is the logical form of a model of the Llama family: frontends make it, of torch modules and of
checkpoints; golden models and lowering read it. A pass works on tokens ids [T] at positions p ... p + T - 1
and appends their keys and values to a cache:

    x = embedding[ids]
    each layer:  x = x + o(attention(rotate(q(n)), rotate(k(n)), v(n)))     n = attention_norm(x)
                 x = x + down(function(gate(m)) * up(m))                    m = feed_forward_norm(x)
    logits = head(norm(x))

Everything is checked when it is made: GraphError names the part, what it has and what it needs.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from streamgen.errors import GraphError
from streamgen.graph import decoder_reference
from streamgen.graph.decoder_reference import Cache
from streamgen.graph.ops import UNARY_FUNCTIONS, Linear

__all__ = ["Attention", "Decoder", "DecoderLayer", "GatedFeedForward", "Norm", "Rotary"]


@dataclass(frozen=True, eq=False)
class Norm:
    """RMSNorm or LayerNorm of a row. weight, bias: float32 [features]; plus_one: the factor is 1 + weight."""

    kind: Literal["rms", "layer"]
    weight: np.ndarray
    epsilon: float
    bias: np.ndarray | None = None
    plus_one: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("rms", "layer"):
            raise GraphError(f"there is no norm of kind {self.kind!r}; 'rms' and 'layer' are known")
        if self.weight.ndim != 1 or not self.weight.size:
            raise GraphError(
                f"the weight of a norm has shape {list(self.weight.shape)}; [features] is needed"
            )
        if self.bias is not None and self.bias.shape != self.weight.shape:
            raise GraphError(
                f"a norm has weight {list(self.weight.shape)} and bias {list(self.bias.shape)}; "
                "both must be [features]"
            )
        if not 0 <= self.epsilon < np.inf:
            raise GraphError(f"the epsilon of a norm is {self.epsilon}; it must be finite, 0 or more")


@dataclass(frozen=True, eq=False)
class Rotary:
    """Rotary position embedding. frequencies: float64 [rotated / 2], radians a position, after any scaling.

    interleaved: pairs are neighbours (2j, 2j + 1), else halves (j, j + rotated / 2). The first `rotated`
    dimensions of a head rotate.
    """

    frequencies: np.ndarray
    interleaved: bool = False

    def __post_init__(self) -> None:
        if self.frequencies.ndim != 1 or not self.frequencies.size:
            raise GraphError(
                f"frequencies have shape {list(self.frequencies.shape)}; [rotated / 2] is needed"
            )
        if not np.isfinite(self.frequencies).all():
            raise GraphError("rotary frequencies must all be finite")

    @property
    def rotated(self) -> int:
        """Dimensions of a head that rotate."""
        return 2 * len(self.frequencies)


@dataclass(frozen=True, eq=False)
class Attention:
    """Grouped-query attention: query head h reads key and value head h // (heads / kv_heads).

    scale: what a product of q and k is multiplied with. Rows of q, k, v weights lie head by head.
    """

    heads: int
    kv_heads: int
    head_dim: int
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    scale: float
    rotary: Rotary | None = None

    def __post_init__(self) -> None:
        for name in ("heads", "kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise GraphError(f"{name} of an attention is {getattr(self, name)}; at least 1 is needed")
        if self.heads % self.kv_heads:
            raise GraphError(f"{self.heads} query heads cannot share {self.kv_heads} key heads evenly")
        rows = {"q": self.heads, "k": self.kv_heads, "v": self.kv_heads}
        for name, heads in rows.items():
            found = getattr(self, name).weight.shape[0]
            if found != heads * self.head_dim:
                raise GraphError(
                    f"{name} has {found} rows; {heads} heads of {self.head_dim} need {heads * self.head_dim}"
                )
        if self.o.weight.shape[1] != self.heads * self.head_dim:
            raise GraphError(f"o takes {self.o.weight.shape[1]} features, not {self.heads * self.head_dim}")
        if self.rotary is not None and self.rotary.rotated > self.head_dim:
            raise GraphError(f"{self.rotary.rotated} dimensions rotate, a head has {self.head_dim}")


@dataclass(frozen=True, eq=False)
class GatedFeedForward:
    """down(function(gate(x)) * up(x)); function: one of UNARY_FUNCTIONS."""

    gate: Linear
    up: Linear
    down: Linear
    function: str

    def __post_init__(self) -> None:
        if self.function not in UNARY_FUNCTIONS:
            raise GraphError(f"there is no unary function {self.function!r}; {', '.join(UNARY_FUNCTIONS)}")
        gate, up, down = (list(part.weight.shape) for part in (self.gate, self.up, self.down))
        if gate != up or down[1] != gate[0]:
            raise GraphError(f"gate {gate}, up {up} and down {down} of a feed-forward block do not fit")


@dataclass(frozen=True, eq=False)
class DecoderLayer:
    """One layer."""

    attention_norm: Norm
    attention: Attention
    feed_forward_norm: Norm
    feed_forward: GatedFeedForward


@dataclass(frozen=True, eq=False)
class Decoder:
    """A model. embedding: float32 [vocabulary, hidden]. context: positions it was made for.

    A tied head has the very array `embedding` as its weight (`tied`).
    """

    name: str
    embedding: np.ndarray
    layers: tuple[DecoderLayer, ...]
    norm: Norm
    head: Linear
    context: int

    def __post_init__(self) -> None:
        if self.embedding.ndim != 2 or not self.embedding.size:
            raise GraphError(
                f"the embedding has shape {list(self.embedding.shape)}; [vocabulary, hidden] is needed"
            )
        if not self.layers:
            raise GraphError("a decoder needs at least one layer")
        if self.context < 1:
            raise GraphError(f"the context is {self.context} positions; at least 1 is needed")
        hidden = self.hidden
        found = [("norm", self.norm.weight.shape[0]), ("head", self.head.weight.shape[1])]
        for index, layer in enumerate(self.layers):
            attention, block = layer.attention, layer.feed_forward
            found += [
                (f"layers[{index}].{name}", features)
                for name, features in (
                    ("attention_norm", layer.attention_norm.weight.shape[0]),
                    ("attention.q", attention.q.weight.shape[1]),
                    ("attention.k", attention.k.weight.shape[1]),
                    ("attention.v", attention.v.weight.shape[1]),
                    ("attention.o", attention.o.weight.shape[0]),
                    ("feed_forward_norm", layer.feed_forward_norm.weight.shape[0]),
                    ("feed_forward.gate", block.gate.weight.shape[1]),
                    ("feed_forward.down", block.down.weight.shape[0]),
                )
            ]
        for name, features in found:
            if features != hidden:
                raise GraphError(f"{name} has {features} features at the residual, which has {hidden}")
        if self.head.weight.shape[0] != self.vocabulary:
            raise GraphError(
                f"the head has {self.head.weight.shape[0]} rows, the embedding {self.vocabulary}"
            )

    @property
    def vocabulary(self) -> int:
        """Token ids are below it."""
        return int(self.embedding.shape[0])

    @property
    def hidden(self) -> int:
        """Features of the residual."""
        return int(self.embedding.shape[1])

    @property
    def tied(self) -> bool:
        """Whether head and embedding are one array."""
        return self.head.weight is self.embedding

    def reference(self, ids: npt.ArrayLike, cache: Cache | None = None) -> tuple[np.ndarray, Cache]:
        """Run one pass in float64: logits [T, vocabulary] of tokens ids [T], and the cache they leave.

        Passes may split a text anywhere; without a cache a text starts. ValueError or TypeError when ids are
        not known tokens, or exceed the context. See `decoder_reference` for the cache.
        """
        return decoder_reference.run(self, ids, cache)
