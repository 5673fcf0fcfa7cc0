"""How byte-level tokenizers cut a text into words before they merge, by the names of these rules in GGUF.

A GGUF file has only the name of a rule. The rules are those of the models' tokenizer.json: a normalisation,
the regular expression of a word, and whether a text begins with the start token by default (source of names
and defaults: llama.cpp).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SPACE = "\u2581"  # a space in the tokens of SentencePiece
# Types of the pieces of SentencePiece, by which GGUF numbers all tokens.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"  # a word takes a sign that stands before it
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


@dataclass(frozen=True, kw_only=True)
class Words:
    """steps: of the pre-tokenizer, in the library's JSON, before the bytes. gpt2: whether GPT-2's own words
    are cut after these steps. tokens_first: a word that is a token becomes that token, without merges.
    starts: a text begins with the start token, unless the file says otherwise."""

    steps: Sequence[Mapping[str, Any]] = ()
    gpt2: bool = False
    normalizer: Mapping[str, str] | None = None
    tokens_first: bool = False
    starts: bool = False


def _cut(letters: str, digits: str, *, marks: str = "", ends: str = r"[\r\n]*") -> list[dict[str, Any]]:
    """Words that a regular expression matches: letters, digits, signs followed by `ends`, line
    ends, spaces."""
    signs = r" ?[^\s\p{L}" + marks + r"\p{N}]+" + ends
    pattern = "|".join([letters, digits, signs, r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
    return [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}]


def _any_case(letters: str) -> str:
    return f"{_CONTRACTION}|{_BEFORE}{letters}+"


def _by_case(after: str = "") -> str:
    """Letters; a capital begins a new word."""
    return f"{_BEFORE}{_UPPER}*{_LOWER}+{after}|{_BEFORE}{_UPPER}+{_LOWER}*{after}"


_SLASH, _NFC = r"[\r\n/]*", {"type": "NFC"}
_LLAMA_3 = _cut(_any_case(r"\p{L}"), r"\p{N}{1,3}")
_STARTED = Words(steps=_LLAMA_3, tokens_first=True, starts=True)
_DIGITS = Words(steps=[{"type": "Digits", "individual_digits": True}], gpt2=True)
_MARKED = _cut(_any_case(r"[\p{L}\p{M}]"), r"\p{N}", marks=r"\p{M}")

WORDS = {
    "gpt-2": Words(gpt2=True),
    "phi-2": Words(gpt2=True),
    "smollm": _DIGITS,
    "refact": _DIGITS,
    "starcoder": _DIGITS,
    "llama-bpe": _STARTED,
    "llama-v3": _STARTED,
    "llama3": _STARTED,
    "smaug-bpe": Words(steps=_LLAMA_3, tokens_first=True),  # SmolLM3's: as Llama 3's, without a start
    "qwen2": Words(steps=_cut(_any_case(r"\p{L}"), r"\p{N}"), normalizer=_NFC),  # Qwen 3's, too
    "qwen35": Words(steps=_MARKED, normalizer=_NFC),
    "tekken": Words(steps=_cut(_by_case(), r"\p{N}", ends=_SLASH), tokens_first=True, starts=True),
    "gpt-4o": Words(steps=_cut(_by_case(f"{_CONTRACTION}?"), r"\p{N}{1,3}", ends=_SLASH)),
}
