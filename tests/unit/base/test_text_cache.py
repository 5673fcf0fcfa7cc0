"""Texts are kept whole or not at all, within limits, and damage is as good as nothing."""

import os
from pathlib import Path

import pytest

from streamgen.base.text_cache import TextCache

KEYS = [f"{number:032x}" for number in range(8)]


def test_a_text_is_kept(tmp_path: Path) -> None:
    texts = TextCache(tmp_path / "new" / "folder")
    assert texts.read(KEYS[0]) is None
    texts.write(KEYS[0], "größer\n\n")
    assert texts.read(KEYS[0]) == "größer\n\n"
    texts.write(KEYS[0], "")
    assert texts.read(KEYS[0]) == ""
    assert [file.name for file in texts.folder.iterdir()] == [KEYS[0]]


def test_damage_is_as_good_as_nothing(tmp_path: Path) -> None:
    texts = TextCache(tmp_path)
    texts.write(KEYS[0], "0123456789")
    whole = (tmp_path / KEYS[0]).read_bytes()
    for place in range(len(whole)):
        for content in (whole[:place], whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]):
            (tmp_path / KEYS[0]).write_bytes(content)
            assert texts.read(KEYS[0]) is None
    (tmp_path / KEYS[0]).unlink()
    (tmp_path / KEYS[0]).mkdir()
    assert texts.read(KEYS[0]) is None
    texts.write(KEYS[0], "a folder is in the way")
    assert texts.read(KEYS[0]) is None


def test_what_was_read_last_stays(tmp_path: Path) -> None:
    texts = TextCache(tmp_path, count=3)
    for age, key in enumerate(KEYS[:3]):
        texts.write(key, key)
        os.utime(tmp_path / key, (age, age))
    assert texts.read(KEYS[0]) == KEYS[0]  # it is now the newest
    texts.write(KEYS[3], "new")
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted((KEYS[0], KEYS[2], KEYS[3]))


def test_all_texts_together_have_a_limit(tmp_path: Path) -> None:
    texts = TextCache(tmp_path, size=400)
    for age, key in enumerate(KEYS[:4]):
        texts.write(key, "x" * 100)
        os.utime(tmp_path / key, (age, age))
    assert sorted(file.name for file in tmp_path.iterdir()) == KEYS[2:4]
    texts.write(KEYS[4], "x" * 401)
    assert texts.read(KEYS[4]) is None and texts.read(KEYS[3]) is not None


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    texts = TextCache(tmp_path / "file" / "folder")
    texts.write(KEYS[0], "text")
    assert texts.read(KEYS[0]) is None


@pytest.mark.parametrize("key", ["", "../x", "A" * 32, "0" * 31])
def test_keys_are_digests(key: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="32 to 128 hex digits are needed"):
        TextCache(tmp_path).write(key, "")
