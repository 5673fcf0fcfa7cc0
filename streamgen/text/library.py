"""The use of the library `tokenizers`, and the messages for its failures.

The library is written in Rust. For a damaged description some parts raise a bare Exception; some panic, which
reaches Python as a nameless BaseException. Both become a ValueError here.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library


@contextmanager
def told(what: str) -> Iterator[None]:
    """Turn failures of the library within a block into a ValueError: `what`, and the library's message."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{what}: {error}") from error


def read(path: Path) -> Library:
    """The tokenizer that a file in the library's format describes; ValueError for a damaged file."""
    with told(f"{path.name} cannot be read"):
        return Library.from_file(str(path))


def encoded(library: Library, text: str, *, whole: bool) -> list[int]:
    """The ids of a text. whole: with the tokens that begin and end a text. ValueError for a word without a
    token, in a tokenizer of whole words that has no token for unknown words."""
    try:
        ids: list[int] = library.encode(text, add_special_tokens=whole).ids
    except Exception as error:
        words = (
            [word for word, _ in library.pre_tokenizer.pre_tokenize_str(text)]
            if library.pre_tokenizer
            else []
        )
        unknown = next((word for word in words if library.token_to_id(word) is None), None)
        if unknown is None:
            raise
        raise ValueError(f"the text has {unknown!r}, for which the tokenizer has no token") from error
    return ids


def described(**parts: Any) -> Library:
    """A tokenizer from parts in the library's JSON (normalizer, pre_tokenizer, decoder), without tokens."""
    model = {"type": "BPE", "vocab": {}, "merges": []}
    return Library.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model, **parts}))


def surround(library: Library, before: str | None, after: str | None) -> None:
    """Make every text begin with one token and end with another, if these are given."""
    text = {"Sequence": {"id": "A", "type_id": 0}}
    pieces = [{"SpecialToken": {"id": token, "type_id": 0}} if token else None for token in (before, after)]
    special = {
        token: {"id": token, "ids": [library.token_to_id(token)], "tokens": [token]}
        for token in (before, after)
        if token
    }
    single = [piece for piece in (pieces[0], text, pieces[1]) if piece]
    template = {"type": "TemplateProcessing", "single": single, "special_tokens": special}
    library.post_processor = described(post_processor={**template, "pair": [text, text]}).post_processor
