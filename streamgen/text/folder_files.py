"""Reads the files of a folder that describe its texts."""

import json
from pathlib import Path
from typing import Any

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
PIECES = "tokenizer.model"  # of SentencePiece
SETTINGS, GENERATION = "tokenizer_config.json", "generation_config.json"


def read_object(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if there is no file. ValueError for a damaged file."""
    if not path.is_file():
        return {}
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path.name} holds no object")
    return fields
