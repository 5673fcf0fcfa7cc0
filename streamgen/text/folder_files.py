"""The files of a folder that say something of its texts."""

import json
from pathlib import Path
from typing import Any

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
SETTINGS, GENERATION = "tokenizer_config.json", "generation_config.json"


def read_object(path: Path) -> dict[str, Any]:
    """What a file of JSON holds, nothing if there is no file; ValueError for a damaged one."""
    if not path.is_file():
        return {}
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path.name} holds no object")
    return fields
