"""The tokenizer that the metadata of a GGUF file describes.

`tokenizer.ggml.model` names one of two kinds. Each is built from parts of the library `tokenizers`:

    gpt2    byte-level BPE (Radford et al., Language models are unsupervised multitask learners, 2019). The
            file has merges by rank, and in `tokenizer.ggml.pre` the name of a rule that cuts a text into
            words (`text.words`)
    llama   the BPE of SentencePiece (Kudo and Richardson, SentencePiece, 2018). A space is U+2581, one is put
            before a text unless the file says otherwise, characters without a token are bytes. The file has
            scores: of all neighbours whose union is a token, those of the greatest score are joined first,
            which is a merge of each pair that makes a token, ranked by its score

The types of tokens decide which tokens are found in a text before it is cut: control tokens (<|im_end|>) and
user-defined ones (runs of newlines), the longest first. Missing fields have llama.cpp's defaults: a text of
kind llama begins with its start token, and so does a text of Llama 3. A text ends with the tokens that a file
names and with those whose name is in `text.ends`. A field that is in none of the tables here is refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE

from streamgen.text.ends import ends_among
from streamgen.text.known import require_known, shown
from streamgen.text.library import described, surround, told
from streamgen.text.templates import names_template, templates_of_metadata
from streamgen.text.tokenizer import Tokenizer
from streamgen.text.words import BYTE, CONTROL, NORMAL, SPACE, UNKNOWN, UNUSED, USER_DEFINED, WORDS

NAMES = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "sep": "seperator",  # GGUF spells it this way
    "pad": "padding",
    "cls": "cls",
    "mask": "mask",
}
NAMED_ENDS = ("eos", "eot", "eom")  # of a text, a turn, a message
KEEPS_SPACES = ("<unk>", "<s>", "<|endoftext|>")  # of Phi-3's control tokens

PLACE = "tokenizer.ggml."
FLAGS = ("add_bos_token", "add_eos_token", "add_space_prefix")
COMPUTED = {
    *(f"{PLACE}{name}" for name in ("model", "pre", "tokens", "token_type", "scores", "merges", *FLAGS)),
    *(f"{PLACE}{name}_token_id" for name in (*NAMES.values(), *NAMED_ENDS)),
}
# Fields that change no id and no text, by reason.
HARMLESS = {
    "fills in the middle of a text, which nothing here does": tuple(
        f"{PLACE}{name}_token_id"
        for name in (
            *("fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"),
            *("prefix", "suffix", "middle"),
        )
    ),
    "of models with kinds of texts": (f"{PLACE}token_type_count",),
    "a copy of tokenizer.json, of which the other fields are": ("tokenizer.huggingface.json",),
}


@dataclass(frozen=True)
class _Fields:
    """The fields tokenizer.ggml.*, each checked when it is read."""

    metadata: Mapping[str, Any]
    ids: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        tokens = self.needed("tokens", str)
        object.__setattr__(self, "ids", {token: index for index, token in enumerate(tokens)})
        if not tokens or len(self.ids) != len(tokens):
            raise ValueError("two ids have the same token" if tokens else "there are no tokens")

    def needed(self, name: str, kind: type | None = None, of_each: bool = False) -> Any:
        """A field that must be there. kind: of a list's values. of_each: the list has one value for each
        token."""
        value = self.metadata.get(f"tokenizer.ggml.{name}")
        if value is None:
            raise ValueError(f"there is no field tokenizer.ggml.{name}, hence no tokenizer")
        if kind and not (isinstance(value, list) and all(isinstance(element, kind) for element in value)):
            raise ValueError(f"the field tokenizer.ggml.{name} is not a list of {kind.__name__}")
        if of_each and len(value) != len(self.ids):
            raise ValueError(
                f"there are {len(self.ids)} tokens, but {len(value)} values in tokenizer.ggml.{name}"
            )
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.metadata.get(f"{PLACE}{name}")
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ValueError(f"the field {PLACE}{name} is {shown(value)}; true or false is needed")
        return value

    def token(self, name: str) -> str | None:
        """The token with the id in tokenizer.ggml.{name}_token_id."""
        index = self.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if index is None:
            return None
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(self.ids):
            raise ValueError(f"the {name} token is {index!r}; ids are 0 to {len(self.ids) - 1}")
        return self.needed("tokens")[index]

    def added(self, name: str, default: bool) -> str | None:
        """The token that is added to every text, if tokenizer.ggml.add_{name}_token is true."""
        if not self.flag(f"add_{name}_token", default):
            return None
        if (token := self.token(name)) is None:
            raise ValueError(
                f"every text gets the {name} token, but the field tokenizer.ggml.{name}_token_id is missing"
            )
        return token


def gguf_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer. metadata: values by name. Raises ValueError for a value that is missing, wrong or
    unknown, for another kind of tokenizer and for an unknown pre-tokenizer."""
    kind = metadata.get("tokenizer.ggml.model")
    builders: dict[Any, Callable[[_Fields], tuple[Library, bool]]] = {
        "gpt2": _byte_level,
        "llama": _sentence_piece,
    }
    if kind is not None and kind not in builders:
        raise ValueError(f"the tokenizer is of the kind {kind!r}; known are {', '.join(builders)}")
    templates = templates_of_metadata(metadata)
    words = {name: value for name, value in metadata.items() if name.startswith("tokenizer.")}
    words = {name: value for name, value in words.items() if not names_template(name)}
    require_known(words, "the file", computed=COMPUTED, allowed={}, harmless=HARMLESS)
    fields = _Fields(metadata)
    library, starts = builders[fields.needed("model")](fields)
    types = fields.needed("token_type", int, of_each=True)
    if wrong := set(types) - {NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE}:
        raise ValueError(f"the field {PLACE}token_type has {min(wrong)}; types of tokens are 1 to 6")
    named = {f"{short}_token": fields.token(name) for short, name in NAMES.items()}
    names = {name: token for name, token in named.items() if token is not None}
    _add_tokens(library, fields, types, names)
    surround(library, fields.added("bos", starts), fields.added("eos", False))
    return Tokenizer(library, ends=_ends(fields, types), templates=templates, names=names)


