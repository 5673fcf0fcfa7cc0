"""What is asked of the library `tokenizers`, and how its failures are told.

It is written in Rust. Of a damaged description some parts raise a bare Exception, some panic, which reaches
Python as a BaseException of no name; here both are a ValueError.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library


@contextmanager
def told(what: str) -> Iterator[None]:
    """Failures of the library in here are a ValueError: `what`, and what the library says."""
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


def described(**parts: Any) -> Library:
    """A tokenizer of parts in the library's JSON (normalizer, pre_tokenizer, decoder), without tokens."""
    model = {"type": "BPE", "vocab": {}, "merges": []}
    return Library.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model, **parts}))


def surround(library: Library, before: str | None, after: str | None) -> None:
    """Every text begins with one token and ends with another, if they are given."""
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
