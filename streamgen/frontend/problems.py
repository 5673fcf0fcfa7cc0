"""What is wrong with a checkpoint: all of it in one error."""

from collections.abc import Sequence
from pathlib import Path

from streamgen.errors import CheckpointError
from streamgen.text.tokenizer_files import load_tokenizer

__all__ = ["refuse"]

SHOWN = 8  # problems that a message lists


def refuse(path: Path, problems: Sequence[str], *, vocabulary: int | None = None) -> None:
    """CheckpointError with all problems; nothing where there are none.

    vocabulary: rows of the model's embedding. A tokenizer of another model beside them is one more problem;
    alone it is told when the tokenizer is read.
    """
    if not problems:
        return
    found = [*problems, *([] if vocabulary is None else _of_tokenizer(path, vocabulary))]
    if len(found) == 1:
        raise CheckpointError(f"{path}: {found[0]}")
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    raise CheckpointError("\n  ".join([f"{path}:", *found[:SHOWN], *more]))


def _of_tokenizer(path: Path, vocabulary: int) -> list[str]:
    """What a tokenizer that can be read says against a vocabulary."""
    try:
        tokenizer = load_tokenizer(path)
    except CheckpointError:
        return []
    try:
        tokenizer.of_model(vocabulary)
    except ValueError as error:
        return [str(error)]
    return []
