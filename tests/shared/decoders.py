"""Small language models of random weights, and what they mean: one oracle, independent of the operations."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamgen
from streamgen.api.language_model import LanguageModel
from streamgen.compiler.config import CompileConfig
from streamgen.gateware.functions import FUNCTIONS
from streamgen.model.frontend.assembly import (
    AttentionParts,
    FeedForwardParts,
    LayerParts,
    Rotation,
    language_model,
)
from streamgen.model.graph.interpret import reference
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.operations import Linear, Norm
from streamgen.text.gguf_tokenizer import gguf_tokenizer
from streamgen.text.tokenizer import Tokenizer

__all__ = [
    *("MATMULS", "TINY", "WORDS", "assembled", "check_passes", "compiled_model", "is_tied", "logits_of"),
    "opened_model",
    *("random_decoder", "random_parts", "stepper", "tiny_accelerator", "tiny_decoder"),
]

MATMULS = ("q", "k", "v", "o", "gate", "up", "down")
TINY = CompileConfig(name="tiny", max_tokens=4, context=72, channels=2, n_lanes=2, lanes=2)
WORDS = gguf_tokenizer(
    {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [chr(ord("!") + i) for i in range(64)],
        "tokenizer.ggml.token_type": [1] * 64,
        "tokenizer.ggml.merges": [],
        "tokenizer.chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}",
    }
)


def random_parts(seed: int = 0, **changes: Any) -> dict[str, Any]:
    """What `language_model` takes: 2 layers, with `changes` of what is given below.

    windows: by layer in turn. scale: of attention.
    """
    given = {"hidden": 96, "heads": 4, "kv_heads": 2, "head_dim": 32, "wide": 160, "function": "silu"}
    given |= {"bias": False, "norm": "rms", "plus_one": False, "interleaved": False, "rotated": 32}
    given |= {"layers": 2, "vocabulary": 70, "context": 64, "windows": (None,), **changes}
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
    frequencies = 1000.0 ** (-np.arange(0, rotated, 2) / max(rotated, 1))
    rotation = Rotation(frequencies, given["interleaved"]) if rotated else None
    layers = []
    for index in range(given["layers"]):
        attention = AttentionParts(
            heads=given["heads"],
            kv_heads=given["kv_heads"],
            head_dim=d,
            q=linear(given["heads"] * d, hidden),
            k=linear(given["kv_heads"] * d, hidden),
            v=linear(given["kv_heads"] * d, hidden),
            o=linear(hidden, given["heads"] * d),
            scale=given.get("scale", d**-0.5),
            rotation=rotation,
            window=given["windows"][index % len(given["windows"])],
        )
        block = FeedForwardParts(
            gate=linear(given["wide"], hidden),
            up=linear(given["wide"], hidden),
            down=linear(hidden, given["wide"]),
            function=given["function"],
        )
        layers.append(
            LayerParts(
                attention_norm=norm(), attention=attention, feed_forward_norm=norm(), feed_forward=block
            )
        )
    embedding = floats(given["vocabulary"], hidden)
    head = Linear(floats(given["vocabulary"], hidden, scale=hidden**-0.5))
    return {"embedding": embedding, "layers": layers, "norm": norm(), "head": head} | {
        "context": given["context"]
    }


def assembled(parts: dict[str, Any]) -> LogicalGraph:
    """The model of parts."""
    return language_model("random", **parts)


def random_decoder(seed: int = 0, **changes: Any) -> LogicalGraph:
    """The model of `random_parts`."""
    return assembled(random_parts(seed, **changes))


def tiny_decoder(**changes: Any) -> LogicalGraph:
    """The least that is one: hardware of it is built in a minute."""
    sizes = {"hidden": 64, "head_dim": 16, "rotated": 16, "wide": 96, "vocabulary": 64, "context": 128}
    return random_decoder(**sizes, **changes)


@cache
def tiny_accelerator() -> LanguageModel:
    """Compiled once a process; its simulator is built once for all tests."""
    return compiled_model(tiny_decoder(), TINY, tokenizer=WORDS)


def compiled_model(
    graph: LogicalGraph, config: CompileConfig, tokenizer: Tokenizer | None = None
) -> LanguageModel:
    """The accelerator of a language model."""
    found = streamgen.compile(graph, None, config, tokenizer=tokenizer)
    assert isinstance(found, LanguageModel)
    return found


def opened_model(folder: Path, *, changed_files: bool = False) -> LanguageModel:
    """A language model that was written."""
    found = streamgen.load(folder, changed_files=changed_files)
    assert isinstance(found, LanguageModel)
    return found


def is_tied(graph: LogicalGraph) -> bool:
    """Whether head and embedding are one array."""
    return graph.op("logits").weight is graph.op("embedding").table


def stepper(graph: LogicalGraph, dtype: Any = np.float64) -> Callable[[Any], np.ndarray]:
    """The reference, pass by pass: ids to the logits behind each of them."""
    run, position, state = reference(graph, dtype), 0, None

    def step(ids: Any) -> np.ndarray:
        nonlocal position, state
        outputs, state = run({"ids": ids}, position=position, state=state, every_row=True)
        position += len(ids)
        return outputs["logits"]

    return step


def logits_of(parts: dict[str, Any], ids: np.ndarray) -> np.ndarray:
    """float64 [tokens, vocabulary] behind each token of a text, by the equations, nothing quantised."""
    x = parts["embedding"][ids].astype(np.float64)
    for layer in parts["layers"]:
        x = x + _attention(layer.attention, _norm(layer.attention_norm, x))
        block, n = layer.feed_forward, _norm(layer.feed_forward_norm, x)
        gate = FUNCTIONS[block.function].reference(_linear(block.gate, n))
        x = x + _linear(block.down, gate * _linear(block.up, n))
    return _linear(parts["head"], _norm(parts["norm"], x))


def _linear(linear: Linear, x: np.ndarray) -> np.ndarray:
    return x @ linear.weight.T.astype(np.float64) + (0 if linear.bias is None else linear.bias)


def _norm(norm: Norm, x: np.ndarray) -> np.ndarray:
    if norm.kind == "layer":
        x = x - x.mean(axis=1, keepdims=True)
    x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + norm.epsilon)
    x = x * (norm.weight.astype(np.float64) + norm.plus_one)
    return x if norm.bias is None else x + norm.bias


def _attention(a: AttentionParts, n: np.ndarray) -> np.ndarray:
    T = len(n)
    q, k, v = (
        _linear(part, n).reshape(T, heads, a.head_dim).swapaxes(0, 1)
        for part, heads in ((a.q, a.heads), (a.k, a.kv_heads), (a.v, a.kv_heads))
    )
    if a.rotation is not None:
        q, k = _rotate(a.rotation, q), _rotate(a.rotation, k)
    k, v = (np.repeat(part, a.heads // a.kv_heads, axis=0) for part in (k, v))
    scores = q @ k.swapaxes(1, 2) * a.scale
    seen = np.tri(T, dtype=bool) & ~np.tri(T, k=-(a.window or T), dtype=bool)
    scores[:, ~seen] = -np.inf
    p = np.exp(scores - scores.max(axis=2, keepdims=True))
    o = p @ v / p.sum(axis=2, keepdims=True)
    return _linear(a.o, o.swapaxes(0, 1).reshape(T, -1))


def _rotate(rotation: Rotation, x: np.ndarray) -> np.ndarray:
    """Pairs as complex numbers."""
    turned, half = x.copy(), rotation.rotated // 2
    first = np.arange(half) * 2 if rotation.interleaved else np.arange(half)
    second = first + (1 if rotation.interleaved else half)
    z = x[..., first] + 1j * x[..., second]
    z = z * np.exp(1j * np.outer(np.arange(x.shape[1]), rotation.frequencies))
    turned[..., first], turned[..., second] = z.real, z.imag
    return turned


def check_passes(model: LanguageModel, passes: tuple[int, ...]) -> None:
    """A text on the Verilog, so many tokens at once: logits are those of golden, cycles those predicted."""
    ids = np.random.default_rng(0).integers(0, 64, sum(passes))
    expected, session, at = model.golden.logits(ids), model.session(), 0
    try:
        for tokens in passes:
            at += tokens
            np.testing.assert_array_equal(session.last_logits(ids[at - tokens : at]), expected[at - 1])
        for run in model.device().passes:
            assert run.cycles == pytest.approx(model.predict(run.tokens, run.position, run.variant), rel=0.05)
    finally:
        model.close()
