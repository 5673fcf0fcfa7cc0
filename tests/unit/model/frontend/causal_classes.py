"""A tiny configuration of every causal class of transformers, derived from the default one of its own.

Every size in a configuration becomes small by what its name says: hidden sizes, layers, heads, experts. A
list that has an entry for each layer keeps one entry of each kind. `SPECIAL` holds what a class asks for
besides.
"""

import re
import warnings
from typing import Any

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

__all__ = ["CLASSES", "CONTEXT", "VOCABULARY", "WITHOUT_A_MODULE", "config_of", "model_of"]

VOCABULARY, CONTEXT, LAYERS = 131, 48, 2
CLASSES: tuple[str, ...] = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
"""Model types, as a config.json names them."""

WITHOUT_A_MODULE = ("gemma3n", "gemma4_assistant", "gemma4_unified_assistant", "musicgen", "musicgen_melody")
"""Of whose configuration transformers makes no causal model: it lacks a package, or wants a part of it."""

SIZES = [
    (r"(\w+_)?vocab(ulary)?_size(_\w+)?|n_vocab|n_token", VOCABULARY),
    (r"mamba_(n_heads|num_heads)", 8),
    (r"n_groups?|num_group|mamba_n_groups", 2),
    (r"topk_group", 1),
    (r"num_(key_value|kv)_heads|num_key_value_groups|n_head_kv|n_kv_heads?", 2),
    (r"(\w+_)?(attention_heads|n_heads?|num_heads|heads)", 4),
    (r"(\w+_)?(hidden_layers|n_layers?|num_layers|layers|num_blocks)", LAYERS),
    (r"max_position_embeddings|n_positions|n_ctx|max_seq_len|seq_length|max_target_positions|"
     r"max_sequence_length|max_source_positions|model_max_length|context_length", CONTEXT),
    (r"num_experts_per_tok|moe_k|moe_top_?k|top_k|num_experts_per_token|n_activated_experts", 2),
    (r"(\w+_)?(experts|moe_num_experts|num_local_experts|n_routed_experts)", 4),
    (r"\w*(head_dim|head_size|d_kv|key_length)|kv_channels|(\w+_)?d_head", 16),
    (r"(\w+_)?lora_rank", 16),
    (r"(\w+_)?(intermediate_size|ffn_dim|ffn_hidden_size|n_inner|dff|dim_ff|d_inner|mlp_dim|"
     r"shared_expert_intermediate_size)(_\w+)?", 96),
    (r"(\w+_)?(hidden_size|d_model|n_embd|emb_dim|embedding_size|embed_dim|word_embed_proj_dim|lru_width|"
     r"embedding_dim)(_\w+)?", 64),
    (r"sliding_window|attention_window_size", 8),
    (r"(\w+_)?(state_size|d_state|ssm_state_size)", 8),
]  # fmt: skip
"""Patterns of names, and the size; the first that fits counts."""

DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}},
}
"""What the default configuration of a class lacks, which cannot be made without."""
INDEXER = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
}
HYBRID = ["linear_attention", "linear_attention", "hybrid", "linear_attention", "hybrid"]
SPECIAL: dict[str, dict[str, Any]] = {
    "bigbird_pegasus": {"tie_word_embeddings": False},  # its class ties nothing
    "cpmant": {"tie_word_embeddings": False},
    "bailing_hybrid": {"num_experts": 4, "n_group": 2, "topk_group": 1},
    "cohere_compass_text": {
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
    },
    "dbrx": {"attn_config.rope_theta": 1e4, "attn_config.clip_qkv": 8.0},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma4_unified_assistant": {"text_config.num_kv_shared_layers": 2},
    "lfm2": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "qwen4_exp": {f"text_config.{name}": value for name, value in INDEXER.items()},
    "qwen4_exp_text": INDEXER,
    "blt": {"encoder_hash_byte_group_vocab": 97, "patcher_config.vocab_size": VOCABULARY},
    "codegen": {"rotary_dim": 8},
    "gptj": {"rotary_dim": 8},
    "dots3_note": {
        "vision_config.adapter_in_dim": 64,
        "vision_config.adapter_out_dim": 64,
        "audio_config.adapter_input_size": 64,
        "audio_config.adapter_out_dim": 64,
    },
    "dots1": {
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "moe_intermediate_size": 96,
        "num_experts_per_tok": 2,
    },
    "longcat_flash": {"head_dim": 16, "qk_head_dim": 32, "qk_rope_head_dim": 16},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "reformer": {"axial_pos_embds_dim": (16, 48), "axial_pos_shape": (6, 8)},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
    "ministral": {"head_dim": 16},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "gemma4_assistant": {"text_config.num_kv_shared_layers": 2, "text_config.vocab_size_per_layer_input": 0},
    "zamba": {"layers_block_type": HYBRID, "num_hidden_layers": 5},
    "zamba2": {
        "attention_head_dim": 32,
        "mamba_headdim": 16,
        "layers_block_type": HYBRID,
        "num_hidden_layers": 5,
        "hybrid_layer_ids": [2, 4],
    },
}


def _size(name: str, value: Any) -> Any:
    if type(value) is int and name.endswith("_token_id") and value >= VOCABULARY:
        return 3
    if type(value) is int and value > 0:
        return next((size for pattern, size in SIZES if re.fullmatch(pattern, name)), value)
    return value


def _kinds(values: list[Any]) -> list[Any]:
    """One of each kind, in order of their first; at least `LAYERS`."""
    kinds = list(dict.fromkeys(values))
    return (kinds * LAYERS)[: max(len(kinds), LAYERS)]


def _shrunk(said: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    layers = LAYERS
    said = {
        name: value
        for name, value in said.items()
        if name not in ("per_layer_config", "per_layer_attributes")
    }
    counted = next((said[n] for n in ("num_hidden_layers", "n_layer", "num_layers") if said.get(n)), None)
    for name, value in said.items():
        if isinstance(value, dict) and not name.startswith("rope"):
            found[name] = _shrunk(value)
        elif isinstance(value, list) and counted and len(value) == counted and all(map(_plain, value)):
            found[name] = _kinds(value)
            layers = max(layers, len(found[name]))
        else:
            found[name] = _size(name, value)
    for name in ("num_hidden_layers", "n_layer", "num_layers"):
        if found.get(name):
            found[name] = layers
    for name, value in found.items():
        if isinstance(value, list) and name in said and len(said[name]) == counted:
            found[name] = (value * layers)[:layers]
    if {"num_key_value_heads", "num_attention_heads"} <= said.keys() and (
        said["num_key_value_heads"] in (said["num_attention_heads"], None)
    ):
        found["num_key_value_heads"] = found["num_attention_heads"]
    return found


def _plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | type(None))


def config_of(kind: str) -> Any:
    """A tiny configuration of a model type."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        maker = transformers.CONFIG_MAPPING[kind]
        said = _shrunk(maker(**DEFAULTS.get(kind, {})).to_dict())
        for name, value in SPECIAL.get(kind, {}).items():
            *way, last = name.split(".")
            place = said
            for step in way:
                place = place[step]
            place[last] = value
        for name in ("transformers_version", "architectures", "model_type"):
            said.pop(name, None)
        config = maker.from_dict(said)
        if hasattr(config, "is_decoder"):
            config.is_decoder = True
        return config


def model_of(config: Any) -> Any:
    """Its causal model with random weights, in eval mode; the same each time."""
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                random = torch.randn(parameter.shape, generator=generator)
                if parameter.ndim > 1:
                    parameter.copy_(random / parameter.shape[-1] ** 0.5)
                else:
                    parameter.add_(random / 5)
    return model
