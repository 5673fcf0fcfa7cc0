"""The generation settings of a checkpoint: ids that end a text, and settings that change it.

A folder has them in generation_config.json or, without that file, in config.json, whose text part may be
nested; transformers reads them in the same way. A GGUF file has sampling settings in its metadata. Only the
end ids are applied. Other settings are kept and named in a warning until they are supported.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamgen.base.errors import CheckpointError
from streamgen.base.gguf_metadata import read_metadata
from streamgen.text.folder_files import CONFIG, GENERATION, read_object
from streamgen.text.known import SHOWN, says_nothing

NESTED = ("decoder", "generator", "text_config")  # inner parts of config.json, in transformers' order
SAMPLING_KEYS = "general.sampling."  # of GGUF

# Fields that change no text of greedy decoding, by reason.
HARMLESS = {
    "applied: the ids end a text": ("eos_token_id",),
    "a text begins with the ids of its prompt": ("bos_token_id", "decoder_start_token_id", "pad_token_id"),
    "says who wrote the file": ("transformers_version", "_from_model_config", "_commit_hash"),
    "says how keys and values are kept": (
        "use_cache", "cache_implementation", "cache_config", "max_cache_len", "prefill_chunk_size",
        "low_memory", "compile_config", "disable_compile", "continuous_batching_config",
    ),
    "says what is returned beside the text": (
        "output_attentions", "output_hidden_states", "output_scores", "output_logits",
        "return_dict_in_generate",
    ),
    "speculative decoding, which keeps the text": (
        "use_mtp", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
        "assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size",
        "assistant_early_exit", "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight",
        "speculation_type",
    ),
    "keeps the order of logits that are numbers": ("renormalize_logits", "remove_invalid_values"),
}  # fmt: skip
# Values with which a setting has no effect; null, false and empty have none for any setting.
NEUTRAL: dict[str, Any] = {
    "max_length": 20,  # transformers' default
    "max_new_tokens": None,
    "min_length": 0,
    "min_new_tokens": 0,
    "max_time": None,
    "stop_strings": None,
    "do_sample": None,
    "num_beams": 1,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "diversity_penalty": 0,
    "repetition_penalty": 1,
    "encoder_repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "force_words_ids": None,
    "constraints": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "token_healing": None,
    "guidance_scale": 1,
    "watermarking_config": None,
    "penalty_alpha": 0,
    "dola_layers": None,
}
SAMPLING = {  # read only when do_sample is true
    "temperature": 1,
    "top_k": 0,
    "top_p": 1,
    "min_p": 0,
    "top_h": 1,
    "typical_p": 1,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
}
BEAMS = {"length_penalty": 1, "early_stopping": None}  # read only when num_beams is above 1
KNOWN = frozenset([*NEUTRAL, *SAMPLING, *BEAMS, *(name for names in HARMLESS.values() for name in names)])


@dataclass(frozen=True, kw_only=True)
class Generation:
    """The generation settings of a checkpoint. ends: ids that end a text. settings: by name, the settings
    that change a text and are not applied."""

    ends: frozenset[int] = frozenset()
    settings: Mapping[str, Any] = field(default_factory=dict)


def generation_of(path: str | Path) -> Generation:
    """The settings of a folder or a GGUF file. CheckpointError for a damaged file, and for ends that are not
    ids."""
    path = Path(path)
    if not path.is_dir():
        metadata = read_metadata(path)
        sampling = {name: value for name, value in metadata.items() if name.startswith(SAMPLING_KEYS)}
        return Generation(settings=settings_of(sampling))
    try:
        if (path / GENERATION).is_file():
            return _stated(read_object(path / GENERATION), GENERATION)
        return _stated(_of_config(read_object(path / CONFIG)), CONFIG)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error


def notice_of(settings: Mapping[str, Any]) -> str | None:
    """The warning that names settings that are not applied; None if there are none."""
    if not settings:
        return None
    values = ", ".join(f"{name} {_json(value)}" for name, value in settings.items())
    return (
        f"settings of the checkpoint that are not applied to its texts: {values}; a text is greedy unless a "
        "temperature is given"
    )


def settings_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of generation_config.json that change a text, unknown ones included."""
    idle = {name for names in HARMLESS.values() for name in names}
    neutral = NEUTRAL | (SAMPLING if fields.get("do_sample") else {})
    if not _is(fields.get("num_beams"), 1):
        neutral |= BEAMS
    skipped = (SAMPLING.keys() | BEAMS.keys()) - neutral.keys()
    return {
        name: value
        for name, value in fields.items()
        if name not in idle
        and name not in skipped
        and not says_nothing(value)
        and not _is(value, neutral.get(name))
    }


def _is(value: Any, neutral: Any) -> bool:
    return value is None or (value == neutral and type(value) is not bool)


def _of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The generation fields in config.json; those of its text part fill in unset ones."""
    nested: Any = next((config[name] for name in NESTED if config.get(name)), {})
    parts = (nested if isinstance(nested, Mapping) else {}, config)
    return {name: part[name] for part in parts for name in part if name in KNOWN and part[name] is not None}


def _stated(fields: Mapping[str, Any], where: str) -> Generation:
    ends = fields.get("eos_token_id")
    ids = ends if isinstance(ends, list) else [] if ends is None else [ends]
    if not all(isinstance(index, int) and not isinstance(index, bool) for index in ids):
        raise ValueError(f"eos_token_id of {where} is {ends!r}; an id or a list of ids is needed")
    return Generation(ends=frozenset(ids), settings=settings_of(fields))


def _json(value: Any) -> str:
    """A value for a message; GGUF numbers are float32, so six digits are shown."""
    text = f"{value:.6g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
