"""The tokenizer of a checkpoint: text to ids and back, by byte-level BPE.

A vocabulary has tokens, their types, merges and a pre-tokenizer, which cuts a text into words; the library
`tokenizers` cuts and merges. Byte-level is that of GPT-2 (Radford et al., Language models are unsupervised
multitask learners, 2019: the bytes of UTF-8, each as a character). The pre-tokenizer is one of these, or the
library's own description of one in JSON, which ends in bytes:

    gpt-2     the words of GPT-2
    smollm    the same, every digit a word

Bytes that the vocabulary lacks become its unknown token. Control tokens (<|im_end|>) are found in a text
before it is cut, the longest first.
"""

import codecs
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Library
from tokenizers.models import BPE

__all__ = ["CONTROL", "NORMAL", "USER_DEFINED", "TextStream", "Tokenizer", "Vocabulary"]

_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_DIGITS = {"type": "Digits", "individual_digits": True}
PRE_TOKENIZERS: dict[str, Any] = {
    "gpt-2": _BYTES,
    "smollm": {"type": "Sequence", "pretokenizers": [_DIGITS, _BYTES]},
}
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # types of tokens, as GGUF numbers them


def _alphabet() -> dict[str, int]:
    """GPT-2's characters for the bytes: printable ones for themselves, the others from 256 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


ALPHABET = _alphabet()


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What a file says: tokens and types by id, merges "a b" by rank, the pre-tokenizer by name or in JSON.

    start, end, unknown: ids; start only if a text is to begin with it. ignore_merges: a word that is a token
    becomes that, whatever the merges.
    """

    tokens: Sequence[str]
    types: Sequence[int]
    merges: Sequence[str]
    pre_tokenizer: str
    start: int | None = None
    end: int | None = None
    unknown: int | None = None
    ignore_merges: bool = False

    def __post_init__(self) -> None:
        if not self.pre_tokenizer.startswith("{") and self.pre_tokenizer not in PRE_TOKENIZERS:
            known = ", ".join(PRE_TOKENIZERS)
            raise ValueError(f"the pre-tokenizer is {self.pre_tokenizer!r}; known are {known}")
        if not self.tokens or len(self.types) != len(self.tokens):
            raise ValueError(f"there are {len(self.tokens)} tokens and {len(self.types)} types of tokens")
        if len(set(self.tokens)) != len(self.tokens):
            raise ValueError("two ids have the same token")
        for name in ("start", "end", "unknown"):
            token = getattr(self, name)
            if token is not None and not 0 <= token < len(self.tokens):
                raise ValueError(f"the {name} token is {token}; ids are 0 to {len(self.tokens) - 1}")


class Tokenizer:
    """Text to ids and back. ValueError where merges make tokens that are not in the vocabulary, and for a
    pre-tokenizer that does not end in bytes or is unknown to the library."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        tokens, types = vocabulary.tokens, vocabulary.types
        ids = {token: index for index, token in enumerate(tokens)}
        merges = []
        for merge in vocabulary.merges:
            first, _, second = merge.partition(" ")
            if not {first, second, first + second} <= ids.keys():
                raise ValueError(f"the merge {merge!r} is not one of two tokens to a third")
            merges.append((first, second))
        unknown = None if vocabulary.unknown is None else tokens[vocabulary.unknown]
        model = BPE(vocab=ids, merges=merges, unk_token=unknown, ignore_merges=vocabulary.ignore_merges)
        self._library = Library(model)
        self._library.pre_tokenizer = _pre_tokenizer(vocabulary.pre_tokenizer)
        whole = {i for i, kind in enumerate(types) if kind in (CONTROL, USER_DEFINED)}
        self._control = frozenset(i for i in whole if types[i] == CONTROL)
        self._bytes = [
            token.encode() if i in whole or not ALPHABET.keys() >= set(token) else _bytes_of(token)
            for i, token in enumerate(tokens)
        ]
        self._ids = ids
        self._finders = {
            special: _finder(tokens[i] for i in whole if special or i not in self._control)
            for special in (False, True)
        }

    @property
    def size(self) -> int:
        """Ids are below it."""
        return len(self.vocabulary.tokens)

    @property
    def end(self) -> int | None:
        """The id that ends a text."""
        return self.vocabulary.end

    def id_of(self, token: str) -> int:
        """The id of a token as the vocabulary writes it; ValueError when there is none."""
        if token not in self._ids:
            raise ValueError(f"there is no token {token!r}")
        return self._ids[token]

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of a text, the start token before them if the vocabulary asks for it.

        special: whether the text of a control token is that token; if not it is a text like any other.
        TypeError unless text is a str, ValueError for a surrogate in it, which UTF-8 cannot hold.
        """
        if not isinstance(text, str):
            raise TypeError(f"text is a {type(text).__name__}; a str is needed")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"text[{error.start}] is the surrogate {text[error.start]!r}") from None
        start = self.vocabulary.start
        found = [] if start is None else [start]
        finder = self._finders[special]
        for index, part in enumerate(finder.split(text) if finder else [text]):
            if index % 2:
                found.append(self._ids[part])
            elif part:
                found += self._library.encode(part, add_special_tokens=False).ids
        return found

    def decode(self, ids: Iterable[int], *, special: bool = True) -> str:
        """The text of ids; special: with that of control tokens. Bytes that are no UTF-8 become U+FFFD.

        ValueError for an unknown id.
        """
        stream = self.stream(special=special)
        return "".join(stream.push(index) for index in ids) + stream.finish()

    def stream(self, *, special: bool = False) -> "TextStream":
        """Text out of ids that come one by one."""
        return TextStream(self, special)

    def bytes_of(self, index: int, *, special: bool = True) -> bytes:
        """What an id stands for; ValueError for an unknown one."""
        if not 0 <= index < self.size:
            raise ValueError(f"{index} is not an id; they are 0 to {self.size - 1}")
        return b"" if index in self._control and not special else self._bytes[index]


class TextStream:
    """Text out of ids, a character only when all of its bytes are there."""

    def __init__(self, tokenizer: Tokenizer, special: bool) -> None:
        self._tokenizer, self._special = tokenizer, special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, index: int) -> str:
        """The characters that an id completes; ValueError for an unknown one."""
        return self._decoder.decode(self._tokenizer.bytes_of(int(index), special=self._special))

    def finish(self) -> str:
        """U+FFFD if the bytes of a character are missing, else nothing; the stream can begin again."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def _pre_tokenizer(text: str) -> Any:
    """The library's object for a name or a description; ValueError when it does not give bytes."""
    described = PRE_TOKENIZERS.get(text) or json.loads(text)
    model = {"type": "BPE", "vocab": {}, "merges": []}
    whole = {"version": "1.0", "pre_tokenizer": described, "added_tokens": [], "model": model}
    try:
        found = Library.from_str(json.dumps(whole))
    except Exception as error:  # of no finer class
        raise ValueError(f"the pre-tokenizer cannot be read: {error}") from error
    steps = described["pretokenizers"] if described["type"] == "Sequence" else [described]
    last = steps[-1]["type"] if steps else "nothing"
    if last != "ByteLevel" or any(step.get("add_prefix_space") for step in steps):
        kind = f"ends in {last}" if last != "ByteLevel" else "puts a space before a text"
        raise ValueError(f"the pre-tokenizer {kind}; it must end in ByteLevel and add nothing")
    return found.pre_tokenizer


def _bytes_of(token: str) -> bytes:
    return bytes(ALPHABET[character] for character in token)


def _finder(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """What splits a text at tokens, the longest first, and keeps them."""
    ordered = sorted(tokens, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, ordered))})") if ordered else None
