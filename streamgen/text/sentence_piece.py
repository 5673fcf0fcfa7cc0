"""Tokenizers in SentencePiece's own files: tokenizer.model, spiece.model.

SentencePiece itself makes the ids (Kudo and Richardson, SentencePiece, 2018), so every kind of model and
every rule of normalisation is its own. The library `tokenizers` gives other ids for some texts: its scores of
a Unigram are sums in another precision, the names of control tokens and of bytes are words to it, and it
drops an accent behind a letter that is normalised.

A file says which tokens begin and end a text, but not whether a text has them. SentencePiece adds none unless
it is told to, and so does this reader: a text has no begin token. The end token ends a generated text, and so
do control and user-defined tokens whose name is in `text.ends`. The texts of control tokens and of the
unknown token become these tokens, as in all tokenizers here; each part between them is a text of its own.

What changes a text but is not known here is refused: rules for decoded texts, and fields that the installed
SentencePiece does not know. SentencePiece is imported when a file is read.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streamgen.text.ends import ends_among
from streamgen.text.folder_files import CONFIG, PIECES, SETTINGS, TOKENIZER, read_object
from streamgen.text.generation import generation_of
from streamgen.text.known import require_known, shown
from streamgen.text.templates import templates_of_folder
from streamgen.text.token_bytes import TokenBytes
from streamgen.text.tokenizer import Tokenizer
from streamgen.text.tokenizer_settings import ADDED, EXTRA, MAP, NAMES, names_token
from streamgen.text.words import BYTE, CONTROL, SPACE, UNKNOWN, USER_DEFINED

NAMED = ("bos", "eos", "unk", "pad")
ALL = 1 << 30  # more spaces than a text begins with
KIND = "SentencePieceProcessor"
DAMAGED = "the file is damaged, or not of SentencePiece; files of tiktoken have the same name"


class PieceCoder:
    """A coder of SentencePiece. content: of its file. Raises ValueError for a file that is damaged or empty,
    and for what is not known."""

    file, kind = PIECES, KIND

    def __init__(self, content: bytes) -> None:
        self._content, model = content, _model(content)
        self._pieces = _processor(content)
        self.tokens = len(model.pieces)
        self.named = {name: index for name in NAMED if (index := self._named(name, model)) >= 0}
        types = {piece.piece: piece.type for piece in model.pieces}
        self.special = frozenset(i for i, piece in enumerate(model.pieces) if piece.type == CONTROL)
        self.table = _bytes(model)
        controls = [piece for piece, kind in types.items() if kind in (CONTROL, UNKNOWN)]
        longest_first = sorted(controls, key=len, reverse=True)
        self._controls = re.compile(f"({'|'.join(map(re.escape, longest_first))})")
        self.ends = ends_among({piece for piece, kind in types.items() if kind in (CONTROL, USER_DEFINED)})

    def id_of(self, token: str) -> int | None:
        index: int = self._pieces.piece_to_id(token)  # of the unknown token, if there is none
        return index if self.token_of(index) == token else None

    def token_of(self, index: int) -> str | None:
        token: str | None = self._pieces.id_to_piece(index) if 0 <= index < self.tokens else None
        return token

    def encode(self, text: str, *, special: bool, whole: bool) -> list[int]:
        """The ids; nothing is added for `whole`."""
        ids: list[int] = []
        for place, part in enumerate(self._controls.split(text) if special else [text]):
            ids += [self._pieces.piece_to_id(part)] if place % 2 else self._pieces.encode(part)
        return ids

    def written(self) -> bytes:
        return self._content

    def _named(self, name: str, model: Any) -> int:
        """The id of a named token, -1 if there is none. SentencePiece finds it by its text."""
        field, index = f"{name}_id", int(getattr(self._pieces, f"{name}_id")())
        stated = getattr(model.trainer_spec, field)
        if model.trainer_spec.HasField(field) and stated not in (-1, index):
            raise ValueError(
                f"trainer_spec.{field} is {stated}, but the piece that is called "
                f"{getattr(model.trainer_spec, f'{name}_piece')!r} has the id {index}; both must be the same"
            )
        return index


def pieces_of(content: bytes) -> Tokenizer:
    """The tokenizer of a file of SentencePiece. ValueError for a file that cannot be read exactly."""
    return _tokenizer(PieceCoder(content))


def pieces_of_folder(folder: Path) -> Tokenizer:
    """The tokenizer of a folder with tokenizer.model and without tokenizer.json, as `Tokenizer.write` leaves
    it.

    Raises ValueError for a folder of transformers: what its classes add to the tokens is in tokenizer.json.
    """
    settings = read_object(folder / SETTINGS)
    own = settings.get("tokenizer_class") == KIND
    others = (MAP, ADDED) if own else (SETTINGS, MAP, ADDED, CONFIG)
    if other := next((name for name in others if (folder / name).is_file()), None):
        raise ValueError(
            f"there is {PIECES} with {other} beside it, but only {TOKENIZER} can be read then; transformers "
            "writes it: AutoTokenizer.from_pretrained(folder).save_pretrained(folder). The file "
            f"{folder / PIECES} by itself is read as SentencePiece reads it"
        )
    own_names = {name: text for name, text in settings.items() if name in NAMES or names_token(name, text)}
    computed = {*own_names, EXTRA, "chat_template", "tokenizer_class"}
    require_known(settings, SETTINGS, computed=computed, allowed={}, harmless={})
    extra = settings.get(EXTRA) or {}
    if not isinstance(extra, Mapping):
        raise ValueError(f"{EXTRA} of {SETTINGS} is {shown(extra)}; tokens by their names are needed")
    names = own_names | dict(extra)
    if wrong := next((name for name, text in names.items() if not isinstance(text, str)), None):
        raise ValueError(f"{wrong} of {SETTINGS} is {shown(names[wrong])}; the text of a token is needed")
    templates = templates_of_folder(folder, settings.get("chat_template"))
    coder = PieceCoder((folder / PIECES).read_bytes())
    return _tokenizer(coder, names=names, templates=templates, ends=generation_of(folder).ends)


def _tokenizer(
    coder: PieceCoder,
    *,
    names: Mapping[str, str] | None = None,
    templates: Mapping[str, str] | None = None,
    ends: frozenset[int] = frozenset(),
) -> Tokenizer:
    tokens = {f"{name}_token": coder.token_of(index) or "" for name, index in coder.named.items()}
    ends |= {index for token in coder.ends if (index := coder.id_of(token)) is not None}
    if "eos" in coder.named:
        ends |= {coder.named["eos"]}
    return Tokenizer(coder, ends=ends, templates=templates or {}, names=tokens | dict(names or {}))


def _model(content: bytes) -> Any:
    """The file's ModelProto."""
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

    model = ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise ValueError(DAMAGED) from error
    if not model.pieces:
        raise ValueError(DAMAGED if content else "the file is empty")
    if model.denormalizer_spec.precompiled_charsmap:
        raise ValueError(
            "denormalizer_spec has rules that change decoded texts, which are not applied here; allowed: a "
            "model that is trained without denormalization_rule_tsv"
        )
    numbers = sorted(field.field_number for field in UnknownFieldSet(model))
    size = model.ByteSize()
    model.DiscardUnknownFields()
    if size != model.ByteSize():
        places = f"field {numbers[0]}" if numbers else "a field in one of its parts"
        raise ValueError(
            f"the file has {places} that the installed SentencePiece does not know; a newer one may: "
            "pip install --upgrade sentencepiece"
        )
    return model


def _processor(content: bytes) -> Any:
    from sentencepiece import SentencePieceProcessor

    try:
        return SentencePieceProcessor(model_proto=content)
    except (OSError, RuntimeError) as error:
        raise ValueError(f"SentencePiece cannot read the file: {error}") from error


def _bytes(model: Any) -> TokenBytes:
    """The bytes of each piece, as SentencePiece decodes it; of a control token, its text.

    A text loses its first space if one is put before a text. If spaces are removed, it loses one of each
    piece that it begins with, up to the first that has more than this space.
    """
    rules = model.normalizer_spec
    spaces = ALL if rules.remove_extra_whitespaces else int(rules.add_dummy_prefix)
    most = {index: int(piece.type not in (UNKNOWN, BYTE)) for index, piece in enumerate(model.pieces)}
    surface = model.trainer_spec.unk_surface.encode()
    by_id = tuple(
        surface
        if piece.type == UNKNOWN
        else bytes([int(piece.piece[3:5], 16)])
        if piece.type == BYTE
        else piece.piece.replace(SPACE, " ").encode()
        for piece in model.pieces
    )
    return TokenBytes(by_id, spaces, most)
