"""Architectures of GGUF files that are read through transformers: the configuration for a file's fields.

Each architecture reads the fields that it knows (`gguf_fields`) and names them as the configuration of
transformers does. No value that a field of the file could change is left to a default of the library. All
other architectures are refused, because no test compares their import with their models.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from streamgen.model.frontend.gguf_fields import GgufSizes, rope_of, sizes_of_fields
from streamgen.model.frontend.metadata import Metadata

Tensors = Collection[str]
Configuration = dict[str, Any]

# Layers of the models of 27 billion weights, by which llama.cpp knows them: their scores are scaled by
# hidden / heads in place of the features of a head.
LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}
# llama.cpp lets the head of the others be the embedding where a file has no tensor for it.
OWN_HEAD = {"tie_word_embeddings": False}
GEMMA3_PATTERN, GEMMA3_LOCAL_BASE = 6, 10000.0
FULL, SLIDING = "full_attention", "sliding_attention"


def _common(sizes: GgufSizes) -> Configuration:
    """The sizes, as the configurations of most families name them."""
    return {
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.features,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "max_position_embeddings": sizes.context,
    }


def _qwen(fields: Metadata, tensors: Tensors) -> Configuration:
    sizes = sizes_of_fields(fields, norm="rms")
    fields.same("attention.scale", 0.0, sizes.scale)
    rope = rope_of(fields, sizes, yarn=True)
    return _common(sizes) | {"rms_norm_eps": sizes.epsilon, "rope_parameters": rope}


def _phi3(fields: Metadata, tensors: Tensors) -> Configuration:
    sizes = sizes_of_fields(fields, norm="rms")
    fields.same("attention.scale", 0.0, sizes.scale)
    rope, window = rope_of(fields, sizes, partial=True), fields.get("attention.sliding_window")
    return _common(sizes) | {
        "rms_norm_eps": sizes.epsilon,
        "rope_parameters": rope,
        "original_max_position_embeddings": sizes.context,  # of rotations that are scaled, which are refused
        "sliding_window": fields.integer("attention.sliding_window") if window else None,
    }


def _gpt2(fields: Metadata, tensors: Tensors) -> Configuration:
    sizes = sizes_of_fields(fields, norm="layer")
    fields.same("attention.scale", 0.0, sizes.scale)
    if not fields.broken:
        fields.same("attention.head_count_kv", sizes.heads)
        fields.same("attention.key_length", sizes.hidden // sizes.heads)
    return {
        "n_embd": sizes.hidden,
        "n_inner": sizes.features,
        "n_layer": sizes.layers,
        "n_head": sizes.heads,
        "n_positions": sizes.context,
        "layer_norm_epsilon": sizes.epsilon,
    }


def _starcoder2(fields: Metadata, tensors: Tensors) -> Configuration:
    sizes = sizes_of_fields(fields, norm="layer")
    fields.same("attention.scale", 0.0, sizes.scale)
    rope = rope_of(fields, sizes)
    return _common(sizes) | {"norm_epsilon": sizes.epsilon, "rope_parameters": rope, "sliding_window": None}


def _stablelm(fields: Metadata, tensors: Tensors) -> Configuration:
    """llama.cpp finds out from the tensors whether q, k and v have biases, and whether attention and
    feed-forward are parallel."""
    sizes = sizes_of_fields(fields, norm="layer")
    fields.same("attention.scale", 0.0, sizes.scale)
    parallel = "blk.0.ffn_norm.weight" not in tensors
    fields.same("use_parallel_residual", parallel)
    return (
        _common(sizes)
        | OWN_HEAD
        | {
            "layer_norm_eps": sizes.epsilon,
            "rope_parameters": rope_of(fields, sizes, partial=True),
            "use_qkv_bias": "blk.0.attn_q.bias" in tensors,
            "use_parallel_residual": parallel,
        }
    )


def _nemotron(fields: Metadata, tensors: Tensors) -> Configuration:
    """llama.cpp names the epsilon like that of a LayerNorm, transformers like that of an RMSNorm."""
    rms = fields.get("attention.layer_norm_epsilon") is None
    sizes = sizes_of_fields(fields, norm="rms" if rms else "layer")
    fields.same("attention.layer_norm_rms_epsilon", sizes.epsilon)
    fields.same("attention.scale", 0.0, sizes.scale)
    rope = rope_of(fields, sizes, partial=True)
    return _common(sizes) | OWN_HEAD | {"norm_eps": sizes.epsilon, "rope_parameters": rope}


def _gemma(fields: Metadata, architecture: str) -> tuple[GgufSizes, Configuration]:
    """The part that both Gemmas share."""
    sizes = sizes_of_fields(fields, norm="rms")
    large = sizes.layers == LAYERS_OF_27B[architecture]
    scalar = sizes.hidden / sizes.heads if large else sizes.head_dim
    fields.same("attention.scale", 0.0, 1 / math.sqrt(scalar))
    return sizes, _common(sizes) | {"rms_norm_eps": sizes.epsilon, "query_pre_attn_scalar": scalar}


def _gemma2(fields: Metadata, tensors: Tensors) -> Configuration:
    sizes, config = _gemma(fields, "gemma2")
    return config | {
        "rope_parameters": rope_of(fields, sizes),
        "sliding_window": fields.integer("attention.sliding_window", 4096),
        "attn_logit_softcapping": fields.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": fields.number("final_logit_softcapping", 30.0),
    }


def _gemma3(fields: Metadata, tensors: Tensors) -> Configuration:
    sizes, config = _gemma(fields, "gemma3")
    fields.same("rope.freq_base_swa", GEMMA3_LOCAL_BASE)
    fields.same("attention.sliding_window_pattern", GEMMA3_PATTERN)
    local = {"rope_type": "default", "rope_theta": GEMMA3_LOCAL_BASE}
    period = [*[SLIDING] * (GEMMA3_PATTERN - 1), FULL]
    return config | {
        "rope_parameters": {FULL: rope_of(fields, sizes), SLIDING: local},
        "sliding_window": fields.integer("attention.sliding_window"),
        "layer_types": [period[index % GEMMA3_PATTERN] for index in range(sizes.layers)],
        "final_logit_softcapping": fields.get("final_logit_softcapping") or None,
    }


ARCHITECTURES: Mapping[str, tuple[str, Callable[[Metadata, Tensors], Configuration]]] = {
    "gemma2": ("gemma2", _gemma2),
    "gemma3": ("gemma3_text", _gemma3),
    "gpt2": ("gpt2", _gpt2),
    "nemotron": ("nemotron", _nemotron),
    "phi3": ("phi3", _phi3),
    "qwen2": ("qwen2", _qwen),
    "qwen3": ("qwen3", _qwen),
    "stablelm": ("stablelm", _stablelm),
    "starcoder2": ("starcoder2", _starcoder2),
}
"""By architecture: the model type in transformers, and a function that makes its configuration from the
fields of a file and the names of its tensors."""
