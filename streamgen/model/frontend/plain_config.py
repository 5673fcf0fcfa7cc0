"""The decoder that a config.json of a well-known kind describes, without torch and without weights.

A config.json is the name of a family and sizes. What the families below compute is written here, operation by
operation; tests hold each to what tracing transformers' own module gives (`traced_shapes`). A key that is not
known here, and a value that asks for something else, leave the config to tracing: nothing is passed over.

Weights are views of one number, which take no memory.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from streamgen.base.errors import CheckpointError
from streamgen.gateware.functions import CONFIGURED
from streamgen.model.frontend.assembly import Assembly, traced_positions
from streamgen.model.frontend.config_fields import INERT
from streamgen.model.frontend.llama import Tensors, build_decoder, frequencies, needed_shapes
from streamgen.model.frontend.safetensors_decoder import NAMES, is_llama, sizes_of
from streamgen.model.graph.logical import Input, LogicalGraph
from streamgen.model.operations import (
    Attention,
    Binary,
    Cache,
    Embedding,
    Linear,
    Norm,
    PositionRows,
    Rotary,
    Scalar,
    Unary,
)

__all__ = ["STAND_IN", "plain_decoder"]

STAND_IN = 0.5  # no value of which operations make something simpler
OF_ALL = INERT | {"n_ctx", "tie_word_embeddings"}
"""Keys that say nothing about what is computed of ids, or nothing that shapes show."""


class _OtherKindError(Exception):
    """A config that is not one of those here."""


def plain_decoder(config: Mapping[str, Any], context: int | None, folder: Path) -> LogicalGraph | None:
    """The decoder, for texts of up to `context` positions; None for a config that must be traced."""
    made = _KINDS.get(str(config.get("model_type")))
    if made is None and not is_llama(config):
        return None
    try:
        if made is None:
            return _llama(config, context, folder)
        said = _Said(config)
        graph = made(said, context, folder.resolve().name)
        said.end()
        return graph
    except (_OtherKindError, CheckpointError):  # which transformers knows, or refuses in its own words
        return None


class _Said:
    """What a config says, each key once; `_OtherKindError` for what is not understood."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._left = {k: v for k, v in config.items() if k not in OF_ALL and v is not None}

    def integer(self, key: str, default: int | None = None) -> int:
        """One of 1 and more."""
        value = self._left.pop(key, default)
        if type(value) is not int or value < 1:
            raise _OtherKindError
        return value

    def number(self, key: str, default: float) -> float:
        """A finite one above 0."""
        value = self._left.pop(key, default)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise _OtherKindError
        return float(value)

    def function(self, key: str, default: str) -> str:
        """An activation, as we call it."""
        return self.one_of(key, CONFIGURED, default)

    def one_of(self, key: str, known: Mapping[str, str], default: str) -> str:
        """One of the words that are known, as what it stands for."""
        value = self._left.pop(key, default)
        if not isinstance(value, str) or value not in known:
            raise _OtherKindError
        return known[value]

    def kinds(self, key: str, layers: int, default: Sequence[str]) -> Sequence[str]:
        """Of every layer what it is."""
        value = self._left.pop(key, default)
        if not isinstance(value, list | tuple) or len(value) != layers:
            raise _OtherKindError
        return list(value)

    def share(self, whole: int, parts: int) -> int:
        """What each of equal parts has."""
        if whole % parts:
            raise _OtherKindError
        return whole // parts

    def passed(self, *keys: str) -> None:
        """Keys that mean nothing here."""
        for key in keys:
            self._left.pop(key, None)

    def yes(self, key: str) -> None:
        """This may not be false."""
        if self._left.pop(key, True) is not True:
            raise _OtherKindError

    def no(self, *keys: str) -> None:
        """None of these may be more than false."""
        if any(self._left.pop(key, False) is not False for key in keys):
            raise _OtherKindError

    def theta(self, key: str, default: float, kind: str | None = None) -> float:
        """The base of a rotation that nothing scales: that of `rope_parameters`, if need be of those for a
        kind of layers, or the one of a key beside them."""
        given = self._left.get("rope_parameters", {})
        if isinstance(given, Mapping) and kind is not None and not given.keys() - {_FULL, _SLIDING}:
            given = given.get(kind, {})
        if not isinstance(given, Mapping) or given.keys() - {"rope_type", "rope_theta"}:
            raise _OtherKindError
        inner = _Said(given)
        inner.one_of("rope_type", {"default": ""}, "default")
        return inner.number("rope_theta", self.number(key, default))

    def end(self) -> None:
        """Nothing may be left."""
        if self._left:
            raise _OtherKindError


