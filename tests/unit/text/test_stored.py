"""What a written language model says of its texts is read as it was."""

import json
from pathlib import Path

import pytest

from streamgen.base.errors import CheckpointError
from streamgen.text.gguf_tokenizer import gguf_tokenizer
from streamgen.text.stored import Text, read_text, text_files, write_text
from tests.unit.text.vocabularies import SMALL

CONFIG = {"context": 72, "name": "small"}
WORDS = gguf_tokenizer(
    {f"tokenizer.ggml.{name}": value for name, value in SMALL.items()}
    | {"tokenizer.ggml.eos_token_id": 259, "tokenizer.chat_template": "{{ eos_token }}"}
)


def test_a_tokenizer(tmp_path: Path) -> None:
    """With the ids that a model has beyond it."""
    assert text_files(tmp_path) == []
    write_text(Text(vocabulary=300, tokenizer=WORDS), CONFIG, tmp_path)
    names = ["model.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
    assert text_files(tmp_path) == names and len([*tmp_path.iterdir()]) == 4
    found, config = read_text(tmp_path)
    tokenizer = found.tokenizer
    assert (config, found.vocabulary) == (CONFIG, 300)
    assert tokenizer is not None and (tokenizer.size, tokenizer.ends) == (300, {259})
    assert tokenizer.chat([{"role": "user", "content": "a"}]) == [259]
    assert tokenizer.encode("hey <user> he") == WORDS.encode("hey <user> he")


def test_none(tmp_path: Path) -> None:
    text = Text(vocabulary=300, tokenizer=None, missing="the tokenizer is of the kind 'bert'")
    write_text(text, CONFIG, tmp_path)
    assert text_files(tmp_path) == ["model.json"]
    assert read_text(tmp_path) == (text, CONFIG)


def test_damage(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model.json cannot be read: .*model.json is missing"):
        read_text(tmp_path)
    write_text(Text(vocabulary=300, tokenizer=WORDS), CONFIG, tmp_path)
    for change in ({"config": 3}, {"vocabulary": 3}, {"vocabulary": "300"}):
        notes = json.loads((tmp_path / "model.json").read_text())
        (tmp_path / "model.json").write_text(json.dumps(notes | change))
        with pytest.raises(ValueError, match=r"model.json cannot be read: "):
            read_text(tmp_path)
        (tmp_path / "model.json").write_text(json.dumps(notes))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer.json cannot be read: "):
        read_text(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"there is no tokenizer.json, hence no tokenizer$"):
        read_text(tmp_path)
