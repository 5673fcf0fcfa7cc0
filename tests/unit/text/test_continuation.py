"""Texts that end: at stop texts across tokens, at end tokens, at the length."""

import random

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders
from tokenizers.models import BPE

from streamgen.text.continuation import Continuation, stops_of
from streamgen.text.tokenizer import Tokenizer
from tests.shared.decoders import WORDS


def continuation(text: str, stops: tuple[str, ...] = (), ends: frozenset[int] = frozenset()) -> Continuation:
    """Of a text whose tokens are its characters."""
    return Continuation(iter(WORDS.encode(text)), WORDS, ends, stops)


@pytest.mark.parametrize(
    ("stops", "text", "ended", "tokens"),
    [
        ((), "ABCABD", "length", 6),
        (("ABD",), "ABC", "stop", 6),
        (("BD", "ABD"), "ABC", "stop", 6),  # the first place, whichever text is there
        (("CA", "B"), "A", "stop", 2),
        (("A",), "", "stop", 1),
        (("DX", "ABCABDX"), "ABCABD", "length", 6),  # only the beginning of one
    ],
)
def test_stop_texts(stops: tuple[str, ...], text: str, ended: str, tokens: int) -> None:
    found = continuation("ABCABD", stops)
    assert ("".join(found), found.ended, len(found.ids)) == (text, ended, tokens)


def test_pieces_come_as_soon_as_no_stop_text_can_begin_in_them() -> None:
    assert [*continuation("ABABC", ("ABC",))] == ["AB"]
    assert [*continuation("XABAD", ("ABC",))] == ["X", "AB", "AD"]


@pytest.mark.parametrize("seed", range(20))
def test_any_stop_text_in_any_text(seed: int) -> None:
    """Against Python's own search; few letters, so that texts overlap themselves."""
    rng = random.Random(seed)
    for _ in range(50):
        text = "".join(rng.choices("AB", k=rng.randrange(1, 12)))
        stops = tuple("".join(rng.choices("AB", k=rng.randrange(1, 5))) for _ in range(rng.randrange(1, 4)))
        places = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
        found = continuation(text, stops)
        written = "".join(found)
        if not places:
            assert (written, found.ended) == (text, "length")
            continue
        read = min(end for end, _ in places)  # with this token the first of them is whole
        assert len(found.ids) == read and found.ended == "stop"
        assert written == text[: min(start for end, start in places if end <= read)]


def test_an_end_token_is_no_part_of_the_text() -> None:
    found = continuation("ABC", ends=frozenset(WORDS.encode("C")))
    assert ("".join(found), found.ended, found.ids) == ("AB", "end", WORDS.encode("ABC"))


def test_bytes_that_are_no_character_are_marked_in_the_end() -> None:
    library = Library(BPE(vocab={"<0xC3>": 0, "<0xA9>": 1, "x": 2}, merges=[], byte_fallback=True))
    library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = Tokenizer(library)
    assert [*Continuation([0, 1, 2], tokenizer, ())] == ["é", "x"]
    assert [*Continuation([2, 0], tokenizer, ())] == ["x", "\N{REPLACEMENT CHARACTER}"]
    assert [*Continuation([2, 0, 1], tokenizer, (), ("é",))] == ["x"]


@pytest.mark.parametrize(
    ("stop", "ids", "texts"),
    [
        (None, None, ()),
        ((), frozenset(), ()),
        ("AB", None, ("AB",)),
        (["AB", "C"], None, ("AB", "C")),
        ([3, "C"], frozenset({3}), ("C",)),
        ({3, 4}, frozenset({3, 4}), ()),
    ],
)
def test_what_ends_a_text(stop: object, ids: frozenset[int] | None, texts: tuple[str, ...]) -> None:
    assert stops_of(stop) == (ids, texts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stop", "kind", "message"),
    [
        ([1.5], TypeError, "stop holds 1.5; ids and texts are allowed"),
        ([True], TypeError, "stop holds True; ids and texts are allowed"),
        ("", ValueError, "stop holds an empty text; at least one character is needed"),
        (["A", ""], ValueError, "stop holds an empty text; at least one character is needed"),
    ],
)
def test_what_does_not(stop: object, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        stops_of(stop)  # type: ignore[arg-type]
    assert str(caught.value) == message
