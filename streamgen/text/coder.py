"""What a tokenizer is made of: a coder, which makes ids from texts and knows the bytes of each id.

There are two: the library `tokenizers` (here), and SentencePiece for its own files (`text.sentence_piece`).
"""

from typing import Protocol

from tokenizers import Tokenizer as Library
from tokenizers.models import WordLevel

from streamgen.text.folder_files import TOKENIZER
from streamgen.text.library import encoded, told
from streamgen.text.token_bytes import TokenBytes, token_bytes


class Coder(Protocol):
    """Texts to ids.

    table: the bytes of each id. special: ids of control tokens. tokens: their number, without added tokens.
    file: the name of the file that holds it. kind: its class in tokenizer_config.json.
    """

    table: TokenBytes
    special: frozenset[int]
    tokens: int
    file: str
    kind: str

    def id_of(self, token: str) -> int | None:
        """The id of a token; None if there is none."""

    def token_of(self, index: int) -> str | None:
        """The token of an id; None if there is none."""

    def encode(self, text: str, *, special: bool, whole: bool) -> list[int]:
        """The ids of a text without surrogates; `Tokenizer.encode` says what the choices mean."""

    def written(self) -> bytes:
        """The content of `file`."""


class LibraryCoder:
    """A coder of the library `tokenizers`; this object takes the library over. ValueError for an unknown
    decoder."""

    file, kind = TOKENIZER, "PreTrainedTokenizerFast"

    def __init__(self, library: Library) -> None:
        library.no_truncation()
        library.no_padding()
        with told("the tokenizer does not work"):
            library.encode("" if isinstance(library.model, WordLevel) else "a text")
        self._library, self.table = library, token_bytes(library)
        added = library.get_added_tokens_decoder()
        self.special = frozenset(index for index, token in added.items() if token.special)
        self.tokens: int = library.get_vocab_size(with_added_tokens=False)

    def id_of(self, token: str) -> int | None:
        index: int | None = self._library.token_to_id(token)
        return index

    def token_of(self, index: int) -> str | None:
        token: str | None = self._library.id_to_token(index)
        return token

    def encode(self, text: str, *, special: bool, whole: bool) -> list[int]:
        self._library.encode_special_tokens = not special
        return encoded(self._library, text, whole=whole)

    def written(self) -> bytes:
        described: str = self._library.to_str()
        return f"{described}\n".encode()
