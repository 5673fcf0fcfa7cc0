"""The settings next to tokenizer.json in a folder: names of tokens, added tokens, chat templates.

They are in tokenizer_config.json. If that file has no field added_tokens_decoder, as before 2023, they are
also in special_tokens_map.json and added_tokens.json. The priorities are those of transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from streamgen.text.folder_files import CONFIG, SETTINGS, TOKENIZER, read_object
from streamgen.text.known import require_known, says_nothing, shown
from streamgen.text.library import told

STARTS = ("add_bos_token", "add_eos_token")  # transformers reads these only here, even when they are false
MAP, ADDED = "special_tokens_map.json", "added_tokens.json"
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
EXTRA, OLD_EXTRA, SPECIFIC = (
    "extra_special_tokens",
    "additional_special_tokens",
    "model_specific_special_tokens",
)
COMPUTED = (
    *NAMES, EXTRA, OLD_EXTRA, SPECIFIC, "added_tokens_decoder", "add_prefix_space", "auto_map",
    "chat_template", "legacy", "tokenizer_class",
)  # fmt: skip
ALLOWED: dict[str, tuple[Any, ...]] = {
    "backend": ("tokenizers",),
    "errors": ("replace",),
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": (),
    "fix_mistral_regex": (),
    "split_special_tokens": (),
    "trust_remote_code": (),
}
# Fields that change no id and no text, by reason.
HARMLESS = {
    "a text is neither cut nor filled up": (
        "max_len", "max_length", "model_max_length", "pad_to_multiple_of", "pad_token_type_id", "padding",
        "padding_side", "stride", "truncation", "truncation_side", "truncation_strategy",
    ),
    "tokenizer.json has it, and is read": ("add_bos_token", "add_eos_token", "sp_model_kwargs", "vocab_size"),
    "names what is given beside the ids": (
        "model_input_names", "return_token_type_ids", "trim_offsets",
    ),
    "names tokens by ids, where names by texts are read": (
        "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id",
    ),
    "says where the files were": (
        "_commit_hash", "_name_or_path", "files_loaded", "from_slow", "is_local",
        "local_files_only", "merges_file", "name_or_path", "processor_class", "slow_tokenizer_class",
        "special_tokens_map_file", "tokenizer_file", "transformers_version", "use_fast", "verbose",
        "vocab_file",
    ),
    "concerns what is read out of an answer, or taken out of a message": (
        "chat_control_tokens", "response_schema", "response_template",
    ),
    "of classes that are no more; nothing reads it": (
        "clean_up_tokenization_spaces", "spaces_between_special_tokens", "use_default_system_prompt",
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a folder. fields: of tokenizer_config.json. config: of config.json. names: texts of
    tokens by name. absent: names that are set to null. named: tokens by name. extra: special tokens without a
    name. added: tokens by id."""

    fields: Mapping[str, Any]
    config: Mapping[str, Any]
    names: Mapping[str, str]
    absent: frozenset[str]
    named: Mapping[str, AddedToken]
    extra: tuple[AddedToken, ...]
    added: Mapping[int, AddedToken]

    @classmethod
    def of(cls, folder: Path, written: Mapping[str, Any]) -> "Settings":
        """The settings for a tokenizer. written: the content of tokenizer.json. ValueError names a field that
        is unknown or damaged."""
        fields = read_object(folder / SETTINGS)
        own = [name for name in fields if names_token(name, fields[name])]
        require_known(fields, SETTINGS, computed={*COMPUTED, *own}, allowed=ALLOWED, harmless=HARMLESS)
        _require_as_it_is(fields, written)
        tokens = {name: _token(fields[name], name, SETTINGS) for name in (*NAMES, *own) if name in fields}
        extra = fields.get(EXTRA) or fields.get(OLD_EXTRA) or []
        if isinstance(extra, Mapping):
            tokens, extra = tokens | _tokens(extra, EXTRA), []
        if not tokens.keys() - set(NAMES):
            tokens |= _tokens(fields.get(SPECIFIC) or {}, SPECIFIC)
        extras = _list(extra, EXTRA, SETTINGS)
        if "added_tokens_decoder" in fields:
            added = _added(fields["added_tokens_decoder"])
        else:
            tokens, extras = _with_map(read_object(folder / MAP), tokens, extras)
            named = [tokens.get(name) for name in NAMES]
            special = {str(token) for token in (*named, *extras)}
            added = _old_added(read_object(folder / ADDED), written, special)
        return cls(
            fields=fields,
            config=read_object(folder / CONFIG),
            names={name: str(token) for name, token in tokens.items() if token is not None},
            absent=frozenset(name for name, token in tokens.items() if token is None),
            named={name: token for name, token in tokens.items() if token is not None},
            extra=tuple(extras),
            added=added,
        )

    def add(self, library: Library, names: Mapping[str, str]) -> None:
        """Add the tokens that a library lacks or has in another form. names: of all named tokens."""
        there = library.get_added_tokens_decoder().values()
        kinds = {repr(token) for token in there}
        tokens = [token for _, token in sorted(self.added.items()) if repr(token) not in kinds]
        texts = {str(token) for token in (*there, *tokens)}
        order = sorted(names, key=lambda name: NAMES.index(name) if name in NAMES else len(NAMES))
        named = [self.named.get(name) or AddedToken(names[name], special=True) for name in order]
        for token in (*named, *self.extra):  # new ids follow this order
            if str(token) and str(token) not in texts:
                tokens.append(token)
                texts.add(str(token))
        for token in tokens:
            if str(token) in names.values():
                token.special = True
        with told(f"the added tokens of {SETTINGS} do not fit {TOKENIZER}"):
            library.add_tokens(tokens)


