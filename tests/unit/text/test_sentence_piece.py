"""Files of SentencePiece: for every kind of model and rule, ids and texts are SentencePiece's own."""

import io
import itertools
import json
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from streamgen.base.errors import CheckpointError
from streamgen.text.sentence_piece import DAMAGED, pieces_of
from streamgen.text.stored import Text, read_text, text_files, write_text
from streamgen.text.tokenizer import Tokenizer
from streamgen.text.tokenizer_files import load_tokenizer
from tests.unit.text.vocabularies import SPACE, TEXTS, prose

KINDS = ("unigram", "bpe", "char", "word")
RULES = ("identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")
SYMBOLS = ["<sep>", "ab", "abc", "\u00bd", f"{SPACE}{SPACE}", "<|im_end|>"]
HARD = [
    "<s>a</s> b<unk><0x0A> <pad>",
    "e\u0301\u0302\u0301 \u00bd\u0301",
    "\r\n a\r\n",
    f"{SPACE}a {SPACE} b{SPACE}",
    "<sep>",
    "<sep> a<sep><sep> b ",
    "xabcab\u00bd",
    "a" * 50,
    "\u1112\u1161\u11ab",
    "\uff1cs\uff1e",
    "\U0010ffff\ufffd",
]


@cache
def trained(**options: Any) -> bytes:
    written = io.BytesIO()
    symbols = options.pop("symbols", ())
    few = {"vocab_size": 400, "hard_vocab_limit": options.get("model_type") not in ("char", "word")}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(prose()[:150]),
        model_writer=written,
        user_defined_symbols=list(symbols),
        character_coverage=0.99,
        num_threads=1,
        minloglevel=2,
        **{**few, **options},
    )
    return written.getvalue()


def changed(content: bytes, change: Any) -> bytes:
    model = ModelProto()
    model.ParseFromString(content)
    change(model)
    return bytes(model.SerializeToString())


def random_texts(seed: int, count: int) -> list[str]:
    """Of all planes, of what models have, and of what rules change."""
    rng = np.random.default_rng(seed)
    planes = [*range(1, 0x3000), *range(0xAC00, 0xAC40), *range(0xFF00, 0xFFF0), *range(0x1F300, 0x1F400)]
    letters = [*"abeo  \n\t<>s/x01", SPACE, "\u0301", "\u0302", "\u1161", "\u1112", "\u3000", "<sep>", "ab"]
    texts = []
    for draw in range(count):
        size = int(rng.integers(0, 25))
        if draw % 2:
            texts.append("".join(chr(planes[i]) for i in rng.integers(0, len(planes), size)))
        else:
            texts.append("".join(letters[i] for i in rng.integers(0, len(letters), size)))
    return texts


def require_equal(content: bytes, texts: list[str]) -> None:
    ours, theirs = pieces_of(content), sentencepiece.SentencePieceProcessor(model_proto=content)
    assert ours.size == theirs.get_piece_size()
    for text in texts:
        ids = theirs.encode(text)
        assert ours.encode(text, special=False) == ids, text
        assert ours.encode(text, special=False, whole=False) == ids
        assert ours.decode(ids, special=False) == theirs.decode(ids), text
        ids = [theirs.bos_id(), *ids, theirs.eos_id()]
        assert ours.decode(ids, special=False) == theirs.decode(ids), text


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_and_rules(kind: str, rule: str, seed: int) -> None:
    texts = [*TEXTS, *HARD, *random_texts(seed, 100)]
    for dummy, removes in itertools.product((True, False), repeat=2):
        content = trained(
            model_type=kind,
            normalization_rule_name=rule,
            add_dummy_prefix=dummy,
            remove_extra_whitespaces=removes,
        )
        require_equal(content, texts)


