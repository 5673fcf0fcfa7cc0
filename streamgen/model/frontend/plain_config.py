"""The decoder that a config.json of a well-known kind describes, built without torch and without weights.

A config.json has the name of a family and sizes. The operations of the families below are written here, and
tests compare each with the trace of transformers' own module (`traced_shapes`). A config with an unknown key
or an unsupported value is left to tracing, so nothing is ignored.

Weights are views of one number and take no memory.
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
from streamgen.model.frontend.config_fields import INERT, NEUTRAL
from streamgen.model.frontend.llama import Tensors, build_decoder, frequencies, needed_shapes
from streamgen.model.frontend.metadata import Metadata
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

STAND_IN = 0.5  # operations have no special case for this value
OF_ALL = INERT | {"n_ctx", "tie_word_embeddings"}
"""Keys that do not change the results for given ids, or nothing that shapes show."""


class _OtherKindError(Exception):
    """The config is not of a kind described here."""


def plain_decoder(config: Mapping[str, Any], context: int | None, folder: Path) -> LogicalGraph | None:
    """The decoder, for texts of up to `context` positions; None for a config that must be traced."""
    build = _KINDS.get(str(config.get("model_type")))
    if build is None and not is_llama(config):
        return None
    try:
        if build is None:
            return _llama(config, context, folder)
        fields = Metadata(config.get)
        graph = build(fields, context, folder.resolve().name)
        fields.asked |= OF_ALL
        _require(not fields.problems and not fields.unknown(config, NEUTRAL))
        return graph
    except (_OtherKindError, CheckpointError):  # transformers knows it, or refuses it in its own words
        return None


def _require(holds: bool) -> None:
    if not holds:
        raise _OtherKindError


def _function(fields: Metadata, key: str, default: str) -> str:
    """The name of an activation in the graph."""
    fields.same(key, *CONFIGURED)
    return CONFIGURED.get(fields.get(key) or default, CONFIGURED[default])


def _kinds(fields: Metadata, default: Sequence[str]) -> list[str]:
    """The kind of every layer."""
    kinds = fields.get("layer_types") or default
    _require(isinstance(kinds, list | tuple) and len(kinds) == len(default))
    return list(kinds)


def _theta(fields: Metadata, key: str, default: float, kind: str | None = None) -> float:
    """The base of an unscaled rotation, from `rope_parameters`, from those of a kind of layer, or from a
    separate key."""
    given = fields.get("rope_parameters") or {}
    if isinstance(given, Mapping) and kind is not None and not given.keys() - {_FULL, _SLIDING}:
        given = given.get(kind, {})
    _require(isinstance(given, Mapping))
    rope = Metadata(given.get)
    rope.same("rope_type", "default")
    base = rope.number("rope_theta", fields.number(key, default))
    _require(not rope.problems and not rope.unknown(given, {}))
    return base


def _llama(config: Mapping[str, Any], context: int | None, folder: Path) -> LogicalGraph:
    """The decoder as `safetensors_decoder` reads it, with stand-ins for its tensors."""
    sizes = sizes_of({"max_position_embeddings": 2048, **config})
    shapes = needed_shapes(NAMES, sizes)
    tensors = Tensors(path=folder, shapes=shapes, read=lambda name: (_filled(*shapes[name]), None, None))
    graph = build_decoder(folder.resolve().name, tensors, NAMES, sizes)
    return replace(graph, context=traced_positions(graph.context, context))


def _gpt2(fields: Metadata, wanted: int | None, name: str) -> LogicalGraph:
    hidden, heads = fields.integer("n_embd", 768), fields.integer("n_head", 12)
    features, words = fields.integer("n_inner", 4 * hidden), fields.integer("vocab_size", 50257)
    context = traced_positions(fields.integer("n_positions", 1024), wanted)
    epsilon = fields.number("layer_norm_epsilon", 1e-5)
    function = _function(fields, "activation_function", "gelu_new")
    for key in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"):
        fields.same(key, False)
    fields.same("scale_attn_weights", True)
    count, dims = fields.integer("n_layer", 12), hidden // heads
    _require(not fields.problems and not hidden % heads)

    def norm() -> Norm:
        return Norm("layer", _filled(hidden), epsilon, _filled(hidden))

    layer = Assembly(Input("x", hidden))
    n = layer.add("attention_norm", norm(), "x")
    keys = layer.add("keys", Cache(heads, dims), layer.add("k", _linear(hidden, hidden, True), n))
    values = layer.add("values", Cache(heads, dims), layer.add("v", _linear(hidden, hidden, True), n))
    q = layer.add("q", _linear(hidden, hidden, True), n)
    mixed = layer.add("attention", Attention(heads, heads, dims, 1 / math.sqrt(dims)), q, keys, values)
    o = layer.add("o", _linear(hidden, hidden, True), mixed)
    y = layer.add("attention_sum", Binary("add"), o, "x")
    m = layer.add("feed_forward_norm", norm(), y)
    up = layer.add(function, Unary(function), layer.add("up", _linear(features, hidden, True), m))
    down = layer.add("down", _linear(hidden, features, True), up)
    layer.add("feed_forward_sum", Binary("add"), y, down)
    whole = Assembly()
    x = whole.add("embedding", Embedding(_filled(words, hidden)), "ids")
    x = whole.add("add", Binary("add"), x, whole.add("position_rows", PositionRows(_filled(context, hidden))))
    return whole.language_model(name, x, [layer.graph()] * count, norm(), _linear(words, hidden), context)


def _qwen2(fields: Metadata, wanted: int | None, name: str) -> LogicalGraph:
    fields.same("use_sliding_window", False)
    fields.asked |= {"sliding_window", "max_window_layers"}  # these have no effect then
    hidden, count, heads = (fields.integer(key) for key in (*_SIZES, "num_attention_heads"))
    dims = fields.integer("head_dim", hidden // heads)
    block = _LlamaBlock.of(
        fields,
        hidden=hidden,
        heads=heads,
        dims=dims,
        function=_function(fields, "hidden_act", "silu"),
        bias=True,
    )
    _require({*_kinds(fields, [_FULL] * count)} == {_FULL} and not hidden % heads)
    layer = block.layer(_theta(fields, "rope_theta", 10000.0), None, 1 / math.sqrt(dims))
    context = traced_positions(fields.integer("max_position_embeddings", 32768), wanted)
    words = fields.integer("vocab_size", 151936)
    whole = Assembly()
    x = whole.add("embedding", Embedding(_filled(words, hidden)), "ids")
    return whole.language_model(name, x, [layer] * count, block.norm(), _linear(words, hidden), context)


def _gemma3(fields: Metadata, wanted: int | None, name: str) -> LogicalGraph:
    fields.same("attention_bias", False)
    fields.same("use_bidirectional_attention", False)
    hidden, count = (fields.integer(key) for key in _SIZES)
    block = _LlamaBlock.of(
        fields,
        hidden=hidden,
        heads=fields.integer("num_attention_heads"),
        dims=fields.integer("head_dim", 256),
        function=_function(fields, "hidden_activation", "gelu_pytorch_tanh"),
        more_norms=True,
        stand_in=1 + STAND_IN,
    )
    scale = fields.number("query_pre_attn_scalar", 256) ** -0.5
    window, pattern = fields.integer("sliding_window", 4096), fields.integer("sliding_window_pattern", 6)
    context = traced_positions(fields.integer("max_position_embeddings", 131072), wanted)
    kinds = [_FULL if (index + 1) % pattern == 0 else _SLIDING for index in range(count)]
    local = _theta(fields, "rope_local_base_freq", 10000.0, _SLIDING)
    layers = {
        _SLIDING: block.layer(local, window if window < context else None, scale),
        _FULL: block.layer(_theta(fields, "rope_theta", 1e6, _FULL), None, scale),
    }
    fields.asked.add("_sliding_window_pattern")
    kinds = _kinds(fields, kinds)
    _require({*kinds} <= layers.keys())
    words = fields.integer("vocab_size", 262208)
    whole = Assembly()
    x = whole.add("embedding", Embedding(_filled(words, hidden)), "ids")
    x = whole.add("scale", Scalar("scale", float(np.float32(math.sqrt(hidden)))), x)
    head = _linear(words, hidden)
    return whole.language_model(name, x, [layers[kind] for kind in kinds], block.norm(), head, context)


@dataclass(frozen=True, kw_only=True)
class _LlamaBlock:
    """The common part of layers with RMSNorm, rotary positions and a gated feed-forward. bias: of q, k and v.
    more_norms: of the heads of q and k, and after attention and feed-forward."""

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
    def of(cls, fields: Metadata, **known: Any) -> "_LlamaBlock":
        kv_heads = fields.integer("num_key_value_heads", known["heads"])
        epsilon = float(np.float32(fields.number("rms_norm_eps", 1e-6)))
        features = fields.integer("intermediate_size")
        _require(not fields.problems and not known["heads"] % kv_heads)
        return cls(kv_heads=kv_heads, features=features, epsilon=epsilon, **known)

    def norm(self, features: int | None = None, heads: int = 1) -> Norm:
        return Norm("rms", _filled(features or self.hidden, value=self.stand_in), self.epsilon, heads=heads)

    def layer(self, base: float, window: int | None, scale: float) -> LogicalGraph:
        """One layer with this base of its rotation."""
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
        mixed = ops.add("attention", attention, q, keys, values)
        o = ops.add("o", _linear(self.hidden, self.heads * dims), mixed)
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
_KINDS: dict[str, Callable[[Metadata, int | None, str], LogicalGraph]] = {
    "gpt2": _gpt2,
    "qwen2": _qwen2,
    "gemma3_text": _gemma3,
}
