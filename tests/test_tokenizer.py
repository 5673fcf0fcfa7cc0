"""Tokenizers of GGUF files and folders: known ids, round trips, streams, control tokens, what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader, GGUFWriter
from tokenizers import AddedToken, Regex, processors
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

from streamgen.errors import CheckpointError
from streamgen.frontend import default_checkpoint
from streamgen.gguf_metadata import read_metadata
from streamgen.text.tokenizer import ALPHABET, Tokenizer, Vocabulary
from streamgen.text.tokenizer_files import load_tokenizer

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


LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PRE_TOKENIZERS = {
    "smollm": Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]),
    "gpt-2": ByteLevel(add_prefix_space=False),
    "llama-3": Sequence(
        [Split(Regex(LLAMA_3), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    ),
}


def library(smollm: Tokenizer, name: str = "smollm", **model: Any) -> Library:
    """What a folder's tokenizer.json holds: SmolLM2's tokens, with some pre-tokenizer."""
    vocabulary = smollm.vocabulary
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    control = [token for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind == 3]
    merges = [(first, second) for first, _, second in (merge.partition(" ") for merge in vocabulary.merges)]
    found = Library(BPE(vocab=ids, merges=merges, unk_token="<|endoftext|>", **model))
    found.pre_tokenizer = PRE_TOKENIZERS[name]
    found.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return found


def saved(folder: Path, theirs: Library, change: Callable[[Any], Any] = lambda described: None) -> Path:
    described = json.loads(theirs.to_str())
    change(described)
    (folder / "tokenizer.json").write_text(json.dumps(described))
    return folder


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_a_folder_gives_the_ids_of_its_library(smollm: Tokenizer, tmp_path: Path, name: str) -> None:
    theirs = library(smollm, name)
    ours = load_tokenizer(saved(tmp_path, theirs))
    assert ours.size == smollm.size and ours.end is None
    for text in ODD:
        assert ours.encode(text) == theirs.encode(text).ids, text
        assert ours.decode(ours.encode(text)) == smollm.decode(smollm.encode(text)), text
    if name == "smollm":
        assert [ours.encode(text) for text in ODD] == [smollm.encode(text) for text in ODD]


def test_what_a_folder_says_of_start_and_end(smollm: Tokenizer, tmp_path: Path) -> None:
    theirs = library(smollm, "llama-3", ignore_merges=True)
    start = ("<|im_start|>", smollm.id_of("<|im_start|>"))
    template = processors.TemplateProcessing(single=f"{start[0]} $A", special_tokens=[start])
    theirs.post_processor = processors.Sequence([processors.ByteLevel(), template])
    saved(tmp_path, theirs)
    for end in ("<|im_end|>", {"content": "<|im_end|>", "special": True}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
        ours = load_tokenizer(tmp_path)
        assert ours.end == smollm.id_of("<|im_end|>")
    for text in ODD:
        assert ours.encode(text) == theirs.encode(text).ids
    assert ours.encode("sea")[0] == start[1]
    copy = Tokenizer(Vocabulary(**json.loads(json.dumps(vars(ours.vocabulary)))))
    assert [copy.encode(text) for text in ODD] == [ours.encode(text) for text in ODD]


def small_library() -> Library:
    ids = {token: index for index, token in enumerate(SMALL["tokens"])}
    found = Library(BPE(vocab=ids, merges=[("h", "e"), ("Ġ", "he"), ("he", "y")]))
    found.pre_tokenizer = PRE_TOKENIZERS["smollm"]
    found.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<|end|>2", special=True)])
    found.add_tokens([AddedToken("<user>", normalized=False)])
    return found


def test_merges_as_text_and_tokens_of_users(small: Tokenizer, tmp_path: Path) -> None:
    """As older files have them."""

    def older(described: Any) -> None:
        described["model"]["merges"] = [" ".join(merge) for merge in described["model"]["merges"]]

    ours = load_tokenizer(saved(tmp_path, small_library(), older))
    assert (ours.vocabulary.tokens, ours.vocabulary.types) == (SMALL["tokens"], SMALL["types"])
    for text in ("hey <user> he", "<|end|>2 hey", "x<|end|>"):
        assert ours.encode(text) == small.encode(text)
        assert ours.encode(text, special=False) == small.encode(text, special=False)


def test_words_that_no_merge_makes(tmp_path: Path) -> None:
    """A file says whether they are tokens all the same."""
    ids = {token: index for index, token in enumerate([*CHARACTERS, "he", "hey"])}
    for ignore, expected in ((False, [ids["he"], ids["y"]]), (True, [ids["hey"]])):
        theirs = Library(BPE(vocab=ids, merges=[("h", "e")], ignore_merges=ignore))
        theirs.pre_tokenizer = PRE_TOKENIZERS["gpt-2"]
        ours = load_tokenizer(saved(tmp_path, theirs))
        assert ours.encode("hey") == theirs.encode("hey").ids == expected


TEMPLATE = {"type": "TemplateProcessing", "single": [{"Sequence": {}}, {"SpecialToken": {"id": "a"}}]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["model"].update(type="Unigram"), "tokenizer.json has a model of type Unigram"),
        (lambda d: d["model"].update(byte_fallback=True), "has byte_fallback, which is not known here"),
        (lambda d: d["model"].update(dropout=0.1), "has dropout, which is not known here"),
        (lambda d: d["model"].update(end_of_word_suffix="</w>"), "has prefixes or suffixes of words"),
        (lambda d: d.update(normalizer={"type": "NFC"}), "has a normalizer, which is not known here"),
        (lambda d: d["added_tokens"][0].update(lstrip=True), "has added tokens that take spaces or whole"),
        (lambda d: d["added_tokens"][0].update(id=70000), "the ids of tokenizer.json are not 0 to 262"),
        (lambda d: d["model"].update(unk_token="<?>"), "the unknown token '<?>' has no id in tokenizer.json"),
        (lambda d: d["model"].pop("merges"), "tokenizer.json is not as expected: KeyError 'merges'"),
        (lambda d: d["model"]["merges"].append(["h", "i"]), "the merge 'h i' is not one of two tokens"),
        (lambda d: d.update(pre_tokenizer=None), "the pre-tokenizer is 'null'; known are gpt-2, smollm"),
        (lambda d: d.update(pre_tokenizer={"type": "Cut"}), "the pre-tokenizer cannot be read: "),
        (lambda d: d["pre_tokenizer"]["pretokenizers"].pop(), "the pre-tokenizer ends in Digits; it must"),
        (
            lambda d: d["pre_tokenizer"]["pretokenizers"][1].update(add_prefix_space=True),
            "the pre-tokenizer puts a space before a text; it must end in ByteLevel and add nothing",
        ),
        (lambda d: d.update(post_processor={"type": "Bert"}), "the post-processor is Bert; ByteLevel and"),
        (lambda d: d.update(post_processor=TEMPLATE), "the post-processor adds more than a token before"),
    ],
)
def test_bad_folders(tmp_path: Path, change: Callable[[Any], Any], message: str) -> None:
    saved(tmp_path, small_library(), change)
    with pytest.raises(CheckpointError) as error:
        load_tokenizer(tmp_path)
    assert str(error.value).startswith(f"{tmp_path}: ") and message in str(error.value)


def test_folders_without_good_files(tmp_path: Path) -> None:
    def refused() -> str:
        with pytest.raises(CheckpointError) as error:
            load_tokenizer(tmp_path)
        return str(error.value).removeprefix(f"{tmp_path}: ")

    assert refused() == "there is no tokenizer.json, hence no tokenizer"
    (tmp_path / "tokenizer.json").write_text("{")
    assert refused().startswith("tokenizer.json cannot be read: ")
    (tmp_path / "tokenizer.json").write_text("[]")
    assert refused() == "tokenizer.json holds no object"
    saved(tmp_path, small_library())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    assert refused() == "the end token '<end>' has no id in tokenizer.json"
