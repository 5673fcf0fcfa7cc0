"""The tokenizer of a checkpoint: text to ids and back.

The library `tokenizers` makes ids from a text, as the checkpoint's own tokenizer did: with its normaliser,
its pre-tokenizer, its merges and its added tokens. For SentencePiece's own files, SentencePiece makes them
(`text.coder`). Ids become a text through their bytes (`text.token_bytes`), so a text can be written while its
ids come.

A tokenizer is stored as transformers stores it, in tokenizer.json (or SentencePiece's tokenizer.model),
tokenizer_config.json (texts of some tokens, the chat template) and generation_config.json (ids that end a
text). These files are data; no code runs.
"""

import codecs
import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer as Library

from streamgen.text.chat import rendered
from streamgen.text.coder import Coder, LibraryCoder
from streamgen.text.folder_files import GENERATION, SETTINGS
from streamgen.text.templates import DEFAULT, chosen


class Tokenizer:
    """Text to ids and back.

    coder: makes ids from a text; this object takes a library over. ends: ids that end a text. templates:
    Jinja chat templates by name. names: the texts of tokens by their names in templates ("bos_token"). Raises
    ValueError for an unknown decoder (`text.token_bytes`) and for ids outside the vocabulary.
    """

    def __init__(
        self,
        coder: Library | Coder,
        *,
        ends: Iterable[int] = (),
        templates: Mapping[str, str] = MappingProxyType({}),
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._coder: Coder = LibraryCoder(coder) if isinstance(coder, Library) else coder
        self._bytes, self._special = self._coder.table, self._coder.special
        self._size = len(self._bytes.by_id)
        self.ends, self.templates, self.names = frozenset(ends), dict(templates), dict(names)
        for index in self.ends:
            if not 0 <= index < self._size:
                raise ValueError(f"the end token is {index}; ids are 0 to {self._size - 1}")

    @property
    def size(self) -> int:
        """All ids are below this number."""
        return self._size

    def of_model(self, vocabulary: int) -> "Tokenizer":
        """The tokenizer for a model of `vocabulary` ids. Ids without a token write nothing, and a text with
        an added token beyond the ids is refused; Gemma's tokenizer has such a token for images.

        Raises ValueError if other tokens are beyond the ids too: the tokenizer is then of another model.
        """
        tokens = self._coder.tokens
        if vocabulary < tokens:
            raise ValueError(f"the tokenizer has {tokens} tokens, the vocabulary of the model {vocabulary}")
        resized = copy.copy(self)
        resized._size = vocabulary
        return resized

    def id_of(self, token: str) -> int:
        """The id of a token, as written in the vocabulary; ValueError if there is none."""
        index = self._coder.id_of(token)
        if index is None:
            raise ValueError(f"there is no token {token!r}")
        return index

    def encode(self, text: str, *, special: bool = True, whole: bool = True) -> list[int]:
        """The ids of a text.

        special: whether the text of a control token becomes that token; otherwise it is plain text. whole:
        add the tokens that begin and end a text, if the model has such tokens. Raises TypeError unless text
        is a str, and ValueError for a surrogate in it, which UTF-8 cannot hold, and for a token that the
        model or the tokenizer lacks.
        """
        if not isinstance(text, str):
            raise TypeError(f"text is a {type(text).__name__}; a str is needed")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"text[{error.start}] is the surrogate {text[error.start]!r}") from None
        ids = self._coder.encode(text, special=special, whole=whole)
        if ids and (most := max(ids)) >= self._size:
            token = self._coder.token_of(most)
            raise ValueError(
                f"the text has the token {token!r}, {most}; ids of the model are below {self._size}"
            )
        return ids

    def chat(self, messages: Sequence[Mapping[str, str]], *, template: str | None = None) -> list[int]:
        """The ids of a chat, up to the beginning of the model's answer, by a template of the checkpoint.

        messages: each with "role" ("system", "user", "assistant") and "content". Control tokens in a message
        are control tokens, as in any text. template: its name, if the checkpoint has several and the one
        named default is not wanted. Raises ValueError without such a template, and for messages that the
        template refuses.
        """
        text = rendered(chosen(self.templates, template), messages, self.names)
        return self.encode(text, whole=False)

    def decode(self, ids: Iterable[int], *, special: bool = True) -> str:
        """The text of ids. special: include the text of control tokens. Bytes that are not UTF-8 become
        U+FFFD.

        Raises ValueError for an unknown id.
        """
        stream = TextStream(self, special, self._bytes.spaces)
        return "".join(stream.push(index) for index in ids) + stream.finish()

    def stream(self, *, special: bool = False) -> "TextStream":
        """A decoder for ids that come one by one and continue a text; a first space is kept."""
        return TextStream(self, special)

    def bytes_of(self, index: int, *, special: bool = True) -> bytes:
        """The bytes of an id; ValueError for an unknown id."""
        if not 0 <= index < self._size:
            raise ValueError(f"{index} is not an id; they are 0 to {self._size - 1}")
        if index >= len(self._bytes.by_id) or (not special and index in self._special):
            return b""
        return self._bytes.by_id[index]

    def write(self, folder: Path, generation: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Write three files into a folder. `load_tokenizer` can read them; so can transformers, unless one is
        tokenizer.model.

        generation: further fields of generation_config.json.
        """
        settings: dict[str, Any] = {"tokenizer_class": self._coder.kind}
        own = {name: text for name, text in self.names.items() if not name.endswith("_token")}
        settings |= {name: text for name, text in self.names.items() if name not in own}
        if own:
            settings["extra_special_tokens"] = own
        if list(self.templates) == [DEFAULT]:
            settings["chat_template"] = self.templates[DEFAULT]
        elif self.templates:
            templates = self.templates.items()
            settings["chat_template"] = [{"name": name, "template": text} for name, text in templates]
        (folder / self._coder.file).write_bytes(self._coder.written())
        (folder / SETTINGS).write_text(json.dumps(settings) + "\n")
        fields = {"eos_token_id": sorted(self.ends), **generation}
        (folder / GENERATION).write_text(json.dumps(fields) + "\n")


class TextStream:
    """Makes text from ids; a character comes when all of its bytes are there."""

    def __init__(self, tokenizer: Tokenizer, special: bool, spaces: int = 0) -> None:
        self._tokenizer, self._special, self._spaces = tokenizer, special, spaces
        self._most = tokenizer._bytes.most
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, index: int) -> str:
        """The characters that an id completes; ValueError for an unknown id."""
        data = self._tokenizer.bytes_of(int(index), special=self._special)
        if data and self._spaces:
            first = len(data) - len(data.lstrip(b" "))
            lost = min(first, self._spaces, self._most.get(int(index), first))
            data = data[lost:]
            self._spaces = 0 if data else self._spaces - lost
        return self._decoder.decode(data)

    def finish(self) -> str:
        """U+FFFD if the bytes of a character are missing, else nothing. The stream can then begin again."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
