"""The fields of a config.json: those that cannot change the results for given ids, and unknown ones.

A field that is neither computed nor listed here is refused by name, unless its value has no effect.
"""

import dataclasses
import inspect
import re
from collections.abc import Hashable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

from streamgen.model.frontend.metadata import Metadata, says_nothing

FAMILIES = "transformers.models."

_BY_REASON: Mapping[str, tuple[str, ...]] = {
    "where the checkpoint comes from, and what wrote it": (
        *("_commit_hash", "_name_or_path", "architectures", "finetuning_task", "is_llama_config"),
        *("model_type", "name_or_path", "transformers.js_config", "transformers_version", "unsloth_fixed"),
        *("unsloth_version",),
    ),
    "code of the checkpoint's own, which is refused elsewhere": ("auto_map",),
    "how weights are stored, which the files say, or packed, which their reader reads": (
        *("dtype", "quantization_config", "torch_dtype"),
    ),
    "how results are computed, which are the same": (
        *("_attn_implementation", "_attn_implementation_autoset", "attn_implementation"),
        *("cache_implementation", "chunk_size_feed_forward", "gradient_checkpointing", "is_decoder"),
        *("pretraining_tp", "use_cache"),
    ),
    "what comes back beside the logits": ("output_attentions", "output_hidden_states"),
    "how long texts were in training": ("max_sequence_length", "model_max_length", "n_ctx", "seq_length"),
    "programs that trained or ran the model, of which transformers' classes read nothing": (
        *("_num_labels", "attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion"),
        *("max_batch_size", "max_window_layers", "n_special", "pad_key_length", "pre_allocate_kv_cache"),
        *("predict_special_tokens", "scale_attention_softmax_in_fp32", "skip_bias_add", "slow_but_exact"),
        *("directionality", "output_past", "pooler_fc_size", "pooler_num_attention_heads"),
        *("pooler_num_fc_layers", "pooler_size_per_head", "pooler_type", "sentence_transformers"),
        *("sbert_ce_default_activation_function",),
        *("skip_bias_add_qkv", "use_flash_attention", "validate_runner_input"),
    ),
    "training": (
        *("attention_dropout", "attn_pdrop", "classif_dropout", "dropout", "embd_pdrop", "generator_size"),
        *("hidden_dropout", "initializer_range", "neftune_noise_alpha", "resid_pdrop", "rescale_layernorm"),
    ),
    "heads for other tasks": (
        *("classifier_dropout", "id2label", "label2id", "num_labels", "problem_type", "summary_activation"),
        *("summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
        *("task_specific_params",),
    ),
    "texts: which ids begin and end one, and how it is drawn, which generation settings say": (
        *("begin_suppress_tokens", "bos_token_id", "decoder_start_token_id", "do_sample", "early_stopping"),
        *("eos_token_id", "force_bos_token_to_be_generated", "forced_bos_token_id", "forced_decoder_ids"),
        *("forced_eos_token_id", "length_penalty", "max_length", "min_length"),
        *("num_beam_groups", "num_beams", "num_return_sequences"),
        *("no_repeat_ngram_size", "pad_token_id", "prefix", "repetition_penalty", "sep_token_id"),
        *("suppress_tokens", "temperature", "tokenizer_class", "top_k", "top_p", "typical_p", "unk_token_id"),
    ),
}
INERT = frozenset(name for names in _BY_REASON.values() for name in names)

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **{"down_scale_factor": (1,), "extra_pos_embeddings": (2,), "is_causal": (True,)},
    **{"normalize_embedding": (True,), "return_dict": (True,), "tie_weights_": (True,)},
}
"""Fields that have an effectless value other than null, false and 0, with these values."""

_FORMER = {"position_embedding_type": "absolute"}
"""Fields that all classes once read, with the value for which they compute what they compute today."""

_OF_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "bloom": ("offset_alibi",),
    "clip_text_model": ("tie_word_embeddings",),
    "clip_vision_model": ("tie_word_embeddings",),
    "gptj": ("rotary", "scale_attn_weights"),
    "modernbert": ("layer_norm_eps",),
    "stablelm": ("rotary_scaling_factor",),
    "starcoder2": (
        "activation_function",
        "layer_norm_epsilon",
        "mlp_type",
        "norm_type",
        "scale_attn_weights",
    ),
    "t5": ("n_positions",),
}
"""Fields in published checkpoints of a family that the family's class does not read, so they change nothing.
"""

