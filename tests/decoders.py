"""Small decoders of random weights, and what they mean in float64."""

from functools import cache
from typing import Any

import numpy as np

import streamgen
from streamgen.config import DecoderConfig
from streamgen.decoder import DecoderAccelerator
from streamgen.graph.decoder import Attention, Decoder, DecoderLayer, GatedFeedForward, Norm, Rotary
from streamgen.graph.ops import UNARY_FUNCTIONS, Linear
from streamgen.tokenizer import Tokenizer, Vocabulary

__all__ = ["TINY", "WORDS", "random_decoder", "reference", "tiny_accelerator", "tiny_decoder"]

TINY = DecoderConfig(name="tiny", max_tokens=4, context=72, channels=2, n_lanes=2, lanes=2)
WORDS = Tokenizer(
    Vocabulary(
        tokens=[chr(ord("!") + i) for i in range(64)],
        types=[1] * 64,
        merges=[],
        pre_tokenizer="gpt-2",
    )
)


def random_decoder(seed: int = 0, **changes: Any) -> Decoder:
    """A decoder of 2 layers, with `changes` of what is given below."""
    given = {"hidden": 96, "heads": 4, "kv_heads": 2, "head_dim": 32, "wide": 160, "function": "silu"}
    given |= {
        "bias": False,
        "norm": "rms",
        "plus_one": False,
        "interleaved": False,
        "rotated": 32,
        "layers": 2,
    }
    given |= {"vocabulary": 70, "context": 64, **changes}
    rng = np.random.default_rng(seed)
    hidden, d = given["hidden"], given["head_dim"]

    def floats(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (rng.normal(size=shape) * scale).astype(np.float32)

    def linear(N: int, K: int) -> Linear:
        return Linear(floats(N, K, scale=K**-0.5), floats(N, scale=0.3) if given["bias"] else None)

    def norm() -> Norm:
        layer = given["norm"] == "layer"
        weight = floats(hidden, scale=0.2) + np.float32(0 if given["plus_one"] else 1)
        bias = floats(hidden, scale=0.2) if layer else None
        return Norm(given["norm"], weight, 1e-5, bias=bias, plus_one=given["plus_one"])

    rotated = given["rotated"]
    rotary = (
        Rotary(1000.0 ** (-np.arange(0, rotated, 2) / rotated), given["interleaved"]) if rotated else None
    )
    layers = []
    for _ in range(given["layers"]):
        attention = Attention(
            heads=given["heads"],
            kv_heads=given["kv_heads"],
            head_dim=d,
            q=linear(given["heads"] * d, hidden),
            k=linear(given["kv_heads"] * d, hidden),
            v=linear(given["kv_heads"] * d, hidden),
            o=linear(hidden, given["heads"] * d),
            scale=d**-0.5,
            rotary=rotary,
        )
        block = GatedFeedForward(
            linear(given["wide"], hidden),
            linear(given["wide"], hidden),
            linear(hidden, given["wide"]),
            given["function"],
        )
        layers.append(DecoderLayer(norm(), attention, norm(), block))
    embedding = floats(given["vocabulary"], hidden)
    head = Linear(floats(given["vocabulary"], hidden, scale=hidden**-0.5))
    return Decoder("random", embedding, tuple(layers), norm(), head, given["context"])


def tiny_decoder() -> Decoder:
    """The least that is one: hardware of it is built in a minute."""
    return random_decoder(hidden=64, head_dim=16, rotated=16, wide=96, vocabulary=64, context=128)


@cache
def tiny_accelerator() -> DecoderAccelerator:
    """Compiled once a process; its simulator is built once for all tests."""
    return streamgen.compile_decoder(tiny_decoder(), TINY, tokenizer=WORDS)


def reference(decoder: Decoder, ids: np.ndarray) -> np.ndarray:
    """float64 logits of a whole text, nothing quantised."""
    x = decoder.embedding[ids].astype(np.float64)
    for layer in decoder.layers:
        x = x + _attention(layer.attention, _norm(layer.attention_norm, x))
        block, n = layer.feed_forward, _norm(layer.feed_forward_norm, x)
        gate = UNARY_FUNCTIONS[block.function](block.gate.reference(n))
        x = x + block.down.reference(gate * block.up.reference(n))
    return decoder.head.reference(_norm(decoder.norm, x))


def _norm(norm: Norm, x: np.ndarray) -> np.ndarray:
    if norm.kind == "layer":
        x = x - x.mean(axis=1, keepdims=True)
    x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + norm.epsilon)
    x = x * (norm.weight.astype(np.float64) + norm.plus_one)
    return x if norm.bias is None else x + norm.bias


def _attention(a: Attention, n: np.ndarray) -> np.ndarray:
    T = len(n)
    q, k, v = (
        part.reference(n).reshape(T, heads, a.head_dim).swapaxes(0, 1)
        for part, heads in ((a.q, a.heads), (a.k, a.kv_heads), (a.v, a.kv_heads))
    )
    if a.rotary is not None:
        q, k = _rotate(a.rotary, q), _rotate(a.rotary, k)
    k, v = (np.repeat(part, a.heads // a.kv_heads, axis=0) for part in (k, v))
    scores = q @ k.swapaxes(1, 2) * a.scale
    scores[:, ~np.tri(T, dtype=bool)] = -np.inf
    p = np.exp(scores - scores.max(axis=2, keepdims=True))
    o = p @ v / p.sum(axis=2, keepdims=True)
    return a.o.reference(o.swapaxes(0, 1).reshape(T, -1))


def _rotate(rotary: Rotary, x: np.ndarray) -> np.ndarray:
    angles = np.outer(np.arange(x.shape[1]), rotary.frequencies)
    turned, half = x.copy(), rotary.rotated // 2
    first = np.arange(half) * 2 if rotary.interleaved else np.arange(half)
    second = first + (1 if rotary.interleaved else half)
    a, b, c, s = x[..., first], x[..., second], np.cos(angles), np.sin(angles)
    turned[..., first], turned[..., second] = a * c - b * s, b * c + a * s
    return turned
