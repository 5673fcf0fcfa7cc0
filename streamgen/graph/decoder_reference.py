"""A Decoder in float64: the meaning that quantised hardware approaches.

Softmax, norms and rotations are written as their equations, in numpy, without any rounding of ours:

    rotate (halves)      y[j] = x[j] cos(p f[j]) - x[j + r/2] sin(p f[j])
                         y[j + r/2] = x[j + r/2] cos(p f[j]) + x[j] sin(p f[j])            j < r/2
    attention            out[t, h] = softmax over s <= p(t) of (scale q[t, h] . k[s, g]) @ v[s, g]

A cache holds, for each layer, rotated keys and values, float64 [positions, kv_heads, head_dim]. It is a
value: `run` returns a longer one and leaves the given one as it is, so any pass may be run again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streamgen.graph.ops import UNARY_FUNCTIONS

if TYPE_CHECKING:
    from streamgen.graph.decoder import Attention, Decoder, GatedFeedForward, Norm, Rotary

__all__ = ["Cache", "attend", "normalise", "rotate", "run"]

Cache = tuple[tuple[np.ndarray, np.ndarray], ...]


def run(decoder: Decoder, ids: npt.ArrayLike, cache: Cache | None = None) -> tuple[np.ndarray, Cache]:
    """One pass: logits float64 [T, vocabulary] of tokens ids [T], and the cache that holds them too."""
    tokens = _checked_ids(decoder, ids)
    if cache is None:
        cache = tuple((_empty(layer.attention), _empty(layer.attention)) for layer in decoder.layers)
    start = _checked_cache(decoder, cache)
    if start + len(tokens) > decoder.context:
        raise ValueError(
            f"{start} positions in the cache and {len(tokens)} tokens exceed the context of {decoder.context}"
        )
    x = decoder.embedding[tokens].astype(np.float64)
    grown = []
    for layer, (keys, values) in zip(decoder.layers, cache, strict=True):
        mixed, keys, values = attend(layer.attention, normalise(layer.attention_norm, x), keys, values)
        grown.append((keys, values))
        x = x + mixed
        x = x + _feed_forward(layer.feed_forward, normalise(layer.feed_forward_norm, x))
    return decoder.head.reference(normalise(decoder.norm, x)), tuple(grown)


def normalise(norm: Norm, x: np.ndarray) -> np.ndarray:
    """The norm of rows x [T, features]."""
    if norm.kind == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    y = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + norm.epsilon)
    y = y * (norm.weight.astype(np.float64) + (1.0 if norm.plus_one else 0.0))
    return y if norm.bias is None else y + norm.bias.astype(np.float64)


def rotate(rotary: Rotary, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Heads x [T, heads, head_dim] at positions [T], turned."""
    angles = positions[:, None, None] * rotary.frequencies
    cos, sin = np.cos(angles), np.sin(angles)
    r = rotary.rotated
    first = slice(0, r, 2) if rotary.interleaved else slice(0, r // 2)
    second = slice(1, r, 2) if rotary.interleaved else slice(r // 2, r)
    y = x.copy()
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., second] * cos + x[..., first] * sin
    return y


def attend(
    attention: Attention, x: np.ndarray, keys: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """o(attention) of normalised rows x [T, hidden] behind these keys and values, and both grown by T."""
    T, past = len(x), len(keys)
    positions = np.arange(past, past + T)
    q = attention.q.reference(x).reshape(T, attention.heads, attention.head_dim)
    k = attention.k.reference(x).reshape(T, attention.kv_heads, attention.head_dim)
    v = attention.v.reference(x).reshape(T, attention.kv_heads, attention.head_dim)
    if attention.rotary is not None:
        q, k = rotate(attention.rotary, q, positions), rotate(attention.rotary, k, positions)
    keys, values = np.concatenate([keys, k]), np.concatenate([values, v])
    grouped = q.reshape(T, attention.kv_heads, -1, attention.head_dim)
    scores = np.einsum("tghd,sgd->ghts", grouped, keys, optimize=True) * attention.scale
    scores[..., np.arange(past + T) > positions[:, None]] = -np.inf
    terms = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out = np.einsum("ghts,sgd->tghd", terms / terms.sum(axis=-1, keepdims=True), values, optimize=True)
    return attention.o.reference(out.reshape(T, -1)), keys, values


def _feed_forward(block: GatedFeedForward, x: np.ndarray) -> np.ndarray:
    gated = UNARY_FUNCTIONS[block.function](block.gate.reference(x)) * block.up.reference(x)
    return block.down.reference(gated)


def _empty(attention: Attention) -> np.ndarray:
    return np.zeros((0, attention.kv_heads, attention.head_dim))


def _checked_ids(decoder: Decoder, ids: npt.ArrayLike) -> np.ndarray:
    tokens = np.asarray(ids)
    if tokens.ndim != 1 or not tokens.size:
        raise ValueError(f"ids have shape {list(tokens.shape)}; [T] with T >= 1 is needed")
    if not np.issubdtype(tokens.dtype, np.integer):
        raise TypeError(f"ids are {tokens.dtype}; integers are needed")
    for position in np.flatnonzero((tokens < 0) | (tokens >= decoder.vocabulary))[:1]:
        raise ValueError(
            f"ids[{position}] is {tokens[position]}; the vocabulary is 0 to {decoder.vocabulary - 1}"
        )
    return tokens


def _checked_cache(decoder: Decoder, cache: Cache) -> int:
    """Positions that the cache holds."""
    if len(cache) != len(decoder.layers):
        raise ValueError(f"the cache has {len(cache)} layers, the decoder {len(decoder.layers)}")
    positions = len(cache[0][0])
    for index, (layer, pair) in enumerate(zip(decoder.layers, cache, strict=True)):
        needed = (positions, layer.attention.kv_heads, layer.attention.head_dim)
        for name, array in zip(("keys", "values"), pair, strict=True):
            if array.shape != needed:
                raise ValueError(
                    f"the {name} of layer {index} in the cache have shape {list(array.shape)}; "
                    f"{list(needed)} is needed"
                )
    return positions
