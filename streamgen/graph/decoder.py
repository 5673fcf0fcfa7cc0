"""Decoder-only language models: what a checkpoint says, before anything is said about hardware.

A `Decoder` is the logical form of a model of the Llama family: frontends make it, of torch modules and of
checkpoints; golden models and lowering read it. A pass works on tokens ids [T] at positions p ... p + T - 1
and appends their keys and values to a cache:

    x = embedding[ids]
    each layer:  x = x + o(attention(rotate(q(n)), rotate(k(n)), v(n)))     n = attention_norm(x)
                 x = x + down(function(gate(m)) * up(m))                    m = feed_forward_norm(x)
    logits = head(norm(x))
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from streamgen.errors import GraphError
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


@dataclass(frozen=True, eq=False)
class Rotary:
    """Rotary position embedding. frequencies: float64 [rotated / 2], radians a position, after any scaling.

    interleaved: pairs are neighbours (2j, 2j + 1), else halves (j, j + rotated / 2). The first `rotated`
    dimensions of a head rotate.
    """

    frequencies: np.ndarray
    interleaved: bool = False

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


@dataclass(frozen=True, eq=False)
class DecoderLayer:
    """One layer."""

    attention_norm: Norm
    attention: Attention
    feed_forward_norm: Norm
    feed_forward: GatedFeedForward


@dataclass(frozen=True, eq=False)
class Decoder:
    """A model. embedding: float32 [vocabulary, hidden]. context: positions it was made for."""

    name: str
    embedding: np.ndarray
    layers: tuple[DecoderLayer, ...]
    norm: Norm
    head: Linear
    context: int

    @property
    def vocabulary(self) -> int:
        """Token ids are below it."""
        return int(self.embedding.shape[0])

    @property
    def hidden(self) -> int:
        """Features of the residual."""
        return int(self.embedding.shape[1])
