"""Collects the problems of a checkpoint in one error."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streamgen.base.errors import CheckpointError
from streamgen.text.tokenizer_files import load_tokenizer

SHOWN = 8  # problems of a kind that a message lists
PART = "partial_rotary_factor"
WHOLE = ("llama", "mistral")  # model types whose heads rotate whole
MAKERS = ("AutoConfig", "AutoModelForCausalLM")


def refuse(path: Path, *kinds: Sequence[str], vocabulary: Any = None) -> None:
    """Raise the `refusal` of a checkpoint if there are problems. If the only problem is a tokenizer of
    another model, reading the tokenizer reports it."""
    if any(kinds):
        raise refusal(path, *kinds, vocabulary=vocabulary)


def refusal(path: Path, *kinds: Sequence[str], vocabulary: Any = None) -> CheckpointError:
    """The error with all problems, grouped by kind. vocabulary: the number of ids of the model, if known; a
    tokenizer with another number is one more problem."""
    lines = [line for kind in (*kinds, tokenizer_problems(path, vocabulary)) for line in _shown(kind)]
    if len(lines) == 1:
        return CheckpointError(f"{path}: {lines[0]}")
    return CheckpointError("\n  ".join([f"{path}:", *lines]))


def _shown(kind: Sequence[str]) -> list[str]:
    more = len(kind) - SHOWN
    return [*kind[:SHOWN], *([f"and {more} more of this kind"] if more > 0 else [])]


def config_problems(config: Mapping[str, Any]) -> list[str]:
    """The problems with a config.json that do not depend on sizes and tensors: it names code in the
    checkpoint for its model, or it rotates a part of each head although the model type rotates whole heads.
    """
    named = config.get("auto_map")
    named = named if isinstance(named, Mapping) else {}
    code = [str(named[maker]) for maker in MAKERS if maker in named]
    told = parts_of(config) if config.get("model_type") in WHOLE else []
    if not code:
        return told
    return [
        f"auto_map names code in the checkpoint, {', '.join(code)}, which is never run; without auto_map "
        f"the checkpoint is read as the model_type {config.get('model_type')!r} of transformers",
        *told,
    ]


def parts_of(config: Mapping[str, Any]) -> list[str]:
    """The problems with a config.json that rotates a part of each head although the class of its model type
    ignores that or fails. Other programs rotate only the part."""
    key = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    given = config.get(key)
    places = {"": config, f"{key}.": given if isinstance(given, Mapping) else {}}
    parts = {f"{where}{PART}": holder.get(PART) for where, holder in places.items()}
    kind = config.get("model_type")
    return [
        f"{place} is {part!r}, which is not supported; heads of model_type {kind!r} rotate as a whole, "
        "those of 'stablelm' rotate in part"
        for place, part in parts.items()
        if part not in (None, 1)
    ]


def untied(head: str, embedding: str) -> str:
    """The problem of a checkpoint whose config ties two tensors that differ."""
    return f"tie_word_embeddings is true, but tensor {head} differs from {embedding}"


def tokenizer_problems(path: Path, vocabulary: Any) -> list[str]:
    """The problems of a readable tokenizer with a model of `vocabulary` ids."""
    if type(vocabulary) is not int:
        return []
    try:
        tokenizer = load_tokenizer(path)
    except CheckpointError:
        return []
    try:
        tokenizer.of_model(vocabulary)
    except ValueError as error:
        return [str(error)]
    return []
