"""Tokenizers out of GGUF metadata: known ids, round trips, streams, control tokens, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader, GGUFWriter

from streamgen.errors import CheckpointError
from streamgen.frontend import default_checkpoint
from streamgen.gguf_metadata import read_metadata
from streamgen.tokenizer import ALPHABET, Tokenizer, Vocabulary, load_tokenizer

CHARACTERS = list(ALPHABET)
SMALL: dict[str, Any] = {
    "tokens": [*CHARACTERS, "he", "Ġhe", "hey", "<|end|>", "<|end|>2", "<user>", "café"],
    "types": [1] * 259 + [3, 3, 4, 1],
    "merges": ["h e", "Ġ he", "he y"],
    "pre_tokenizer": "smollm",
}
ODD = [
    "Hello, world!",
    "a  b\n\n\tc   \r\n",
    "don't I'LL we've",
    "1234567890 3.14159 ½ ² ٣",
    "naïve café, Straße, Ελληνικά, русский, עברית",
    "你好，世界。日本語テキスト 한국어",
    "👩‍👩‍👧‍👦🏳️‍🌈 e\u0301 \u200b\ufeff\u2028",
    "\x00\x01\x7f\x80\xa0\xad",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
    "<|im_sta" + "rt|>> <|im_end|><|im_end|>",
    " ",
    "",
]


@pytest.fixture(scope="module")
def smollm() -> Tokenizer:
    return load_tokenizer(default_checkpoint())


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return Tokenizer(Vocabulary(**SMALL))


def test_known_ids(smollm: Tokenizer) -> None:
    assert smollm.size == 49152
    assert smollm.end == smollm.id_of("<|im_end|>") == 2
    assert smollm.encode("Hello world") == [smollm.id_of("Hello"), smollm.id_of("Ġworld")] == [19556, 905]
    assert smollm.encode("1234") == [33, 34, 35, 36]
    assert smollm.encode("<|im_start|>user\n") == [1, 4093, 198]
    assert smollm.encode("<|im_end|>") == [2]
    assert smollm.encode("<|im_end|>", special=False) == [44, 108, 306, 79, 486, 108, 46]


@pytest.mark.parametrize("text", ODD)
def test_round_trips(smollm: Tokenizer, small: Tokenizer, text: str) -> None:
    for tokenizer in (smollm, small):
        for special in (True, False):
            ids = tokenizer.encode(text, special=special)
            assert tokenizer.decode(ids) == text
            stream = tokenizer.stream(special=True)
            parts = [stream.push(index) for index in ids]
            assert "\ufffd" not in "".join(parts)
            assert "".join(parts) + stream.finish() == text


def test_bytes_without_a_token_become_the_unknown_one(smollm: Tokenizer) -> None:
    assert smollm.encode("a\x04b") == [smollm.id_of("a"), 0, smollm.id_of("b")]


def test_merges_and_pre_tokenizers(small: Tokenizer) -> None:
    def tokens(text: str, tokenizer: Tokenizer = small) -> list[str]:
        return [SMALL["tokens"][i] for i in tokenizer.encode(text)]

    assert tokens("hey hey") == ["hey", "Ġhe", "y"]
    assert tokens("<|end|>2<user><|end|>") == ["<|end|>2", "<user>", "<|end|>"]
    numbers = {**SMALL, "tokens": [*SMALL["tokens"], "12"], "types": [*SMALL["types"], 1]}
    numbers["merges"] = [*SMALL["merges"], "1 2"]
    for name, length in (("smollm", 2), ("gpt-2", 1)):
        tokenizer = Tokenizer(Vocabulary(**{**numbers, "pre_tokenizer": name}))
        assert len(tokenizer.encode("12")) == length
    starting = Tokenizer(Vocabulary(**SMALL, start=259))
    assert starting.encode("he") == [259, 256]


def test_control_tokens_may_be_left_out(small: Tokenizer) -> None:
    ids = [small.id_of("he"), small.id_of("<|end|>"), small.id_of("<user>")]
    assert small.decode(ids) == "he<|end|><user>"
    assert small.decode(ids, special=False) == "he<user>"
    assert small.encode("<user>", special=False) == ids[2:]
    assert small.decode([small.id_of("café")]) == "caf\ufffd"  # é of the alphabet is the byte 0xE9


def test_a_stream_never_cuts_a_character(small: Tokenizer) -> None:
    stream = small.stream()
    ids = small.encode("é👍!")
    assert [stream.push(index) for index in ids] == ["", "é", "", "", "", "👍", "!"]
    assert stream.finish() == ""
    assert [stream.push(index) for index in ids[2:4]] == ["", ""]
    assert stream.finish() == "\ufffd"
    assert stream.push(ids[-1]) == "!"
    assert small.decode([ids[1], *ids[:2]]) == "\ufffdé"


def test_bad_arguments(small: Tokenizer) -> None:
    for call, kind, message in (
        (lambda: small.decode([1, 263]), ValueError, "263 is not an id; they are 0 to 262"),
        (lambda: small.decode([-1]), ValueError, "-1 is not an id; they are 0 to 262"),
        (lambda: small.encode(b"he"), TypeError, "text is a bytes; a str is needed"),  # type: ignore[arg-type]
        (lambda: small.encode("he\ud800"), ValueError, "text[2] is the surrogate '\\ud800'"),
        (lambda: small.id_of("him"), ValueError, "there is no token 'him'"),
    ):
        with pytest.raises(kind) as error:
            call()
        assert str(error.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre_tokenizer": "qwen2"}, "the pre-tokenizer is 'qwen2'; known are gpt-2, smollm"),
        ({"types": [1]}, "there are 263 tokens and 1 types of tokens"),
        ({"tokens": ["a"] * 263}, "two ids have the same token"),
        ({"end": 263}, "the end token is 263; ids are 0 to 262"),
        ({"merges": ["h i"]}, "the merge 'h i' is not one of two tokens to a third"),
        ({"merges": ["he"]}, "the merge 'he' is not one of two tokens to a third"),
    ],
)
def test_bad_vocabularies(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        Tokenizer(Vocabulary(**{**SMALL, **changes}))
    assert str(error.value) == message


def written(path: Path, **changes: Any) -> Path:
    """A GGUF file with a tokenizer and no tensors; a field that is None is left out."""
    fields = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": SMALL["tokens"],
        "token_type": SMALL["types"],
        "merges": SMALL["merges"],
        "eos_token_id": 259,
        "bos_token_id": 260,
        "add_bos_token": False,
        **changes,
    }
    writer = GGUFWriter(path, "llama")
    for name, value in fields.items():
        key = f"tokenizer.ggml.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif value is not None:
            writer.add_string(key, value)
    writer.add_array("numbers", [1.5, -2.0])
    writer.add_array("flags", [True, False])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_metadata_is_what_gguf_reads(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf")
    theirs = {name: field.contents() for name, field in GGUFReader(path).fields.items()}
    ours = read_metadata(path)
    assert ours == {name: value for name, value in theirs.items() if not name.startswith("GGUF.")}
    tokenizer = load_tokenizer(path)
    assert tokenizer.end == 259
    assert tokenizer.encode("hey") == [258]
    assert load_tokenizer(written(path, add_bos_token=True)).encode("hey") == [260, 258]


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"

    def refused() -> str:
        with pytest.raises(CheckpointError) as error:
            load_tokenizer(path)
        return str(error.value).removeprefix(f"{path}: ")

    assert refused() == "there is no such file"
    path.write_bytes(b"PK\x03\x04")
    assert refused() == "not a GGUF file; it starts with b'PK\\x03\\x04', not b'GGUF'"
    for field in ("model", "pre", "tokens", "token_type", "merges"):
        written(path, **{field: None})
        assert refused() == f"there is no field tokenizer.ggml.{field}, hence no tokenizer"
    written(path, model="llama")
    assert refused() == "the tokenizer is of the kind 'llama'; only 'gpt2' is known"
    written(path, pre="qwen2")
    assert refused() == "the pre-tokenizer is 'qwen2'; known are gpt-2, smollm"

    whole = written(path).read_bytes()
    for size in (4, 20, 1000, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert refused().startswith("truncated or corrupt GGUF: ")
    path.write_bytes(whole[:4] + b"\x01" + whole[5:])
    assert refused() == "truncated or corrupt GGUF: the version is 1; 2 and 3 can be read"
    name = whole.index(b"flags")
    path.write_bytes(whole[: name + 5] + b"\x63" + whole[name + 6 :])
    assert refused() == "truncated or corrupt GGUF: there is no type 99"
    path.write_bytes(whole[: name + 9] + b"\x09" + whole[name + 10 :])
    assert refused() == "truncated or corrupt GGUF: an array of arrays"
