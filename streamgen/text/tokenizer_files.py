"""The tokenizers of checkpoints: of a GGUF file, and of a folder with tokenizer.json.

A GGUF file holds tokens, types, merges and the name of a pre-tokenizer (`text.tokenizer`). A folder as
transformers writes it has them in tokenizer.json, the format of the library `tokenizers`; byte-level BPE is
read, with any pre-tokenizer. What would change a text in other ways is refused. Its tokenizer_config.json
says which token ends a text.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streamgen.errors import CheckpointError
from streamgen.gguf_metadata import read_metadata
from streamgen.text.tokenizer import CONTROL, NORMAL, USER_DEFINED, Tokenizer, Vocabulary

__all__ = ["TOKENIZER", "load_tokenizer"]

TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a GGUF file or a folder; CheckpointError when it has none, or one of another kind."""
    path = Path(path)
    try:
        return Tokenizer(_of_folder(path) if path.is_dir() else _of_gguf(path))
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _of_gguf(path: Path) -> Vocabulary:
    metadata = read_metadata(path)

    def field(name: str) -> Any:
        value = metadata.get(f"tokenizer.ggml.{name}")
        if value is None:
            raise ValueError(f"there is no field tokenizer.ggml.{name}, hence no tokenizer")
        return value

    def optional(name: str) -> int | None:
        return metadata.get(f"tokenizer.ggml.{name}")

    if field("model") != "gpt2":
        raise ValueError(f"the tokenizer is of the kind {field('model')!r}; only 'gpt2' is known")
    return Vocabulary(
        tokens=field("tokens"),
        types=field("token_type"),
        merges=field("merges"),
        pre_tokenizer=field("pre"),
        start=optional("bos_token_id") if optional("add_bos_token") else None,
        end=optional("eos_token_id"),
        unknown=optional("unknown_token_id"),
    )


def _of_folder(folder: Path) -> Vocabulary:
    if not (folder / TOKENIZER).is_file():
        raise ValueError(f"there is no {TOKENIZER}, hence no tokenizer")
    described = _read(folder / TOKENIZER)
    settings = _read(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
    try:
        return _vocabulary(described, settings)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{TOKENIZER} is not as expected: {type(error).__name__} {error}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds no object")
    return found


def _vocabulary(described: Mapping[str, Any], settings: Mapping[str, Any]) -> Vocabulary:
    model, added = described["model"], described.get("added_tokens") or []
    refused = {
        f"a model of type {model.get('type')}": model.get("type") != "BPE",
        "byte_fallback": model.get("byte_fallback"),
        "dropout": model.get("dropout"),
        "prefixes or suffixes of words": model.get("continuing_subword_prefix")
        or model.get("end_of_word_suffix"),
        "a normalizer": described.get("normalizer"),
        "added tokens that take spaces or whole words": any(
            token.get("lstrip") or token.get("rstrip") or token.get("single_word") for token in added
        ),
    }
    if found := [what for what, there in refused.items() if there]:
        raise ValueError(f"{TOKENIZER} has {found[0]}, which is not known here; byte-level BPE is")
    ids = dict(model["vocab"])
    types = dict.fromkeys(ids, NORMAL)
    for token in added:
        ids[token["content"]] = token["id"]
        types[token["content"]] = CONTROL if token.get("special") else USER_DEFINED
    tokens = sorted(ids, key=ids.__getitem__)
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise ValueError(f"the ids of {TOKENIZER} are not 0 to {len(tokens) - 1}, each once")
    unknown = model.get("unk_token")
    end = settings.get("eos_token")
    end = end["content"] if isinstance(end, dict) else end
    for what, token in (("unknown", unknown), ("end", end)):
        if token is not None and token not in ids:
            raise ValueError(f"the {what} token {token!r} has no id in {TOKENIZER}")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return Vocabulary(
        tokens=tokens,
        types=[types[token] for token in tokens],
        merges=merges,
        pre_tokenizer=json.dumps(described["pre_tokenizer"]),
        start=_start(described.get("post_processor"), ids),
        end=None if end is None else ids[end],
        unknown=None if unknown is None else ids[unknown],
        ignore_merges=bool(model.get("ignore_merges")),
    )


def _start(processor: Mapping[str, Any] | None, ids: Mapping[str, int]) -> int | None:
    """The id with which every text begins, if there is one."""
    if processor is None or processor["type"] == "ByteLevel":  # which moves offsets, no ids
        return None
    if processor["type"] == "Sequence":
        found = [_start(one, ids) for one in processor["processors"]]
        return next((one for one in found if one is not None), None)
    if processor["type"] != "TemplateProcessing":
        raise ValueError(
            f"the post-processor is {processor['type']}; ByteLevel and TemplateProcessing are known"
        )
    single = processor["single"]
    names = [piece["SpecialToken"]["id"] if "SpecialToken" in piece else None for piece in single]
    if names == [None]:
        return None
    if len(names) != 2 or names[0] is None or names[1] is not None:
        raise ValueError("the post-processor adds more than a token before a text")
    return ids[names[0]]