def _require_as_it_is(fields: Mapping[str, Any], written: Mapping[str, Any]) -> None:
    """Raise ValueError for code in the folder, and for settings that change the texts of other models than
    BPE."""
    code = fields.get("auto_map")
    code = code.get("AutoTokenizer") if isinstance(code, Mapping) else code
    if isinstance(code, list) or not says_nothing(code):  # transformers looks for code even in an empty list
        raise ValueError(
            f"auto_map of {SETTINGS} names code of the folder's own, {shown(code)}, which is never run; "
            f"without auto_map {TOKENIZER} is read"
        )
    kind = written.get("model", {}).get("type", "BPE")
    if kind != "BPE" and not says_nothing(fields.get("clean_up_tokenization_spaces")):
        raise ValueError(
            f"clean_up_tokenization_spaces of {SETTINGS} is true, which changes the texts of a {kind}; "
            "allowed: false"
        )


def names_token(name: str, value: Any) -> bool:
    """Whether a field is the folder's own name for a token."""
    return name.endswith("_token") and name not in STARTS and _is_token(value)


def _is_token(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, Mapping) and "content" in value)


def _token(value: Any, name: str, where: str) -> AddedToken | None:
    """A token from its text or its description; None for a value without effect."""
    if value is None or value is False:
        return None
    if isinstance(value, str):
        return AddedToken(value, special=True)
    if not _is_token(value):
        raise ValueError(f"{name} of {where} is {shown(value)}; the text of a token is needed")
    try:
        return AddedToken(**{key: part for key, part in value.items() if key != "__type"})
    except TypeError as error:
        raise ValueError(f"{name} of {where} is not as expected: {error}") from error


def _tokens(named: Any, field: str) -> dict[str, AddedToken | None]:
    """Tokens by the folder's own names, which templates see like the standard names."""
    if not isinstance(named, Mapping):
        raise ValueError(f"{field} of {SETTINGS} is {shown(named)}; tokens by their names are needed")
    return {name: _token(value, f"{field}.{name}", SETTINGS) for name, value in named.items()}


def _list(extra: Any, field: str, where: str) -> list[AddedToken]:
    if not isinstance(extra, list):
        raise ValueError(f"{field} of {where} is {shown(extra)}; a list of tokens is needed")
    tokens = [_token(value, field, where) for value in extra]
    return [token for token in tokens if token is not None]


def _added(field: Any) -> dict[int, AddedToken]:
    """Tokens by id from added_tokens_decoder."""
    try:
        return {int(index): AddedToken(**token) for index, token in (field or {}).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"added_tokens_decoder of {SETTINGS} is not as expected: {type(error).__name__} {error}"
        ) from error


def _with_map(
    fields: Mapping[str, Any], tokens: dict[str, AddedToken | None], extras: list[AddedToken]
) -> tuple[dict[str, AddedToken | None], list[AddedToken]]:
    """The tokens and extra tokens of tokenizer_config.json and of special_tokens_map.json."""
    for name, value in fields.items():
        if name in NAMES or (names_token(name, value) and name not in tokens):
            special = value | {"special": True} if isinstance(value, dict) else value
            tokens = tokens | {name: _token(special, name, MAP)}
        elif name == EXTRA and not isinstance(value, Mapping):
            texts = {str(token) for token in extras}
            extras = [*extras, *(token for token in _list(value or [], name, MAP) if str(token) not in texts)]
        elif name == OLD_EXTRA:
            extras = extras or _list(value or [], name, MAP)
        elif name not in tokens and (name in STARTS or not says_nothing(value)):
            raise ValueError(
                f"{MAP} has the field {name} = {shown(value)}, which is not known; only names of tokens are"
            )
    return tokens, extras


def _old_added(
    ids: Mapping[str, Any], written: Mapping[str, Any], special: set[str]
) -> dict[int, AddedToken]:
    """Tokens by id of added_tokens.json; those of tokenizer.json have priority."""
    added: dict[int, AddedToken] = {}
    for text, index in ids.items():
        if type(index) is not int:
            raise ValueError(f"the id of {text!r} in {ADDED} is {shown(index)}; a number is needed")
        added[index] = AddedToken(text, normalized=text not in special, special=text in special)
    try:
        for token in written.get("added_tokens") or ():
            added[token["id"]] = AddedToken(**{key: value for key, value in token.items() if key != "id"})
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"added_tokens of {TOKENIZER} is not as expected: {type(error).__name__} {error}"
        ) from error
    return added
