"""The tokenizer itself, on SmolLM2's and a small one: known ids, control tokens, streams, what is refused."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader
from tokenizers import Tokenizer as Library
from tokenizers import decoders
from tokenizers.models import BPE, WordPiece
from tokenizers.pre_tokenizers import ByteLevel

from streamgen.base.errors import CheckpointError
from streamgen.base.gguf_metadata import read_metadata
from streamgen.model.frontend import default_checkpoint
from streamgen.text.gguf_tokenizer import gguf_tokenizer
from streamgen.text.stored import Text
from streamgen.text.tokenizer import Tokenizer
from streamgen.text.tokenizer_files import load_tokenizer
from tests.unit.text.vocabularies import CHARACTERS, SMALL, TEXTS, family, write_gguf

PIECES: dict[str, Any] = {
    "model": "llama",
    "tokens": ["<unk>", "<s>", "</s>", "\u2581", "a", "b", "ab", "\u2581a"],
    "scores": [0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -2.0, -1.0],
    "token_type": [2, 3, 3, 1, 1, 1, 1, 1],
    "bos_token_id": 1,
    "unknown_token_id": 0,
}


def described(fields: dict[str, Any], **changes: Any) -> Tokenizer:
    """The tokenizer of fields; one that is None is left out."""
    return gguf_tokenizer(
        {f"tokenizer.ggml.{k}": v for k, v in {**fields, **changes}.items() if v is not None}
    )


@pytest.fixture(scope="module")
def smollm() -> Tokenizer:
    return load_tokenizer(default_checkpoint())


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return described(SMALL)


def test_known_ids(smollm: Tokenizer) -> None:
    assert smollm.size == 49152
    assert smollm.ends == {smollm.id_of("<|endoftext|>"), smollm.id_of("<|im_end|>")} == {0, 2}
    assert smollm.encode("Hello world") == [smollm.id_of("Hello"), smollm.id_of("Ġworld")] == [19556, 905]
    assert smollm.encode("1234") == [33, 34, 35, 36]
    assert smollm.encode("<|im_start|>user\n") == [1, 4093, 198]
    assert smollm.encode("<|im_end|>") == [2]
    assert smollm.encode("<|im_end|>", special=False) == [44, 108, 306, 79, 486, 108, 46]


@pytest.mark.parametrize("text", [*TEXTS, "<|im_start|>user\nHi<|im_end|>", "<|im_sta" + "rt|>> <|im_end|>"])
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
    numbers = {"tokens": [*SMALL["tokens"], "12"], "token_type": [*SMALL["token_type"], 1]}
    for name, length in (("smollm", 2), ("gpt-2", 1), ("qwen2", 2), ("llama-bpe", 1)):
        tokenizer = described(
            SMALL, **numbers, merges=[*SMALL["merges"], "1 2"], pre=name, add_bos_token=False
        )
        assert len(tokenizer.encode("12")) == length


def test_the_greatest_score_is_joined_first() -> None:
    assert described(PIECES).encode("ab", whole=False) == [7, 5]
    assert described(PIECES, scores=[*PIECES["scores"][:6], -1.0, -2.0]).encode("ab", whole=False) == [3, 6]
    assert described(PIECES, add_space_prefix=False).encode("ab", whole=False) == [6]


def test_what_begins_and_ends_every_text() -> None:
    """What a file leaves out is known of the kind."""
    ids = {"bos_token_id": 260, "eos_token_id": 259}
    assert described(SMALL, **ids).encode("he") == [256]
    assert described(SMALL, **ids, add_bos_token=True).encode("he") == [260, 256]
    both = described(SMALL, **ids, add_bos_token=True, add_eos_token=True)
    assert both.encode("he") == [260, 256, 259]
    assert both.encode("he", whole=False) == [256]
    assert described(SMALL, **ids, pre="llama-bpe").encode("he") == [260, 256]
    assert described(SMALL, **ids, pre="smaug-bpe").encode("he") == [256]
    assert described(PIECES).encode("ab") == [1, 7, 5]
    assert described(PIECES, add_bos_token=False).encode("ab") == [7, 5]


def test_what_ends_an_answer() -> None:
    """Tokens that a file names, and those that have a known name, unless they are words."""
    assert described(SMALL).ends == {SMALL["tokens"].index("<|end|>")} == {259}
    assert described(SMALL, token_type=[1] * 263).ends == frozenset()
    assert described(SMALL, eos_token_id=1, eom_token_id=3).ends == {1, 3, 259}
    assert described(SMALL, eos_token_id=1, eot_token_id=2, eom_token_id=3).ends == {1, 2, 3, 259}


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        (("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"), {257, 258, 259}),  # Llama 3.1
        (("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_pad|>"), {256, 258}),  # Qwen 2.5
        (("<|start|>", "<|end|>", "<|return|>", "<|call|>"), {258, 259}),  # gpt-oss: <|end|> ends a channel
        (("<|start|>", "<|end|>", "<|return|>", "<|user|>"), {257, 258}),
        (
            ("<\uff5cend\u2581of\u2581sentence\uff5c>", "<end_of_turn>", "_<EOT>", "[EOS]"),
            {256, 257, 258, 259},
        ),
        (("<bos>", "</s>", "<unused0>", "<end_of_turn>"), {259}),  # Gemma 3, of which </s> is markup
    ],
)
def test_ends_by_the_names_of_families(tokens: tuple[str, ...], ends: set[int]) -> None:
    fields = {"tokens": [*CHARACTERS, *tokens], "token_type": [1] * 256 + [3] * len(tokens), "merges": []}
    assert described(SMALL, **fields).ends == ends


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


def test_vocabularies_of_tokenizer_and_model(small: Tokenizer) -> None:
    """The model's may be larger; of a smaller one only added tokens of the tokenizer may be outside."""
    larger = small.of_model(270)
    assert (larger.size, small.size) == (270, 263)
    assert larger.decode([256, 269]) == "he"
    with pytest.raises(ValueError, match=r"^the tokenizer has 263 tokens, the vocabulary of the model 262$"):
        Text(vocabulary=262, tokenizer=small)
    library = byte_level()
    library.add_special_tokens(["<image>"])
    ours = Text(vocabulary=256, tokenizer=Tokenizer(library)).tokenizer
    assert ours is not None and ours.encode("a b") == [CHARACTERS.index(c) for c in "aĠb"]
    with pytest.raises(
        ValueError, match=r"^the text has the token '<image>', 256; ids of the model are below 256$"
    ):
        ours.encode("a <image>")
    assert ours.encode("<image>", special=False)
    with pytest.raises(ValueError, match="256 is not an id; they are 0 to 255"):
        ours.decode([256])


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