def _byte_level(fields: _Fields) -> tuple[Library, bool]:
    """The library, without added tokens, and whether a text begins with the start token by default."""
    if fields.flag("add_space_prefix", False):
        raise ValueError(f"{PLACE}add_space_prefix is true, which is not supported for the kind 'gpt2'")
    name = fields.needed("pre")
    if name not in WORDS:
        raise ValueError(f"the pre-tokenizer is {name!r}; known are {', '.join(WORDS)}")
    words = WORDS[name]
    to_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": words.gpt2}
    library = described(
        normalizer=words.normalizer,
        pre_tokenizer={"type": "Sequence", "pretokenizers": [*words.steps, to_bytes]},
        decoder=to_bytes,
    )
    merges = []
    for merge in fields.needed("merges", str):
        first, _, second = merge.partition(" ")
        if not {first, second, first + second} <= fields.ids.keys():
            raise ValueError(f"the merge {merge!r} is not one of two tokens to a third")
        merges.append((first, second))
    library.model = _model(fields, merges, ignore_merges=words.tokens_first)
    return library, words.starts


def _sentence_piece(fields: _Fields) -> tuple[Library, bool]:
    """The same for the kind llama; merges that a file has in addition to scores are not used."""
    if (name := fields.metadata.get(f"{PLACE}pre")) not in (None, "", "default"):
        raise ValueError(f"the pre-tokenizer is {name!r}; of the kind 'llama' only 'default' is known")
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    steps: list[Any] = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}]
    steps += [{"type": "ByteFallback"}, {"type": "Fuse"}]
    normalizer: dict[str, Any] = spaces
    if fields.flag("add_space_prefix", True):
        normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, spaces]}
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    library = described(normalizer=normalizer, decoder={"type": "Sequence", "decoders": steps})
    library.model = _model(fields, _merges(fields), fuse_unk=True, byte_fallback=True)
    return library, True


def _merges(fields: _Fields) -> list[tuple[str, str]]:
    """Pairs of tokens that make a token, the greatest score first; for one token, the longest first part
    first."""
    scores = fields.needed("scores", float, of_each=True)
    types = fields.needed("token_type", int, of_each=True)
    normal = [token for token, index in fields.ids.items() if types[index] == NORMAL]
    known = frozenset(normal)
    normal.sort(key=lambda token: -scores[fields.ids[token]])
    return [
        (token[:cut], token[cut:])
        for token in normal
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in known and token[cut:] in known
    ]


def _model(fields: _Fields, merges: list[tuple[str, str]], **choices: bool) -> BPE:
    with told("the merges are not as the library needs them"):
        return BPE(vocab=dict(fields.ids), merges=merges, unk_token=fields.token("unknown"), **choices)


def _add_tokens(library: Library, fields: _Fields, types: list[int], names: Mapping[str, str]) -> None:
    """Tokens that are found before a text is cut; as in transformers, named tokens are among them.

    Most control tokens of Phi-3 include the spaces after them, although the file does not say so.
    """
    phi3 = fields.metadata.get("general.architecture") == "phi3" and fields.needed("model") == "llama"
    special, others = [], []
    for (token, _), kind in zip(fields.ids.items(), types, strict=True):
        if token and kind in (UNKNOWN, CONTROL):
            takes = phi3 and token not in KEEPS_SPACES
            special.append(AddedToken(token, special=True, normalized=False, rstrip=takes))
        elif token and kind == USER_DEFINED:
            others.append(AddedToken(token, special=False, normalized=False))
    there = {str(token) for token in (*special, *others)}
    special += [AddedToken(text, special=True) for text in names.values() if text and text not in there]
    library.add_special_tokens(special)
    library.add_tokens(others)


def _ends(fields: _Fields, types: list[int]) -> set[int]:
    """Ids that end a text: of tokens that the file names, and of tokens whose name is in `text.ends`, unless
    these are words of the vocabulary."""
    named = {token for name in NAMED_ENDS if (token := fields.token(name)) is not None}
    known = ends_among({token for token, index in fields.ids.items() if types[index] != NORMAL})
    return {fields.ids[token] for token in named | known}
