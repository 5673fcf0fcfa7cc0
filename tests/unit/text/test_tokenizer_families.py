"""Every family's tokenizer, of a folder and of a GGUF file, gives the ids and texts of its oracle."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from streamgen.text.tokenizer import Tokenizer
from streamgen.text.tokenizer_files import load_tokenizer
from streamgen.text.words import WORDS
from tests.unit.text.vocabularies import FAMILIES, TEXTS, family

# Of all families, in the middle of a text, with spaces on either side.
SPECIAL = (
    "hi<|end|>  \n you </s> x<s>  y<unk>  <|im_end|> <tool_call>  <think> <b> </b><|eot_id|>\n<|endoftext|>  "
    "[multimodal]<eos> <bos>ab<|start_header_id|>\n\n\n \n<pad>    <|begin_of_text|>"
)
OF_GGUF = [name for name in FAMILIES if name not in ("opt", "mistral")]
OF_PIECES = ["llama-2", "gemma"]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def of_folder(places: Path, name: str) -> tuple[Tokenizer, Any]:
    """Ours and transformers'."""
    folder = places / name
    if not folder.exists():
        family(name).folder(folder)
    return load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)


def of_gguf(places: Path, name: str) -> Tokenizer:
    return load_tokenizer(family(name).gguf(places / f"{name}.gguf"))


@pytest.mark.parametrize("name", FAMILIES)
def test_folders_give_the_ids_of_transformers(places: Path, name: str) -> None:
    ours, theirs = of_folder(places, name)
    assert ours.size == len(theirs)
    assert ours.ends == {theirs.eos_token_id}
    for text in (*TEXTS, SPECIAL):
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.encode(text, whole=False) == theirs.encode(text, add_special_tokens=False), text
        plain = theirs.encode(text, add_special_tokens=False, split_special_tokens=True)
        assert ours.encode(text, whole=False, special=False) == plain, text


@pytest.mark.parametrize("name", OF_GGUF)
def test_gguf_files_give_the_ids_of_folders(places: Path, name: str) -> None:
    ours, (folder, _) = of_gguf(places, name), of_folder(places, name)
    assert ours.size == folder.size and folder.ends <= ours.ends
    for text in (*TEXTS, SPECIAL):
        for choice in ({}, {"special": False}, {"whole": False}):
            assert ours.encode(text, **choice) == folder.encode(text, **choice), text
        ids = folder.encode(text)
        for special in (True, False):
            assert ours.decode(ids, special=special) == folder.decode(ids, special=special)


@pytest.mark.parametrize("name", OF_PIECES)
def test_gguf_files_give_the_ids_of_sentencepiece(places: Path, name: str) -> None:
    ours, theirs = of_gguf(places, name), family(name).sentence_piece
    for text in (*TEXTS, " " * 5, "a" + " " * 23 + "b", "\t\t\t\n\n", SPECIAL):
        assert ours.encode(text, whole=False, special=False) == theirs.encode(text), text
    start, end = theirs.bos_id(), theirs.eos_id()
    parts = f"a b{theirs.id_to_piece(end)}c{theirs.id_to_piece(start)} d"
    expected = [start, *theirs.encode("a b"), end, *theirs.encode("c"), start, *theirs.encode(" d")]
    assert ours.encode(parts) == expected


@pytest.mark.parametrize("name", FAMILIES)
def test_texts_of_ids(places: Path, name: str) -> None:
    """At once, and as ids come: the same, but for the space that a text loses at its start."""
    ours, theirs = of_folder(places, name)
    for text in (*TEXTS, SPECIAL):
        ids = ours.encode(text)
        assert ours.decode(ids) == theirs.decode(ids)
        whole = ours.decode(ids, special=False)
        assert whole == theirs.decode(ids, skip_special_tokens=True)
        stream = ours.stream()
        pieces = [stream.push(index) for index in ids]
        written = "".join(pieces) + stream.finish()
        assert "\ufffd" not in "".join(pieces)
        assert written in (whole, f" {whole}")


@pytest.mark.parametrize("name", ["gpt-2", "qwen", "llama-3"])
def test_any_ids_have_the_text_of_the_library(places: Path, name: str) -> None:
    """Bytes that are no UTF-8 among them."""
    ours, theirs = of_folder(places, name)
    rng = np.random.default_rng(3)
    broken = 0
    for _ in range(100):
        ids = rng.integers(0, 270, 20).tolist()
        assert ours.decode(ids) == theirs.decode(ids)
        broken += "\ufffd" in ours.decode(ids)
    assert broken > 50


@pytest.mark.parametrize("name", OF_PIECES)
def test_bytes_of_no_text(places: Path, name: str) -> None:
    ours = of_gguf(places, name)

    def ids(data: bytes) -> list[int]:
        return [ours.id_of(f"<0x{byte:02X}>") for byte in data]

    for data in (b"\xe2\x82\xac\xf0\x9f", b"a\xffb\xc3", b"\xc3\xa9\x80\xe4\xbd\xa0", bytes(range(128, 256))):
        assert ours.decode(ids(data)) == data.decode("utf-8", "replace")
    stream = ours.stream()
    assert [stream.push(index) for index in ids("€".encode())] == ["", "", "€"]


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_written_is_read_again(places: Path, tmp_path: Path, name: str) -> None:
    """By us, and by transformers."""
    ours = of_gguf(places, name) if name in OF_GGUF else of_folder(places, name)[0]
    ours.write(tmp_path)
    again, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert (again.size, again.ends, again.names) == (ours.size, ours.ends, ours.names)
    for text in (*TEXTS, SPECIAL):
        assert again.encode(text) == ours.encode(text) == theirs.encode(text)
        assert again.decode(ours.encode(text)) == ours.decode(ours.encode(text))


def test_words_are_cut_as_transformers_cuts_them() -> None:
    """The expressions of both tables, and none but those that cut by GPT-2's own rule is in one only."""
    alone = {"gpt-2", "phi-2", "smollm", "refact", "starcoder"}
    assert WORDS.keys() - GGUF_PRE_TOKENIZER_SPLITS.keys() == alone
    for name in WORDS.keys() - alone:
        (step,) = WORDS[name].steps
        assert step["pattern"]["Regex"] == GGUF_PRE_TOKENIZER_SPLITS[name], name
    assert all(WORDS[name].gpt2 for name in alone)


def test_phi3_takes_spaces_behind_control_tokens(places: Path) -> None:
    ours = of_gguf(places, "phi-3")
    end, plain = ours.id_of("<|end|>"), ours.encode("a", whole=False)
    assert ours.encode("<|end|> \n a", whole=False) == [end, *plain]
    assert ours.ends == {ours.id_of("</s>"), end}
    assert load_tokenizer(family("phi-3").gguf(places / "eot.gguf", eot_token_id=7)).ends == {2, 7, end}