KNOWN = "gpt-2, phi-2, smollm, refact, starcoder, llama-bpe, llama-v3, llama3, smaug-bpe, qwen2, qwen35, "


@pytest.mark.parametrize(
    ("fields", "changes", "message"),
    [
        (SMALL, {"model": "bert"}, "the tokenizer is of the kind 'bert'; known are gpt2, llama"),
        (SMALL, {"pre": "viking"}, f"the pre-tokenizer is 'viking'; known are {KNOWN}tekken, gpt-4o"),
        (SMALL, {"token_type": [1]}, "there are 263 tokens, but 1 values in tokenizer.ggml.token_type"),
        (SMALL, {"tokens": ["a"] * 263}, "two ids have the same token"),
        (SMALL, {"tokens": []}, "there are no tokens"),
        (SMALL, {"tokens": "ab"}, "the field tokenizer.ggml.tokens is not a list of str"),
        (SMALL, {"eos_token_id": 263}, "the eos token is 263; ids are 0 to 262"),
        (SMALL, {"merges": ["h i"]}, "the merge 'h i' is not one of two tokens to a third"),
        (SMALL, {"merges": ["he"]}, "the merge 'he' is not one of two tokens to a third"),
        (
            SMALL,
            {"add_eos_token": True},
            "every text gets the eos token, but the field tokenizer.ggml.eos_token_id is missing",
        ),
        (PIECES, {"scores": [1.0]}, "there are 8 tokens, but 1 values in tokenizer.ggml.scores"),
        (PIECES, {"scores": [1] * 8}, "the field tokenizer.ggml.scores is not a list of float"),
        (
            PIECES,
            {"bos_token_id": None},
            "every text gets the bos token, but the field tokenizer.ggml.bos_token_id is missing",
        ),
    ],
)
def test_bad_metadata(fields: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        described(fields, **changes)
    assert str(error.value) == message


def test_metadata_is_what_gguf_reads(tmp_path: Path) -> None:
    fields = {**SMALL, "numbers": [1.5, -2.0], "flags": [True, False]}
    path = write_gguf(tmp_path / "m.gguf", fields)
    theirs = {name: field.contents() for name, field in GGUFReader(path).fields.items()}
    ours = read_metadata(path)
    assert ours == {name: value for name, value in theirs.items() if not name.startswith("GGUF.")}
    with pytest.raises(
        CheckpointError, match=r"the file has the field tokenizer.ggml.numbers = \[1.5, -2.0\], "
    ):
        load_tokenizer(path)
    assert load_tokenizer(write_gguf(path, SMALL)).encode("hey") == [258]


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"

    def refused() -> str:
        with pytest.raises(CheckpointError) as error:
            load_tokenizer(path)
        return str(error.value).removeprefix(f"{path}: ")

    assert refused() == "there is no such file"
    path.write_bytes(b"PK\x03\x04")
    assert refused() == "not a GGUF file; it starts with b'PK\\x03\\x04', not b'GGUF'"
    for fields in (SMALL, {name: value for name, value in PIECES.items() if "_id" not in name}):
        for field in fields:
            write_gguf(path, {**fields, field: None})
            assert refused() == f"there is no field tokenizer.ggml.{field}, hence no tokenizer"

    whole = write_gguf(path, {**SMALL, "flags": [True, False]}).read_bytes()
    for size in (4, 20, 1000, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert refused().startswith("truncated or corrupt GGUF: ")
    path.write_bytes(whole[:4] + b"\x01" + whole[5:])
    assert refused() == "truncated or corrupt GGUF: the version is 1; versions 2 and 3 can be read"
    name = whole.index(b"flags")
    path.write_bytes(whole[: name + 5] + b"\x63" + whole[name + 6 :])
    assert refused() == "truncated or corrupt GGUF: there is no type 99"
    path.write_bytes(whole[: name + 9] + b"\x09" + whole[name + 10 :])
    assert refused() == "truncated or corrupt GGUF: it has an array of arrays"


def byte_level(**model: Any) -> Library:
    """What a folder's tokenizer.json holds: the bytes, each a token."""
    found = Library(BPE(vocab={c: i for i, c in enumerate(CHARACTERS)}, merges=[], **model))
    found.pre_tokenizer, found.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return found


def saved(folder: Path, theirs: Library, change: Callable[[Any], Any] = lambda described: None) -> Path:
    described = json.loads(theirs.to_str())
    change(described)
    (folder / "tokenizer.json").write_text(json.dumps(described))
    return folder


def test_merges_as_text(tmp_path: Path) -> None:
    """As older files have them."""

    def older(described: Any) -> None:
        described["model"]["merges"] = [" ".join(merge) for merge in described["model"]["merges"]]

    library = family("gpt-2").library
    assert load_tokenizer(saved(tmp_path, library, older)).encode(TEXTS[0]) == library.encode(TEXTS[0]).ids


def test_no_text_is_cut_short_or_filled_up(tmp_path: Path) -> None:
    """What a file says of the lengths of texts is for training."""
    library = byte_level()
    library.enable_truncation(3)
    library.enable_padding(length=50)
    assert len(load_tokenizer(saved(tmp_path, library)).encode("12345")) == 5


def test_what_a_folder_says_of_ends(tmp_path: Path) -> None:
    """In tokenizer_config.json and in generation_config.json; a token may be described."""
    saved(tmp_path, family("qwen").library)
    end, other = (family("qwen").library.token_to_id(t) for t in ("<|im_end|>", "<|endoftext|>"))
    assert load_tokenizer(tmp_path).ends == frozenset()
    for token in ("<|im_end|>", {"content": "<|im_end|>", "special": True}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
        assert load_tokenizer(tmp_path).ends == {end}
    for ids in (other, [other], [end, other]):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
        assert load_tokenizer(tmp_path).ends == {end, other}


def _moved(described: Any) -> None:
    described["added_tokens"].append({**described["added_tokens"][0], "content": "<new>", "id": 70000})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: d["model"].update(dropout=0.1),
            "tokenizer.json has dropout, which draws other ids each time",
        ),
        (
            _moved,
            "the added token '<new>' has the id 70000, in the vocabulary of tokenizer.json 257; let transf",
        ),
        (lambda d: d["model"].pop("merges"), "tokenizer.json cannot be read: "),
        (lambda d: d["model"].update(merges=[["h", "ii"]]), "tokenizer.json cannot be read: "),
        (lambda d: d.update(pre_tokenizer={"type": "Cut"}), "tokenizer.json cannot be read: "),
        (lambda d: d["model"].update(vocab={}), "tokenizer.json"),
        (lambda d: d.update(decoder=None), "there is no decoder, so tokens cannot become a text"),
        (lambda d: d.update(decoder={"type": "CTC"} | CTC), 'the decoder has {"type": "CTC"'),
        (
            lambda d: d.update(decoder={"type": "Sequence", "decoders": [d["decoder"], {"type": "Fuse"}]}),
            'the decoder has {"type": "ByteLevel", ',
        ),
        (
            lambda d: d.update(decoder={"type": "Strip", "content": "_", "start": 1, "stop": 0}),
            'the decoder has {"type": "Strip", "content": "_", "start": 1, "stop": 0}; known are Byte',
        ),
    ],
)
def test_bad_folders(tmp_path: Path, change: Callable[[Any], Any], message: str) -> None:
    library = byte_level()
    library.add_special_tokens(["<end>"])
    saved(tmp_path, library, change)
    with pytest.raises(CheckpointError) as error:
        load_tokenizer(tmp_path)
    assert str(error.value).startswith(f"{tmp_path}: ") and message in str(error.value)


