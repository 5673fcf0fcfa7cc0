"""Fields of published configurations are known; the same fields that say something else are refused."""

import warnings
from typing import Any

import pytest

from streamgen.model.frontend.config_fields import unknown_fields
from streamgen.model.frontend.safetensors_decoder import is_llama

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import CONFIG_MAPPING

OF_ALL = {
    **{
        "torch_dtype": "bfloat16",
        "transformers_version": "4.42.3",
        "use_cache": True,
        "eos_token_id": [1, 2],
    },
    **{"_name_or_path": "x", "architectures": ["X"], "initializer_range": 0.02, "return_dict": True},
    **{"length_penalty": 1.0, "num_beams": 1, "top_k": 50, "torchscript": False, "pruned_heads": {}},
}
LLAMA = {
    **{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "hidden_act": "silu"},
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "llama": LLAMA
    | {
        **{"is_llama_config": True, "pretraining_tp": 1, "rope_interleaved": False, "rope_scaling": None},
        **{"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}, "max_sequence_length": 2048},
    },
    "mistral": LLAMA | {"sliding_window": None, "rope_theta": 1e6},
    "qwen2": {"max_window_layers": 21, "sliding_window": 32768, "use_mrope": False},
    "gemma2": {
        **{"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"},
        **{"cache_implementation": "hybrid", "sliding_window": 4096, "sliding_window_size": 4096},
    },
    "gemma3_text": {"_sliding_window_pattern": 6, "rope_local_base_freq": 10000, "sliding_window_pattern": 6},
    "phi3": {
        "original_max_position_embeddings": 4096,
        "sliding_window": 2047,
        "auto_map": {"AutoConfig": "x"},
    },
    "gpt2": {
        "n_ctx": 1024,
        "n_special": 0,
        "predict_special_tokens": True,
        "task_specific_params": {"a": {}},
    },
    "gptj": {"rotary": True, "scale_attn_weights": True, "tokenizer_class": "GPT2Tokenizer"},
    "gpt_neo": {"attention_layers": ["global", "local"], "window_size": 256, "gradient_checkpointing": False},
    "opt": {"_remove_final_layer_norm": False, "prefix": "</s>", "word_embed_proj_dim": 768},
    "gpt_neox": {"rotary_emb_base": 10000, "rotary_pct": 0.25, "classifier_dropout": 0.1},
    "stablelm": {"rotary_scaling_factor": 1.0, "partial_rotary_factor": 0.25},
    "starcoder2": {
        **{"activation_function": "gelu", "layer_norm_epsilon": 1e-5, "mlp_type": "default"},
        **{"norm_type": "layer_norm", "attention_softmax_in_fp32": True, "resid_pdrop": 0.1},
    },
    "smollm3": {"no_rope_layers": [1, 0], "max_window_layers": 28},
    "granite": {"attention_multiplier": 0.1, "embedding_multiplier": 12.0, "logits_scaling": 8.0},
}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_published_configurations(kind: str) -> None:
    said = OF_ALL | PUBLISHED[kind] | {"model_type": kind}
    assert unknown_fields(CONFIG_MAPPING[kind], said) == []
    assert kind not in ("llama", "mistral") or is_llama(said)


@pytest.mark.parametrize(
    ("kind", "said", "problem"),
    [
        (
            "gemma2",
            {"hidden_act": "relu", "hidden_activation": "gelu_pytorch_tanh"},
            "hidden_act is 'relu', which is not supported; the field is not known",
        ),
        ("llama", {"rotary": True}, "rotary is True, which is not supported; the field is not known"),
        (
            "llama",
            {"sliding_window": 7},
            "sliding_window is 7, which is not supported; the field is not known",
        ),
        ("qwen2", {"is_causal": False}, "is_causal is False, which is not supported; True is"),
        (
            "gemma3",
            {"text_config": {"vision": 3}},
            "text_config.vision is 3, which is not supported; the field is not known",
        ),
    ],
)
def test_fields_that_say_something_else(kind: str, said: dict[str, Any], problem: str) -> None:
    assert unknown_fields(CONFIG_MAPPING[kind], said) == [problem]
    assert kind != "llama" or not is_llama(LLAMA | said | {"model_type": kind})


def test_parts_that_name_their_class() -> None:
    said = {"text_config": {"model_type": "persimmon", "vision": 3}}
    problem = "text_config.vision is 3, which is not supported; the field is not known"
    assert unknown_fields(CONFIG_MAPPING["fuyu"], said) == [problem]
    assert unknown_fields(CONFIG_MAPPING["fuyu"], {"text_config": {"vision": 3}}) == []
