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
    "bert": {
        **{"attention_probs_dropout_prob": 0.1, "position_embedding_type": "absolute", "type_vocab_size": 2},
        **{"directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12},
        **{"pooler_num_fc_layers": 3, "pooler_size_per_head": 128, "pooler_type": "first_token_transform"},
        **{"_num_labels": 9, "output_past": True, "gradient_checkpointing": False},
        **{"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
    },
    "distilbert": {
        **{"activation": "gelu", "n_heads": 12, "qa_dropout": 0.1, "seq_classif_dropout": 0.2},
        **{"sinusoidal_pos_embds": False, "tie_weights_": True},
    },
    "roberta": {"layer_norm_eps": 1e-5, "position_embedding_type": "absolute", "type_vocab_size": 1},
    "electra": {
        **{"embedding_size": 128, "generator_size": "0.25", "summary_last_dropout": 0.1},
        **{"position_embedding_type": "absolute", "summary_type": "first", "summary_use_proj": True},
    },
    "albert": {
        **{"classifier_dropout_prob": 0.1, "down_scale_factor": 1, "embedding_size": 128, "gap_size": 0},
        **{"inner_group_num": 1, "net_structure_type": 0, "num_hidden_groups": 1, "num_memory_blocks": 0},
    },
    "modernbert": {
        **{"global_attn_every_n_layers": 3, "layer_norm_eps": 1e-5, "norm_eps": 1e-5, "local_attention": 128},
        **{"position_embedding_type": "absolute", "classifier_pooling": "mean", "decoder_bias": True},
    },
    "mpnet": {"layer_norm_eps": 1e-5, "relative_attention_num_buckets": 32},
    "t5": {
        **{"d_ff": 2048, "feed_forward_proj": "gated-gelu", "n_positions": 512, "output_past": True},
        **{"relative_attention_num_buckets": 32, "dense_act_fn": "gelu_new", "is_gated_act": True},
    },
    "bart": {
        **{"add_bias_logits": False, "add_final_layer_norm": False, "classif_dropout": 0.1},
        **{"early_stopping": True, "extra_pos_embeddings": 2, "force_bos_token_to_be_generated": False},
        **{"normalize_before": False, "normalize_embedding": True, "static_position_embeddings": False},
    },
    "whisper": {"forced_decoder_ids": [[1, 50259]], "max_source_positions": 1500, "suppress_tokens": [1]},
    "vit": {"encoder_stride": 16, "image_size": 224, "patch_size": 16, "qkv_bias": True},
    "clip": {
        "logit_scale_init_value": 2.6592,
        "text_config": {"model_type": "clip_text_model", "tie_word_embeddings": True, "vocab_size": 49408},
        "vision_config": {"model_type": "clip_vision_model", "tie_word_embeddings": True, "patch_size": 32},
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
        (
            "bert",
            {"position_embedding_type": "relative_key"},
            "position_embedding_type is 'relative_key', which is not supported; the field is not known",
        ),
        (
            "bart",
            {"normalize_embedding": False},
            "normalize_embedding is False, which is not supported; True is",
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
