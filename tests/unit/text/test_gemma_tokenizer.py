"""The tokenizer of a real Gemma 3, 262,144 tokens of a GGUF file: ids are SentencePiece's, and it is kept."""

from pathlib import Path

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from benchmarks import quality
from streamgen.base.gguf_metadata import read_metadata
from streamgen.text.tokenizer import Tokenizer
from streamgen.text.tokenizer_files import load_tokenizer
from tests.unit.text.vocabularies import ROOT, SPACE, TEXTS

pytestmark = pytest.mark.slow

FILES = ["README.md", "docs/guide/card.md", "streamgen/text/chat.py", "streamgen/runtime/memory.py"]
SYMBOLS = [
    *(" " * n for n in (2, 5, 31, 32, 33, 65)),
    "\n" * 70 + "\t" * 40,
    "<table><tr><td> hi </td></tr></table><start_of_image>",
    "a [multimodal]b<0xFF>",
]
BPE, USER_DEFINED = 2, 4


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    """Assembled once, where the package keeps it."""
    return quality.gemma()


@pytest.fixture(scope="module")
def gemma(checkpoint: Path) -> Tokenizer:
    return load_tokenizer(checkpoint)


@pytest.fixture(scope="module")
def theirs(checkpoint: Path) -> sentencepiece.SentencePieceProcessor:
    """SentencePiece with the same pieces."""
    metadata = read_metadata(checkpoint)
    tokens, scores, types = (metadata[f"tokenizer.ggml.{n}"] for n in ("tokens", "scores", "token_type"))
    model = sentencepiece_model_pb2.ModelProto()
    for token, score, kind in zip(tokens, scores, types, strict=True):
        piece = token.replace(" ", SPACE) if kind == USER_DEFINED else token
        model.pieces.add(piece=piece, score=score, type=2 if token == "<unk>" else kind)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type, trainer.byte_fallback = BPE, True
    for index, name in enumerate(("pad", "eos", "bos", "unk")):
        setattr(trainer, f"{name}_id", index)
        setattr(trainer, f"{name}_piece", f"<{name}>")
    normalizer.name, normalizer.escape_whitespaces = "identity", True
    normalizer.add_dummy_prefix = normalizer.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())


def test_ids_are_those_of_sentencepiece(
    gemma: Tokenizer, theirs: sentencepiece.SentencePieceProcessor
) -> None:
    assert (gemma.size, gemma.ends) == (262144, {1, 106})
    for text in (*TEXTS, *SYMBOLS, *((ROOT / name).read_text() for name in FILES)):
        ids = gemma.encode(text, whole=False, special=False)
        assert ids == theirs.encode(text)
        assert gemma.encode(text, special=False) == [2, *ids]
        assert gemma.decode(ids) == text
    assert gemma.encode("<start_of_turn>user\n")[:3] == [
        2,
        gemma.id_of("<start_of_turn>"),
        gemma.id_of("user"),
    ]


def test_tokens_alone_and_in_a_text(
    gemma: Tokenizer, theirs: sentencepiece.SentencePieceProcessor, seed: int
) -> None:
    """A sample of the vocabulary."""
    for index in range(seed % 16, gemma.size, 16):
        if theirs.is_control(index) or theirs.is_byte(index):
            continue
        token = theirs.id_to_piece(index).replace(SPACE, " ")
        for text in (token, f"a{token} b"):
            assert gemma.encode(text, whole=False, special=False) == theirs.encode(text)


def test_what_is_written_is_read_again(gemma: Tokenizer, tmp_path: Path) -> None:
    gemma.write(tmp_path)
    again = load_tokenizer(tmp_path)
    assert (again.size, again.ends, again.names) == (gemma.size, gemma.ends, gemma.names)
    for text in (*TEXTS, *SYMBOLS):
        ids = gemma.encode(text)
        assert again.encode(text) == ids and again.decode(ids) == gemma.decode(ids)