_UNREAD: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "mpt": {
        **{"alibi": (True,), "alibi_bias_max": (8,), "attn_type": ("multihead_attention",)},
        **{"attn_uses_sequence_id": (False,), "embedding_fraction": (1.0,), "expansion_ratio": (4,)},
        **{"learned_pos_emb": (True, False), "logit_scale": (None,), "no_bias": (True,)},
        **{"norm_type": ("low_precision_layernorm", "layernorm"), "prefix_lm": (False,), "qk_ln": (False,)},
    },
}
"""By the folder of a family in transformers: fields that its classes declare and its model does not read,
with the values for which the model computes what they ask for."""

_SAME = {"hidden_act": "hidden_activation", "sliding_window_size": "sliding_window"}
"""Fields that may repeat the value of another field."""

_ROPE = frozenset(
    [
        *("attention_factor", "beta_fast", "beta_slow", "factor", "high_freq_factor", "long_factor"),
        *("low_freq_factor", "mrope_interleaved", "mrope_section", "mscale", "mscale_all_dim"),
        *("original_max_position_embeddings", "partial_rotary_factor", "rope_theta", "rope_type"),
        *("short_factor", "truncate", "type"),
    ]
)
"""The keys that transformers reads from `rope_parameters` and `rope_scaling`."""

_BESIDE_ROPE = frozenset(
    ["original_max_position_embeddings", "partial_rotary_factor", "rope_scaling", "rope_theta"]
)
"""The keys beside these objects that transformers reads for every configuration with a rotation."""


def unknown_fields(kind: type[Any], said: Mapping[str, Any], where: str = "") -> list[str]:
    """Problems with the fields of a config.json that a configuration class of transformers does not know,
    except those that cannot change a result or whose value has no effect. where: the path of an inner object.
    """
    metadata = Metadata(said.get)
    inert = {*INERT, *_OF_FAMILIES.get(kind.model_type, ())}
    inert |= {key for key, value in _FORMER.items() if said.get(key) == value}
    inert |= {key for key, other in _SAME.items() if key in said and said[key] == said.get(other)}
    neutral = {**NEUTRAL, **_UNREAD.get(kind.__module__.rpartition(".")[0].rpartition(".")[2], {})}
    metadata.asked |= {key for key in said if key in inert or (key not in neutral and _knows(kind, key))}
    problems = [f"{where}{problem}" for problem in metadata.unknown(said, neutral)]
    for key in ("rope_parameters", "rope_scaling"):
        problems += _unknown_of_rope(kind, said.get(key), f"{where}{key}.")
    for key, inner in getattr(kind, "sub_configs", {}).items():
        if isinstance(part := said.get(key), Mapping) and (inner := _declared(inner, part)) is not None:
            problems += unknown_fields(inner, part, f"{where}{key}.")
    return problems


def _declared(kind: Any, said: Mapping[str, Any]) -> Any:
    """The class of an inner part of a configuration. If any class is possible, it is the class that the part
    names; None for a part that names none, whose fields the owner chose."""
    from transformers import CONFIG_MAPPING

    if dataclasses.is_dataclass(kind):
        return kind
    name = str(said.get("model_type"))
    if name in CONFIG_MAPPING:
        return CONFIG_MAPPING[name]
    return None


def _unknown_of_rope(kind: type[Any], given: Any, where: str) -> Iterator[str]:
    """Problems with an object that describes a rotation, or with such an object for each kind of layer."""
    if not isinstance(given, Mapping):
        return
    for key, value in given.items():
        if isinstance(value, Mapping):
            yield from _unknown_of_rope(kind, value, f"{where}{key}.")
        elif key not in _ROPE and not says_nothing(value) and not _knows(kind, key):
            yield f"{where}{key} is {value!r}, which is not supported; {', '.join(sorted(_ROPE))} are known"


def _knows(kind: type[Any], key: str) -> bool:
    """Whether a class declares a field, or its code or the code of its model reads the field by name."""
    declared = {field.name for field in dataclasses.fields(kind)} | (kind.attribute_map or {}).keys()
    if key in declared or ("rope_parameters" in declared and key in _BESIDE_ROPE):
        return True
    return re.search(rf"""[."']{re.escape(key)}\b""", _code_of(cast(Hashable, kind))) is not None


@cache
def _code_of(kind: Any) -> str:
    """The source code of a family's configuration and of its models."""
    names = [base.__module__ for base in kind.__mro__ if base.__module__.startswith(FAMILIES)]
    modules = {
        name.replace(".configuration_", other)
        for name in names
        for other in (".configuration_", ".modeling_")
    }
    return "\n".join(inspect.getsource(import_module(name)) for name in sorted(modules) if find_spec(name))
