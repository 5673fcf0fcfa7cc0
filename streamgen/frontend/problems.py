"""What is wrong with a checkpoint: all of it in one error."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streamgen.errors import CheckpointError
from streamgen.text.tokenizer_files import load_tokenizer

__all__ = ["code_of", "refusal", "refuse", "tokenizer_problems"]

SHOWN = 8  # problems of a kind that a message lists
MAKERS = ("AutoConfig", "AutoModelForCausalLM")


def refuse(path: Path, *kinds: Sequence[str], vocabulary: Any = None) -> None:
    """Raise the `refusal` of a checkpoint with problems; nothing where there are none. A tokenizer of another
    model alone is told when the tokenizer is read."""
    if any(kinds):
        raise refusal(path, *kinds, vocabulary=vocabulary)


def refusal(path: Path, *kinds: Sequence[str], vocabulary: Any = None) -> CheckpointError:
    """The error with all problems, kind after kind. vocabulary: ids of the model, where they are known; a
    tokenizer of another model is one more problem."""
    lines = [line for kind in (*kinds, tokenizer_problems(path, vocabulary)) for line in _shown(kind)]
    if len(lines) == 1:
        return CheckpointError(f"{path}: {lines[0]}")
    return CheckpointError("\n  ".join([f"{path}:", *lines]))


def _shown(kind: Sequence[str]) -> list[str]:
    more = len(kind) - SHOWN
    return [*kind[:SHOWN], *([f"and {more} more like the last"] if more > 0 else [])]


def code_of(config: Mapping[str, Any]) -> list[str]:
    """What is wrong with a config.json that names code of the checkpoint's own for its model."""
    named = config.get("auto_map")
    named = named if isinstance(named, Mapping) else {}
    code = [str(named[maker]) for maker in MAKERS if maker in named]
    if not code:
        return []
    return [
        f"auto_map names code of the checkpoint's own, {', '.join(code)}, which is never run; without "
        f"auto_map it is read as the model_type {config.get('model_type')!r} of transformers"
    ]


def tokenizer_problems(path: Path, vocabulary: Any) -> list[str]:
    """What a tokenizer that can be read says against a model of so many ids."""
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
