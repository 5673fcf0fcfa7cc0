"""The UTF-8 bytes of each id of a tokenizer, read from its decoder.

The library decodes whole texts, and its own stream fails on bytes that are not UTF-8; bytes serve both uses.
Two kinds of decoders are known. Their steps act on a token as follows:

    ByteLevel      its characters are bytes in the alphabet of GPT-2; an added token is a text as it stands
    Replace        a text in it becomes another, "▁" a space
    ByteFallback   "<0x0A>" is the byte
    Fuse           nothing
    Strip          only the first spaces of a text: they are left out
    Metaspace      "▁" is a space; the first one of a text is left out, if one is put before a text
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer as Library

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _alphabet() -> dict[str, int]:
    """GPT-2's characters for the bytes: printable bytes are themselves, the others are characters from 256
    on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


ALPHABET = _alphabet()


@dataclass(frozen=True)
class TokenBytes:
    """by_id: bytes of each id; empty for an id without a token. spaces: the number of spaces that a text
    loses at its start. most: by id, the number of these that it loses at most."""

    by_id: tuple[bytes, ...]
    spaces: int = 0
    most: Mapping[int, int] = field(default_factory=dict)


def token_bytes(library: Library) -> TokenBytes:
    """The bytes of a tokenizer. ValueError for an unknown decoder, and if two tokens have the same id."""
    ids = library.get_vocab()
    tokens = {index: token for token, index in ids.items()}
    if not tokens or len(tokens) != len(ids):
        raise ValueError("two tokens have the same id" if tokens else "there are no tokens")
    steps = _steps(library)
    added = library.get_added_tokens_decoder()
    tokens |= {
        index: library.id_to_token(index) or "" for index in added
    }  # in the form that the normaliser makes
    size = max(tokens) + 1
    if [step["type"] for step in steps] == ["ByteLevel"]:
        by_id = {i: t.encode() if i in added else _bytes_in_characters(t) for i, t in tokens.items()}
        return TokenBytes(tuple(by_id.get(i, b"") for i in range(size)))
    replaced, spaces = _replacements(steps)
    fallback = any(step["type"] == "ByteFallback" for step in steps)
    by_id = {index: _bytes_in_names(token, replaced, fallback) for index, token in tokens.items()}
    return TokenBytes(tuple(by_id.get(i, b"") for i in range(size)), spaces)


def _steps(library: Library) -> list[Any]:
    if library.decoder is None:
        raise ValueError("there is no decoder, so tokens cannot become a text")
    described = json.loads(library.decoder.__getstate__())
    steps = described["decoders"] if described["type"] == "Sequence" else [described]
    for step in steps:
        known = step["type"] in ("ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace")
        wrong = (step["type"] == "Replace" and "String" not in step["pattern"]) or (
            step["type"] == "Strip" and (step["content"] != " " or step["stop"])
        )
        if not known or wrong or (step["type"] == "ByteLevel" and len(steps) > 1):
            raise ValueError(
                f"the decoder has {json.dumps(step, ensure_ascii=False)}; known are ByteLevel alone, and "
                "Replace of a text, ByteFallback, Fuse, Strip of first spaces, Metaspace"
            )
    return steps


def _replacements(steps: list[Any]) -> tuple[Mapping[str, str], int]:
    """Texts in tokens with their replacements, and the number of spaces that a text loses at its start."""
    replaced, spaces = {}, 0
    for step in steps:
        if step["type"] == "Replace":
            replaced[step["pattern"]["String"]] = step["content"]
        elif step["type"] == "Metaspace":
            replaced[step["replacement"]] = " "
            spaces += step["prepend_scheme"] != "never"
        elif step["type"] == "Strip":
            spaces += step["start"]
    return replaced, spaces


def _bytes_in_characters(token: str) -> bytes:
    return bytes(ALPHABET[c] for c in token) if ALPHABET.keys() >= set(token) else token.encode()


def _bytes_in_names(token: str, replaced: Mapping[str, str], fallback: bool) -> bytes:
    if fallback and (byte := _BYTE.fullmatch(token)):
        return bytes([int(byte[1], 16)])
    for text, content in replaced.items():
        token = token.replace(text, content)
    return token.encode()
