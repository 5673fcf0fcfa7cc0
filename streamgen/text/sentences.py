"""The tokenizer of an encoder of sentences, and the files that hold it in a written folder.

A folder of sentence-transformers has the tokenizer in tokenizer.json, and in modules.json the parts of the
model. sentence_bert_config.json limits the tokens of a text. Texts are not cut silently: a longer text is
refused.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Library

from streamgen.base.errors import CheckpointError
from streamgen.base.files import parsed
from streamgen.text.folder_files import CONFIG, SETTINGS, TOKENIZER, read_object
from streamgen.text.library import read, told

MODULES, LIMITS = "modules.json", "sentence_bert_config.json"
SENTENCES = "sentences.json"  # of a written folder


@dataclass(frozen=True)
class SentenceTokenizer:
    """Texts to ids.

    library: with the tokens that begin and end a text. longest: the most tokens of a text. own: the same of
    the model, before the design limits it. lower: whether texts become lower case first.
    """

    library: Library
    longest: int
    own: int
    lower: bool = False

    def __post_init__(self) -> None:
        self.library.no_truncation()
        self.library.no_padding()

    def ids(self, texts: Iterable[str]) -> list[np.ndarray]:
        """int64 [tokens] of each text. Raises TypeError for a text that is no str, ValueError for a surrogate
        in it and for more than `longest` tokens."""
        return [self._ids(text, number) for number, text in enumerate(texts)]

    def _ids(self, text: str, number: int) -> np.ndarray:
        if not isinstance(text, str):
            raise TypeError(f"text {number} is a {type(text).__name__}; a str is needed")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            surrogate = text[error.start]
            raise ValueError(f"text {number} has the surrogate {surrogate!r} at {error.start}") from None
        ids = self.library.encode(text.lower() if self.lower else text).ids
        if len(ids) > self.longest:
            more = f"; CompileConfig.max_tokens allows up to {self.own}" if self.longest < self.own else ""
            raise ValueError(f"text {number} has {len(ids)} tokens; the most is {self.longest}{more}")
        return np.array(ids, np.int64)

    def write(self, folder: Path) -> None:
        """Write the files that `read_written` reads into an existing folder."""
        fields = {"longest": self.longest, "own": self.own, "lower": self.lower}
        (folder / SENTENCES).write_text(json.dumps(fields) + "\n")
        (folder / TOKENIZER).write_text(f"{self.library.to_str()}\n", encoding="utf-8")

    @classmethod
    def read_written(cls, content: Callable[[str], bytes]) -> "SentenceTokenizer":
        """The tokenizer that `write` wrote. content: returns the content of a file by its name. ValueError if
        a file cannot be read."""
        fields = parsed(content(SENTENCES))
        with told(f"{TOKENIZER} cannot be read"):
            library = Library.from_str(content(TOKENIZER).decode())
        wanted = {"longest": int, "own": int, "lower": bool}
        if not isinstance(fields, dict) or {n: type(value) for n, value in fields.items()} != wanted:
            raise ValueError(f"{SENTENCES} holds other fields than {', '.join(wanted)}")
        return cls(library, fields["longest"], fields["own"], fields["lower"])

    @classmethod
    def of_folder(cls, folder: Path, most: int) -> "SentenceTokenizer":
        """The tokenizer of a checkpoint. most: the most tokens of a text in the design. CheckpointError for a
        missing or damaged file, and for lower case in one of two files."""
        try:
            if not (folder / TOKENIZER).is_file():
                raise ValueError(f"there is no {TOKENIZER}, which AutoTokenizer of transformers writes")
            library = read(folder / TOKENIZER)
            limits, settings = read_object(folder / LIMITS), read_object(folder / SETTINGS)
            _require_case(library, settings.get("do_lower_case"))
            config = read_object(folder / CONFIG)
            given = (limits.get("max_seq_length"), config.get("max_position_embeddings"))
            own = min((n for n in given if type(n) is int and n > 0), default=most)
        except ValueError as error:
            raise CheckpointError(f"{folder}: {error}") from error
        return cls(library, min(most, own), own, lower=bool(limits.get("do_lower_case")))


def _require_case(library: Library, lower: Any) -> None:
    """Raise ValueError if tokenizer_config.json wants another case than tokenizer.json, which counts."""
    normaliser = json.loads(library.normalizer.__getstate__()) if library.normalizer else {}
    known = normaliser.get("lowercase")
    if lower is not None and known is not None and lower != known:
        raise ValueError(f"{SETTINGS} has do_lower_case = {lower}, {TOKENIZER} has lowercase = {known}")


def is_sentence_encoder(path: Any) -> bool:
    """Whether a path is the folder of an encoder of sentences, and not of a language model."""
    if not isinstance(path, str | Path) or not (Path(path) / MODULES).is_file():
        return False
    try:
        named = read_object(Path(path) / CONFIG).get("architectures")
    except ValueError:  # the reader of the model reports this
        return True
    return not any(str(name).endswith("ForCausalLM") for name in (named if isinstance(named, list) else ()))


def embedded(
    tokenizer: SentenceTokenizer, texts: str | Sequence[str], compute: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """float32 [texts, features] of texts, each computed from its ids [1, tokens]. Raises the errors of
    `SentenceTokenizer.ids`, and ValueError without texts."""
    rows = [compute(ids[None]) for ids in tokenizer.ids([texts] if isinstance(texts, str) else texts)]
    if not rows:
        raise ValueError("no text is given")
    return np.concatenate(rows)
