"""Tokenizers without a file of the library `tokenizers`: a token for each character, or ids as numbers.

A table of characters is a JSON file: a list of characters in the order of their ids, an object that gives
each character its id, or an object that holds such an object as "stoi".
"""

from collections.abc import Sequence
from typing import Any

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from streamgen.text.tokenizer import Tokenizer

TABLE = "a table of characters is a list of characters, or an object that gives each character its id"


def character_tokenizer(characters: Sequence[str]) -> Tokenizer:
    """A tokenizer whose tokens are single characters; the id of a character is its place in the sequence.

    Raises ValueError for an empty sequence, for texts of other lengths, and for a character that is given
    twice.
    """
    wrong = next((c for c in characters if not isinstance(c, str) or len(c) != 1), None)
    if wrong is not None or not characters:
        given = f"; {wrong!r} is given" if wrong is not None else ", and not empty"
        raise ValueError(f"{TABLE}{given}")
    if len(set(characters)) != len(characters):
        twice = next(c for c in characters if list(characters).count(c) > 1)
        raise ValueError(f"the table of characters has {twice!r} twice")
    library = Library(models.WordLevel({c: index for index, c in enumerate(characters)}))
    library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    library.decoder = decoders.Fuse()
    return Tokenizer(library)


def id_tokenizer(vocabulary: int) -> Tokenizer:
    """A tokenizer for a model that has none: a text is ids below `vocabulary`, with spaces between them."""
    library = Library(models.WordLevel({f"▁{index}": index for index in range(vocabulary)}))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    library.decoder = decoders.Metaspace(prepend_scheme="never")
    return Tokenizer(library)


def characters_of(content: Any) -> Tokenizer:
    """The tokenizer of a table of characters; ValueError for any other content."""
    table = content.get("stoi", content) if isinstance(content, dict) else content
    if isinstance(table, dict):
        by_id = {index: character for character, index in table.items() if type(index) is int}
        if sorted(by_id) != list(range(len(table))):
            raise ValueError(f"{TABLE}, 0 to {len(table) - 1}, each once")
        table = [by_id[index] for index in range(len(by_id))]
    if not isinstance(table, list):
        raise ValueError(TABLE)
    return character_tokenizer(table)


def is_table(content: Any) -> bool:
    """Whether the content of a JSON file is meant as a table of characters."""
    return isinstance(content, list) or (isinstance(content, dict) and "model" not in content)