@pytest.mark.parametrize(
    "options",
    [
        {"byte_fallback": True},
        {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
        {"symbols": tuple(SYMBOLS)},
        {"symbols": tuple(SYMBOLS), "byte_fallback": True, "remove_extra_whitespaces": False},
        {"symbols": tuple(SYMBOLS), "normalization_rule_name": "nmt_nfkc_cf", "add_dummy_prefix": False},
        {"split_digits": True},
        {"treat_whitespace_as_suffix": True},
        {"treat_whitespace_as_suffix": True, "remove_extra_whitespaces": False, "symbols": tuple(SYMBOLS)},
        {
            "allow_whitespace_only_pieces": True,
            "remove_extra_whitespaces": False,
            "split_by_whitespace": False,
        },
        {"unk_surface": "?", "control_symbols": ["<c>", "@"]},
        {"bos_id": -1, "eos_id": 5, "pad_id": 0, "unk_id": 3},
    ],
)
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_options(kind: str, options: Mapping[str, Any], seed: int) -> None:
    controls = options.get("control_symbols", ())
    content = (
        trained.__wrapped__(model_type=kind, **options) if controls else trained(model_type=kind, **options)
    )
    if options.get("bos_id") == -1:
        theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
        ours = pieces_of(content)
        assert ours.ends == {5} and ours.names == {
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "pad_token": "<pad>",
        }
        for text in (*TEXTS, *HARD):
            assert ours.encode(text, special=False) == theirs.encode(text)
        return
    require_equal(content, [*TEXTS, *HARD, *random_texts(seed, 200)])


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_changed_by_hand(kind: str) -> None:
    """Pieces that are out of use, equal scores, plain spaces: what no trainer writes."""

    def unused(model: Any) -> None:
        for piece in model.pieces[40:80]:
            piece.type = 5

    def equal(model: Any) -> None:
        for piece in model.pieces[3:]:
            piece.score = -1.0

    def plain(model: Any) -> None:
        model.normalizer_spec.escape_whitespaces = False

    for change in (unused, equal, plain):
        require_equal(changed(trained(model_type=kind), change), [*TEXTS, *HARD])


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_texts_of_any_ids(kind: str, seed: int) -> None:
    """Many that begin with spaces, control tokens and unknown ones, as no text would."""
    rng = np.random.default_rng(seed)
    for dummy, removes in itertools.product((True, False), repeat=2):
        content = trained(
            model_type=kind,
            symbols=tuple(SYMBOLS),
            add_dummy_prefix=dummy,
            remove_extra_whitespaces=removes,
        )
        ours, theirs = pieces_of(content), sentencepiece.SentencePieceProcessor(model_proto=content)
        spaced = [i for i in range(ours.size) if theirs.id_to_piece(i).startswith(SPACE)]
        for _ in range(300):
            ids = [*rng.choice([0, 1, *spaced], 3).tolist(), *rng.integers(0, ours.size, 3).tolist()]
            assert ours.decode(ids, special=False) == theirs.decode(ids)


def test_control_tokens_and_ends() -> None:
    content = trained(model_type="bpe", symbols=tuple(SYMBOLS))
    ours, theirs = pieces_of(content), sentencepiece.SentencePieceProcessor(model_proto=content)
    assert ours.names == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert ours.ends == {2, ours.id_of("<|im_end|>")}
    assert ours.encode("a b") == theirs.encode("a b")  # SentencePiece adds no begin token
    expected = [1, *theirs.encode("a b"), 2, *theirs.encode(" c"), 0, *theirs.encode("d<sep>e")]
    assert ours.encode("<s>a b</s> c<unk>d<sep>e") == expected
    assert ours.decode([1, *theirs.encode("a"), 2]) == "<s> a</s>"
    assert ours.encode("") == ours.encode("", special=False) == []
    with pytest.raises(ValueError, match="there is no token 'nothing'"):
        ours.id_of("nothing")
    stream = ours.stream()
    assert "".join(map(stream.push, theirs.encode("a b"))) + stream.finish() == " a b"


def test_bytes_of_no_text() -> None:
    ours = pieces_of(trained(model_type="bpe", byte_fallback=True))
    ids = [ours.id_of(f"<0x{byte:02X}>") for byte in b"\xe2\x82\xac\xff"]
    assert ours.decode(ids) == "\u20ac\ufffd"
    stream = ours.stream()
    assert [stream.push(index) for index in ids] == ["", "", "\u20ac", "\ufffd"]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    content = trained(model_type="unigram", symbols=tuple(SYMBOLS))
    (tmp_path / "spiece.model").write_bytes(content)
    ours = load_tokenizer(tmp_path / "spiece.model")
    templates = {"default": "{{ bos_token }}{{ messages[0].content }}", "other": "{{ tool_token }}"}
    named = Tokenizer(
        ours._coder, ends=ours.ends, templates=templates, names={**ours.names, "tool_token": "<sep>"}
    )
    for number, tokenizer in enumerate((ours, named)):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        write_text(Text(vocabulary=500, tokenizer=tokenizer), {}, folder)
        again = read_text(folder)[0].tokenizer
        assert again is not None and again.size == 500
        assert (again.ends, again.templates, again.names) == (
            tokenizer.ends,
            tokenizer.templates,
            tokenizer.names,
        )
        for text in (*TEXTS, *HARD):
            assert again.encode(text) == ours.encode(text)
            assert again.encode(text, special=False) == ours.encode(text, special=False)
            assert again.decode(ours.encode(text)) == ours.decode(ours.encode(text))
        names = ["model.json", "tokenizer.model", "tokenizer_config.json", "generation_config.json"]
        assert text_files(folder) == names
    assert again.chat([{"role": "user", "content": "a"}]) == ours.encode("<s>a")


def test_folders(tmp_path: Path) -> None:
    content = trained(model_type="bpe")
    (tmp_path / "tokenizer.model").write_bytes(content)
    assert load_tokenizer(tmp_path).ends == {2}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7]}')
    assert load_tokenizer(tmp_path).ends == {2, 7}
    for name in ("config.json", "added_tokens.json", "special_tokens_map.json", "tokenizer_config.json"):
        (tmp_path / name).write_text("{}")
        with pytest.raises(CheckpointError) as caught:
            load_tokenizer(tmp_path)
        assert str(caught.value).startswith(
            f"{tmp_path}: there is tokenizer.model with {name} beside it, but only"
        )
        (tmp_path / name).unlink()
    for fields, message in (
        (
            {"add_bos_token": True},
            "tokenizer_config.json has the field add_bos_token = True, which is not known",
        ),
        ({"bos_token": 3}, "bos_token of tokenizer_config.json is 3; the text of a token is needed"),
        (
            {"extra_special_tokens": [3]},
            "extra_special_tokens of tokenizer_config.json is [3]; tokens by their",
        ),
        ({"chat_template": 3}, "chat_template of tokenizer_config.json is 3; a text is needed"),
    ):
        settings = {"tokenizer_class": "SentencePieceProcessor", **fields}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        with pytest.raises(CheckpointError) as caught:
            load_tokenizer(tmp_path)
        assert message in str(caught.value)


