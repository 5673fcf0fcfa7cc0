"""The text part of a written language model: configuration, vocabulary, tokenizer.

Configuration and vocabulary are in model.json. A tokenizer is in the files that transformers or SentencePiece
uses, so other programs can read it. All of it is data; only chat templates run, in a sandbox.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamgen.base.files import parsed, read_file
from streamgen.text.folder_files import GENERATION, PIECES, SETTINGS, TOKENIZER
from streamgen.text.generation import generation_of, notice_of
from streamgen.text.tokenizer import Tokenizer
from streamgen.text.tokenizer_files import load_tokenizer

MODEL = "model.json"
NO_TOKENIZER = "this model came without a tokenizer"


@dataclass(frozen=True, kw_only=True)
class Text:
    """The text part of a language model. vocabulary: all ids are below it. tokenizer: None if there is none,
    for the reason in `missing`; ValueError if its vocabulary is larger. settings: by name, the checkpoint's
    generation settings that change a text and are not applied."""

    vocabulary: int
    tokenizer: Tokenizer | None
    missing: str = NO_TOKENIZER
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tokenizer is not None:
            object.__setattr__(self, "tokenizer", self.tokenizer.of_model(self.vocabulary))

    @property
    def notice(self) -> str | None:
        """The warning that names `settings`; None if there are none."""
        return notice_of(self.settings)


def write_text(text: Text, config: Mapping[str, Any], folder: Path) -> None:
    """Write the text part into an existing folder. config: the fields of the configuration."""
    missing = text.missing if text.tokenizer is None else None
    notes = {"config": config, "vocabulary": text.vocabulary, "missing": missing}
    (folder / MODEL).write_text(json.dumps(notes) + "\n")
    if text.tokenizer is not None:
        text.tokenizer.write(folder, text.settings)
    elif text.settings:
        (folder / GENERATION).write_text(json.dumps(dict(text.settings)) + "\n")


def read_text(folder: Path) -> tuple[Text, dict[str, Any]]:
    """The text part that `write_text` wrote, and the fields of the configuration. ValueError if they cannot
    be read or belong to another tokenizer; CheckpointError if the tokenizer cannot be read."""
    try:
        notes = parsed(read_file(folder, MODEL))
        missing, config = notes["missing"], dict(notes["config"])
        tokenizer = load_tokenizer(folder) if missing is None else None
        text = Text(
            vocabulary=notes["vocabulary"],
            tokenizer=tokenizer,
            missing=missing or NO_TOKENIZER,
            settings=generation_of(folder).settings,
        )
        return text, config
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / MODEL} cannot be read: {error}") from error


def text_files(folder: Path) -> list[str]:
    """Names of the files in a folder that `write_text` wrote; empty if the folder holds no language model."""
    if not (folder / MODEL).is_file():
        return []
    return [name for name in (MODEL, TOKENIZER, PIECES, SETTINGS, GENERATION) if (folder / name).is_file()]