CTC = {"pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}


def test_folders_without_good_files(tmp_path: Path) -> None:
    def refused() -> str:
        with pytest.raises(CheckpointError) as error:
            load_tokenizer(tmp_path)
        return str(error.value).removeprefix(f"{tmp_path}: ")

    assert refused() == "there is no tokenizer.json, hence no tokenizer"
    alone = f". The file {tmp_path / 'spiece.model'} by itself is read as SentencePiece reads it"
    for name, further in (("vocab.json", ""), ("spiece.model", alone)):
        (tmp_path / name).write_text("{}")
        assert refused() == (
            f"there is {name}, but only tokenizer.json can be read; transformers writes it: "
            f"AutoTokenizer.from_pretrained(folder).save_pretrained(folder){further}"
        )
    for text in ("{", "[]", '{"model": 3}'):
        (tmp_path / "tokenizer.json").write_text(text)
        assert refused().startswith("tokenizer.json cannot be read: ")
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe")
    assert refused().startswith("tokenizer.json cannot be read: ")
    saved(tmp_path, byte_level())
    for name, text, message in (
        ("tokenizer_config.json", "[]", "tokenizer_config.json holds no object"),
        ("tokenizer_config.json", "{", "tokenizer_config.json cannot be read: "),
        (
            "tokenizer_config.json",
            '{"added_tokens_decoder": {"x": {}}}',
            "added_tokens_decoder of tokenizer_config.json is not as expec",
        ),
        (
            "tokenizer_config.json",
            '{"added_tokens_decoder": {"3": {"content": "<new>"}}}',
            "the added token '<new>' has the id 3, in the vocabulary of tokenizer.json 256; let",
        ),
        (
            "tokenizer_config.json",
            '{"eos_token": "<end>"}',
            "the eos_token of tokenizer_config.json, '<end>', has no id in tokenizer.json",
        ),
        (
            "generation_config.json",
            '{"eos_token_id": "2"}',
            "eos_token_id of generation_config.json is '2'; an id",
        ),
        ("generation_config.json", '{"eos_token_id": [1, 256]}', "the end token is 256; ids are 0 to 255"),
    ):
        (tmp_path / name).write_text(text)
        assert refused().startswith(message)
        (tmp_path / name).unlink()


def test_nothing_of_a_folder_runs(tmp_path: Path) -> None:
    """Code that it names is refused: it may give other ids."""
    saved(tmp_path, byte_level())
    (tmp_path / "own_tokenizer.py").write_text("raise RuntimeError('it runs')")
    names = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own_tokenizer.Own", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    with pytest.raises(CheckpointError) as error:
        load_tokenizer(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}: auto_map of tokenizer_config.json names code of the folder's own, "
        "['own_tokenizer.Own', None], which is never run; without auto_map tokenizer.json is read"
    )
    assert "own_tokenizer" not in sys.modules


def test_other_kinds_of_models(tmp_path: Path) -> None:
    """Whose decoder is not known."""
    library = Library(WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    library.decoder = decoders.WordPiece()
    saved(tmp_path, library)
    with pytest.raises(CheckpointError, match=r'the decoder has \{"type": "WordPiece"'):
        load_tokenizer(tmp_path)


def test_the_library_is_light() -> None:
    """A host reads texts without torch, and without Jinja until there is a chat."""
    code = (
        "import sys, streamgen.text.stored\nassert not {'torch', 'transformers', 'jinja2'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