def _llama(config: Mapping[str, Any], context: int | None, folder: Path) -> LogicalGraph:
    """As `safetensors_decoder` reads it, with stand-ins for its tensors."""
    sizes = sizes_of({"max_position_embeddings": 2048, **config})
    shapes = needed_shapes(NAMES, sizes)
    tensors = Tensors(path=folder, shapes=shapes, read=lambda name: (_filled(*shapes[name]), None, None))
    graph = build_decoder(folder.resolve().name, tensors, NAMES, sizes)
    return replace(graph, context=traced_positions(graph.context, context))


def _gpt2(said: _Said, wanted: int | None, name: str) -> LogicalGraph:
    hidden, heads = said.integer("n_embd", 768), said.integer("n_head", 12)
    features, words = said.integer("n_inner", 4 * hidden), said.integer("vocab_size", 50257)
    context = traced_positions(said.integer("n_positions", 1024), wanted)
    epsilon = said.number("layer_norm_epsilon", 1e-5)
    function = said.function("activation_function", "gelu_new")
    said.no("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention")
    said.yes("scale_attn_weights")
    dims = said.share(hidden, heads)

    def norm() -> Norm:
        return Norm("layer", _filled(hidden), epsilon, _filled(hidden))

    layer = Assembly(Input("x", hidden))
    n = layer.add("attention_norm", norm(), "x")
    keys = layer.add("keys", Cache(heads, dims), layer.add("k", _linear(hidden, hidden, True), n))
    values = layer.add("values", Cache(heads, dims), layer.add("v", _linear(hidden, hidden, True), n))
    q = layer.add("q", _linear(hidden, hidden, True), n)
    found = layer.add("attention", Attention(heads, heads, dims, 1 / math.sqrt(dims)), q, keys, values)
    o = layer.add("o", _linear(hidden, hidden, True), found)
    y = layer.add("attention_sum", Binary("add"), o, "x")
    m = layer.add("feed_forward_norm", norm(), y)
    up = layer.add(function, Unary(function), layer.add("up", _linear(features, hidden, True), m))
    down = layer.add("down", _linear(hidden, features, True), up)
    layer.add("feed_forward_sum", Binary("add"), y, down)
    whole = Assembly()
    x = whole.add("embedding", Embedding(_filled(words, hidden)), "ids")
    x = whole.add("add", Binary("add"), x, whole.add("position_rows", PositionRows(_filled(context, hidden))))
    layers = [layer.graph()] * said.integer("n_layer", 12)
    return whole.language_model(name, x, layers, norm(), _linear(words, hidden), context)


def _qwen2(said: _Said, wanted: int | None, name: str) -> LogicalGraph:
    said.no("use_sliding_window")
    said.passed("sliding_window", "max_window_layers")
    hidden, count, heads = (said.integer(key) for key in (*_SIZES, "num_attention_heads"))
    dims = said.integer("head_dim", said.share(hidden, heads))
    block = _LlamaBlock.of(
        said, hidden=hidden, heads=heads, dims=dims, function=said.function("hidden_act", "silu"), bias=True
    )
    if set(said.kinds("layer_types", count, [_FULL] * count)) != {_FULL}:
        raise _OtherKindError
    layer = block.layer(said.theta("rope_theta", 10000.0), None, 1 / math.sqrt(dims))
    said.passed("rope_parameters")
    context = traced_positions(said.integer("max_position_embeddings", 32768), wanted)
    words = said.integer("vocab_size", 151936)
    whole = Assembly()
    x = whole.add("embedding", Embedding(_filled(words, hidden)), "ids")
    return whole.language_model(name, x, [layer] * count, block.norm(), _linear(words, hidden), context)