def test_files_that_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    content = trained(model_type="bpe")

    def unknown(model: Any) -> None:
        model.normalizer_spec.MergeFromString(b"\x98\x06\x01")  # field 99

    def denormaliser(model: Any) -> None:
        rules = ModelProto.FromString(trained(model_type="bpe", normalization_rule_name="nfkc_cf"))
        model.denormalizer_spec.precompiled_charsmap = rules.normalizer_spec.precompiled_charsmap

    def other_end(model: Any) -> None:
        model.trainer_spec.eos_id = 9

    def twice(model: Any) -> None:
        model.pieces[9].piece = model.pieces[8].piece

    def no_unknown(model: Any) -> None:
        model.pieces[0].type = 1

    for written, message in (
        (b"", "the file is empty"),
        (b"abc", DAMAGED),
        (b"IQ== 0\nIg== 1\n", DAMAGED),  # of tiktoken
        (content[:1000], DAMAGED),
        (content[:-3], DAMAGED),
        (ModelProto(trainer_spec={}).SerializeToString(), DAMAGED),
        (content + b"\x98\x06\x01", "the file has field 99 that the installed SentencePiece does not know"),
        (changed(content, unknown), "the file has a field in one of its parts that the installed Sentence"),
        (changed(content, denormaliser), "denormalizer_spec has rules that change decoded texts"),
        (
            changed(content, other_end),
            "trainer_spec.eos_id is 9, but the piece that is called '</s>' has the",
        ),
        (changed(content, twice), "SentencePiece cannot read the file: "),
        (changed(content, no_unknown), "SentencePiece cannot read the file: "),
    ):
        path = tmp_path / "tokenizer.model"
        path.write_bytes(written)
        with pytest.raises(CheckpointError) as caught:
            load_tokenizer(path)
        assert str(caught.value).startswith(f"{path}: {message}") and "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_sentencepiece_is_imported_only_for_its_files() -> None:
    names = "{'sentencepiece', 'google.protobuf'}"
    code = f"import sys, streamgen.text.tokenizer_files\nprint({names} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
