"""The tokenizers of checkpoints: of a GGUF file (`text.gguf_tokenizer`), and of a folder with tokenizer.json.

A folder as transformers writes it has the tokenizer in tokenizer.json, the format of the library
`tokenizers`: with the tokens that are put before and behind a text, whatever tokenizer_config.json says of
them. That one says what templates call tokens, and which one ends a text; generation_config.json says which
others do; the template of chats is in chat_template.jinja or tokenizer_config.json.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library

from streamgen.errors import CheckpointError
from streamgen.gguf_metadata import read_metadata
from streamgen.text.gguf_tokenizer import gguf_tokenizer
from streamgen.text.library import read
from streamgen.text.tokenizer import GENERATION, SETTINGS, TOKENIZER, Tokenizer

__all__ = ["load_tokenizer"]

TEMPLATE = "chat_template.jinja"
OTHERS = ("tokenizer.model", "vocab.json", "tekken.json")  # of other libraries
NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a GGUF file or a folder; CheckpointError when it has none, or one of another kind."""
    path = Path(path)
    try:
        return _of_folder(path) if path.is_dir() else gguf_tokenizer(read_metadata(path))
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _of_folder(folder: Path) -> Tokenizer:
    if not (folder / TOKENIZER).is_file():
        raise ValueError(_absent(folder))
    library, written = read(folder / TOKENIZER), _object(folder / TOKENIZER)
    if written["model"].get("dropout"):
        raise ValueError(f"{TOKENIZER} has dropout, which draws other ids each time")
    settings, generation = _object(folder / SETTINGS), _object(folder / GENERATION)
    _check_added(library, written, settings)
    names = {name: text for name in NAMES if (text := _text(settings.get(name))) is not None}
    for name in ("bos_token", "eos_token"):
        if name in names and library.token_to_id(names[name]) is None:
            raise ValueError(f"the {name} of {SETTINGS}, {names[name]!r}, has no id in {TOKENIZER}")
    ends = _ends(generation)
    if (end := library.token_to_id(names.get("eos_token", ""))) is not None:
        ends.add(end)
    return Tokenizer(library, ends=ends, template=_template(folder, settings), names=names)


def _check_added(library: Library, written: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """ValueError for tokens whose ids are not those that both files say: the library numbers them anew."""
    try:
        added = [(token["content"], token["id"]) for token in written.get("added_tokens") or ()]
        others = settings.get("added_tokens_decoder") or {}
        added += [(token["content"], int(index)) for index, token in others.items()]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{SETTINGS} is not as expected: {type(error).__name__} {error}") from error
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
    return (
        f"there is {there[0]} but no {TOKENIZER}, which alone is read; transformers writes it: "
        "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
    )


def _object(path: Path) -> dict[str, Any]:
    """What a file holds, nothing if there is no file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds no object")
    return found


def _text(token: Any) -> str | None:
    """The text of a token of tokenizer_config.json, which may be described, too."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None


def _ends(generation: Mapping[str, Any]) -> set[int]:
    ends = generation.get("eos_token_id")
    found = ends if isinstance(ends, list) else [] if ends is None else [ends]
    if not all(isinstance(index, int) and not isinstance(index, bool) for index in found):
        raise ValueError(f"eos_token_id of {GENERATION} is {ends!r}; an id or a list of ids is needed")
    return set(found)


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The template of chats: the one that is a file, or the one called default."""
    if (folder / TEMPLATE).is_file():
        return (folder / TEMPLATE).read_text(encoding="utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, Mapping)}
        found = named.get("default")
    return found if isinstance(found, str) else None
