"""Small models of transformers with random weights, a family each: all 1-D parameters random, odd sizes."""

import warnings
from typing import Any

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

__all__ = [
    "BY_DISTANCE",
    "CONTEXT",
    "FAMILIES",
    "PARTS",
    "VOCABULARY",
    "family",
    "partly_rotating",
    "stepper_of",
]

VOCABULARY, CONTEXT, WINDOW = 71, 48, 5
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = SIZES | {"num_key_value_heads": 1}
WIDE_HEADS = GROUPED | {"head_dim": 24}
GEMMA = WIDE_HEADS | {"sliding_window": WINDOW, "query_pre_attn_scalar": 20}
FAMILIES: dict[str, dict[str, Any]] = {
    "GPT2": {
        **{"vocab_size": VOCABULARY, "n_embd": 48, "n_inner": 72, "n_layer": 2, "n_head": 3},
        **{"n_positions": CONTEXT, "bos_token_id": 1, "eos_token_id": 2},
    },
    "Llama": WIDE_HEADS
    | {
        "attention_bias": True,
        "mlp_bias": True,
        "rope_parameters": {
            **{"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0},
            **{"high_freq_factor": 4.0, "original_max_position_embeddings": 32},
        },
    },
    "Mistral": WIDE_HEADS | {"sliding_window": WINDOW},
    "Qwen2": GROUPED,
    "Qwen3": WIDE_HEADS,
    "Gemma2": GEMMA | {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.0},
    "Gemma3": GEMMA | {"num_hidden_layers": 6},
    "OPT": {
        **{name: SIZES[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers")},
        **{"num_attention_heads": 3, "max_position_embeddings": CONTEXT, "ffn_dim": 72},
        **{"word_embed_proj_dim": 48, "pad_token_id": 1},
    },
    "Phi3": GROUPED | {"sliding_window": None},
    "SmolLM3": GROUPED | {"num_hidden_layers": 4},
    "Phi": GROUPED | {"partial_rotary_factor": 0.5},
    "Olmo2": GROUPED,
    "GPTNeoX": SIZES,
    "Granite": GROUPED
    | {
        **{"embedding_multiplier": 3.0, "residual_multiplier": 0.5},
        **{"attention_multiplier": 0.3, "logits_scaling": 2.0},
    },
    "Starcoder2": GROUPED | {"sliding_window": None},
    "Cohere": GROUPED,
}
PARTS: dict[str, tuple[float, dict[str, Any], int]] = {
    "StableLm": (0.75, GROUPED, 12),
    "Phi": (0.375, GROUPED, 6),
    "Phi3": (0.625, GROUPED | {"sliding_window": None}, 10),
    "GPTNeoX": (0.125, SIZES, 2),
    "Glm": (0.34, WIDE_HEADS, 8),
    "Nemotron": (0.75, WIDE_HEADS, 18),
}
"""Families whose heads rotate in part: which part, sizes, and how many features of a head that are."""
BY_DISTANCE: dict[str, dict[str, Any]] = {
    "Bloom": {"vocab_size": VOCABULARY, "hidden_size": 48, "n_layer": 2, "n_head": 3, "seq_length": CONTEXT},
    "Falcon": {
        **{"vocab_size": VOCABULARY, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3},
        **{"alibi": True, "bias": True, "parallel_attn": False, "multi_query": False},
    },
    "Mpt": {
        **{"vocab_size": VOCABULARY, "d_model": 48, "n_layers": 2, "n_heads": 3, "max_seq_len": CONTEXT},
    },
}
"""Families whose scores have a bias by distance."""
CLASSES = {"GPT2": "GPT2LMHeadModel"}
EAGER = ("Gemma2", "Bloom", "Mpt")  # have soft-caps, or no other attention


def partly_rotating(name: str) -> Any:
    """One of `PARTS`."""
    part, sizes, _ = PARTS[name]
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": part}
    return family(name, **sizes, rope_parameters=rope)


def family(name: str, **changes: Any) -> Any:
    """A model in eval mode; the same each time."""
    config = "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config"
    kind = getattr(transformers, CLASSES.get(name, f"{name}ForCausalLM"))
    made = getattr(transformers, config)(**FAMILIES.get(name, {}) | changes)
    made._attn_implementation = "eager" if name in EAGER else "sdpa"
    generator = torch.Generator().manual_seed(1)
    model = kind(made).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            random = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(random / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(random / 2)
    return model


def stepper_of(model: Any) -> Any:
    """The model in float64, pass by pass: ids to the logits behind each of them."""
    cache, model = transformers.DynamicCache(), model.double()

    def step(ids: Any) -> Any:
        with torch.no_grad():
            return model(torch.as_tensor(ids)[None], past_key_values=cache, use_cache=True).logits[0].numpy()

    return step