def _gemma3(said: _Said, wanted: int | None, name: str) -> LogicalGraph:
    said.no("attention_bias", "use_bidirectional_attention")
    hidden, count = (said.integer(key) for key in _SIZES)
    block = _LlamaBlock.of(
        said,
        hidden=hidden,
        heads=said.integer("num_attention_heads"),
        dims=said.integer("head_dim", 256),
        function=said.function("hidden_activation", "gelu_pytorch_tanh"),
        more_norms=True,
        stand_in=1 + STAND_IN,
    )
    scale = said.number("query_pre_attn_scalar", 256) ** -0.5
    window, pattern = said.integer("sliding_window", 4096), said.integer("sliding_window_pattern", 6)
    context = traced_positions(said.integer("max_position_embeddings", 131072), wanted)
    kinds = [_FULL if (index + 1) % pattern == 0 else _SLIDING for index in range(count)]
    local = said.theta("rope_local_base_freq", 10000.0, _SLIDING)
    layers = {
        _SLIDING: block.layer(local, window if window < context else None, scale),
        _FULL: block.layer(said.theta("rope_theta", 1e6, _FULL), None, scale),
    }
    said.passed("rope_parameters", "_sliding_window_pattern")
    if not {*(kinds := [*said.kinds("layer_types", count, kinds)])} <= layers.keys():
        raise _OtherKindError
    words = said.integer("vocab_size", 262208)
    whole = Assembly()
    x = whole.add("embedding", Embedding(_filled(words, hidden)), "ids")
    x = whole.add("scale", Scalar("scale", float(np.float32(math.sqrt(hidden)))), x)
    head = _linear(words, hidden)
    return whole.language_model(name, x, [layers[kind] for kind in kinds], block.norm(), head, context)


@dataclass(frozen=True, kw_only=True)
class _LlamaBlock:
    """What layers with RMSNorm, rotary positions and a gated feed-forward have in common. bias: of q, k and
    v. more_norms: of the heads of q and k, and behind attention and feed-forward."""

    hidden: int
    heads: int
    kv_heads: int
    dims: int
    features: int
    epsilon: float
    function: str
    bias: bool = False
    more_norms: bool = False
    stand_in: float = STAND_IN

    @classmethod
    def of(cls, said: _Said, **known: Any) -> "_LlamaBlock":
        kv_heads = said.integer("num_key_value_heads", known["heads"])
        said.share(known["heads"], kv_heads)
        epsilon = float(np.float32(said.number("rms_norm_eps", 1e-6)))
        return cls(kv_heads=kv_heads, features=said.integer("intermediate_size"), epsilon=epsilon, **known)

    def norm(self, features: int | None = None, heads: int = 1) -> Norm:
        return Norm("rms", _filled(features or self.hidden, value=self.stand_in), self.epsilon, heads=heads)

    def layer(self, base: float, window: int | None, scale: float) -> LogicalGraph:
        """One with this base of its rotation."""
        ops, dims, turns = Assembly(Input("x", self.hidden)), self.dims, tuple(frequencies(base, self.dims))
        n = ops.add("attention_norm", self.norm(), "x")
        q, k, v = (
            ops.add(name, _linear(count * dims, self.hidden, self.bias), n)
            for name, count in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads))
        )
        if self.more_norms:
            q = ops.add("norm_q", self.norm(dims, self.heads), q)
            k = ops.add("norm_k", self.norm(dims, self.kv_heads), k)
        k = ops.add("rotate_k", Rotary(self.kv_heads, dims, turns), k)
        keys = ops.add("keys", Cache(self.kv_heads, dims), k)
        values = ops.add("values", Cache(self.kv_heads, dims), v)
        q = ops.add("rotate_q", Rotary(self.heads, dims, turns), q)
        attention = Attention(self.heads, self.kv_heads, dims, scale, window=window)
        found = ops.add("attention", attention, q, keys, values)
        o = ops.add("o", _linear(self.hidden, self.heads * dims), found)
        if self.more_norms:
            o = ops.add("post_attention_norm", self.norm(), o)
        y = ops.add("attention_sum", Binary("add"), "x", o)
        m = ops.add("feed_forward_norm", self.norm(), y)
        gate, up = (ops.add(name, _linear(self.features, self.hidden), m) for name in ("gate", "up"))
        gated = ops.add("gated", Binary(f"{self.function}_mul"), gate, up)
        down = ops.add("down", _linear(self.hidden, self.features), gated)
        if self.more_norms:
            down = ops.add("post_feed_forward_norm", self.norm(), down)
        ops.add("feed_forward_sum", Binary("add"), y, down)
        return ops.graph()


def _linear(rows: int, columns: int, bias: bool = False) -> Linear:
    return Linear(_filled(rows, columns), _filled(rows) if bias else None)


def _filled(*shape: int, value: float = STAND_IN) -> np.ndarray:
    return np.broadcast_to(np.float32(value), shape)


_SIZES = ("hidden_size", "num_hidden_layers")
_FULL, _SLIDING = "full_attention", "sliding_attention"
_KINDS: dict[str, Callable[[_Said, int | None, str], LogicalGraph]] = {
    "gpt2": _gpt2,
    "qwen2": _qwen2,
    "gemma3_text": _gemma3,
}
