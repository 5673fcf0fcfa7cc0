"""Tokenizers of checkpoints: of a GGUF file (`text.gguf_tokenizer`), of a folder with tokenizer.json, or of a
file of SentencePiece (`text.sentence_piece`).

A folder written by transformers has the tokenizer in tokenizer.json, in the format of the library
`tokenizers`. The file includes the tokens that are added before and after a text, and has priority over
tokenizer_config.json for these. tokenizer_config.json has the names of tokens, the added tokens, and the
class that builds the tokenizer (`text.tokenizer_settings`, `text.tokenizer_classes`). The ids that end a text
are in generation_config.json or config.json (`text.generation`).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from streamgen.base.errors import CheckpointError
from streamgen.base.files import parsed
from streamgen.base.gguf_metadata import read_metadata
from streamgen.text.characters import characters_of, is_table
from streamgen.text.folder_files import PIECES, SETTINGS, TOKENIZER, read_object
from streamgen.text.generation import generation_of
from streamgen.text.gguf_tokenizer import gguf_tokenizer
from streamgen.text.library import read, told
from streamgen.text.sentence_piece import pieces_of, pieces_of_folder
from streamgen.text.templates import templates_of_folder
from streamgen.text.tokenizer import Tokenizer
from streamgen.text.tokenizer_classes import CLASSES, class_of
from streamgen.text.tokenizer_settings import Settings

UNREAD = {".pkl": "pickled objects", ".txt": "plain text"}
READABLE = (
    "a folder or file of tokenizer.json is, which transformers writes: "
    "AutoTokenizer.from_pretrained(folder).save_pretrained(folder); so are a file of SentencePiece (*.model) "
    "and a JSON table of characters"
)
OTHERS = ("spiece.model", "vocab.json", "tekken.json")  # files of other libraries


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a folder, of a GGUF file, of a file of SentencePiece (*.model), or of a JSON file: one
    of the library `tokenizers`, or a table of characters (`text.characters`). CheckpointError if there is
    none, or one of another kind.

    A text of a file of SentencePiece has no begin token, as SentencePiece adds none of itself.
    """
    path = Path(path)
    try:
        if path.is_dir():
            return _of_folder(path)
        if path.suffix in UNREAD:
            raise ValueError(f"a tokenizer of {UNREAD[path.suffix]} is not read; {READABLE}")
        if path.suffix == ".model":
            return pieces_of(path.read_bytes())
        return _of_json(path) if path.suffix == ".json" else gguf_tokenizer(read_metadata(path))
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _of_folder(folder: Path) -> Tokenizer:
    if not (folder / TOKENIZER).is_file():
        if (folder / PIECES).is_file():
            return pieces_of_folder(folder)
        raise ValueError(_absent(folder))
    library, written = read(folder / TOKENIZER), read_object(folder / TOKENIZER)
    if written["model"].get("dropout"):
        raise ValueError(f"{TOKENIZER} has dropout, which draws other ids each time")
    settings = Settings.of(folder, written)
    for name in ("bos_token", "eos_token"):
        if name in settings.names and library.token_to_id(settings.names[name]) is None:
            raise ValueError(f"the {name} of {SETTINGS}, {settings.names[name]!r}, has no id in {TOKENIZER}")
    library, names = _built(library, written, settings)
    _check_added(library, written, settings)
    ends = set(generation_of(folder).ends)
    if (end := library.token_to_id(names.get("eos_token", ""))) is not None:
        ends.add(end)
    templates = templates_of_folder(folder, settings.fields.get("chat_template"))
    return Tokenizer(library, ends=ends, templates=templates, names=names)


def _of_json(path: Path) -> Tokenizer:
    content = parsed(path.read_bytes())
    if is_table(content):
        return characters_of(content)
    return Tokenizer(read(path))


def _built(
    library: Library, written: Mapping[str, Any], settings: Settings
) -> tuple[Library, dict[str, str]]:
    """The library as the folder's class builds it, with all added tokens, and the names of tokens."""
    kind = class_of(settings.fields, settings.config, '"ByteLevel"' in json.dumps(written))
    if kind is None:
        settings.add(library, settings.names)
        return library, dict(settings.names)
    tokenizer_class = CLASSES[kind]
    left = {name: text for name, text in tokenizer_class.names.items() if name not in settings.absent}
    names = {**left, **settings.names}
    parts = tokenizer_class.built(written, settings.fields, names.get("unk_token"))
    with told(f"{TOKENIZER} cannot be read as {kind}"):
        library = Library.from_str(json.dumps(parts))
    settings.add(library, names)
    if tokenizer_class.again:
        texts = [*names.values(), *map(str, settings.extra)]
        library.add_tokens([AddedToken(text, special=True) for text in texts])
    return library, names


def _check_added(library: Library, written: Mapping[str, Any], settings: Settings) -> None:
    """Raise ValueError for tokens whose ids differ between the two files: the library would number them
    again."""
    added = [(token["content"], token["id"]) for token in written.get("added_tokens") or ()]
    added += [(str(token), index) for index, token in settings.added.items()]
    for token, index in added:
        if library.token_to_id(token) != index:
            raise ValueError(
                f"the added token {token!r} has the id {index}, in the vocabulary of {TOKENIZER} "
                f"{library.token_to_id(token)}; let transformers write the folder again"
            )


def _absent(folder: Path) -> str:
    there = [name for name in OTHERS if (folder / name).is_file()]
    if not there:
        return f"there is no {TOKENIZER}, hence no tokenizer"
    message = (
        f"there is {there[0]}, but only {TOKENIZER} can be read; transformers writes it: "
        "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
    )
    if there[0].endswith(".model"):
        message += f". The file {folder / there[0]} by itself is read as SentencePiece reads it"
    return message
