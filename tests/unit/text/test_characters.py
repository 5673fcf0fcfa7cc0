"""Tokenizers of characters and of ids."""

import json
from pathlib import Path
from typing import Any

import pytest

from streamgen.base.errors import CheckpointError
from streamgen.text.characters import character_tokenizer, id_tokenizer
from streamgen.text.tokenizer_files import load_tokenizer

CHARACTERS = "\n abc'é😀"


def test_a_token_for_each_character() -> None:
    tokenizer = character_tokenizer(CHARACTERS)
    text = "é b\n\n'😀ca "
    assert tokenizer.encode(text) == [CHARACTERS.index(character) for character in text]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.size == len(CHARACTERS)
    with pytest.raises(ValueError, match="the text has 'x', for which the tokenizer has no token"):
        tokenizer.encode("abxyz")


def test_ids_as_numbers() -> None:
    tokenizer = id_tokenizer(20)
    assert tokenizer.encode("1 5 19") == [1, 5, 19]
    assert tokenizer.decode([1, 5, 19]) == " 1 5 19"
    assert tokenizer.encode("") == []
    for text in ("20", "1 x", "-1"):
        with pytest.raises(ValueError, match="for which the tokenizer has no token"):
            tokenizer.encode(text)


@pytest.mark.parametrize("written", [character_tokenizer(CHARACTERS), id_tokenizer(9)])
def test_written_and_loaded(written: Any, tmp_path: Path) -> None:
    written.write(tmp_path)
    text = written.decode([3, 4, 0])
    for place in (tmp_path, tmp_path / "tokenizer.json"):
        assert load_tokenizer(place).encode(text) == [3, 4, 0]


@pytest.mark.parametrize(
    "table", [["b", "a"], {"a": 1, "b": 0}, {"stoi": {"a": 1, "b": 0}, "itos": {"0": "b", "1": "a"}}]
)
def test_tables(table: Any, tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text(json.dumps(table))
    assert load_tokenizer(tmp_path / "table.json").encode("aab") == [1, 1, 0]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([], "a table of characters is a list of characters, or an object that gives each character its id"),
        (["ab"], "'ab' is given"),
        (["a", 1], "1 is given"),
        (["a", "b", "a"], "has 'a' twice"),
        ({"a": 3}, "0 to 0, each once"),
        ({"a": 0, "b": 0}, "0 to 1, each once"),
        ({"a": True, "b": 0}, "0 to 1, each once"),
        ({}, "a table of characters"),
        ("a text", "table.json cannot be read"),
        ({"model": {"type": "unknown"}}, "table.json cannot be read"),
    ],
)
def test_files_that_are_no_tokenizer(table: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text(json.dumps(table))
    with pytest.raises(CheckpointError) as caught:
        load_tokenizer(tmp_path / "table.json")
    assert message in str(caught.value)


def test_files_that_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "damaged.json").write_text("{")
    with pytest.raises(CheckpointError, match="Expecting property name"):
        load_tokenizer(tmp_path / "damaged.json")
    for name in ("meta.pkl", "characters.txt"):
        (tmp_path / name).write_text("abc")
        with pytest.raises(CheckpointError, match="is not read; a folder or file of tokenizer"):
            load_tokenizer(tmp_path / name)
