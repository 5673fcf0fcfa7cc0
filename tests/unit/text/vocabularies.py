"""Small tokenizers of all families, trained on the project's own texts: the oracle of each, and its files.

Byte-level ones are trained by the library `tokenizers`, those of Llama 2 and Gemma by SentencePiece. What
belongs to a family besides (normaliser, pre-tokenizer, decoder) is transformers' where it has a class for it.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
from gguf import GGUFWriter
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library

from streamgen.text.token_bytes import ALPHABET

__all__ = ["CHARACTERS", "FAMILIES", "ROOT", "SMALL", "SPACE", "TEXTS", "Family", "family", "write_gguf"]

ROOT = Path(__file__).parents[3]
SPACE = "\u2581"
TEXTS = [
    "Hello, world! The quick brown fox doesn't jump; I'LL we've THEY'D.",
    "a  b\n\n\tc   \r\n \n\n\n  \t\t\n",
    "1234567890 3.14159 ½ ² ٣ x12 345y",
    "naïve café, Straße, Ελληνικά, русский, עברית",
    "你好，世界。日本語テキスト 한국어",
    "👩‍👩‍👧‍👦🏳️‍🌈 \u200b\ufeff\u2028",
    "e\u0301 A\u030a ﬁ Å",
    "\x00\x01\x7f\x80\xa0\xad",
    "def f(x):\n        return {x: [1, 2]}  # no\n\n\n    if __name__ == '__main__':\n\tpass\n",
    "   lead",
    "trail   ",
    "x" + " " * 70 + "y",
    "\n" * 40,
    "<table><b> hi </b></table> <0x0A>",
    "camelCaseWords ALLCAPSThen http://a.b/c?d=e&f",
    " ",
    "",
]
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHARACTERS = list(ALPHABET)
SMALL: dict[str, Any] = {
    "model": "gpt2",
    "pre": "smollm",
    "tokens": [*CHARACTERS, "he", "Ġhe", "hey", "<|end|>", "<|end|>2", "<user>", "café"],
    "token_type": [1] * 259 + [3, 3, 4, 1],
    "merges": ["h e", "Ġ he", "he y"],
}
ONE_DIGIT = pre_tokenizers.Digits(individual_digits=True)


@dataclass(frozen=True, kw_only=True)
class Family:
    """library: the oracle. settings: of tokenizer_config.json. model, pre, architecture, fields: of GGUF; pre
    is None for a family without such files. sentence_piece: what it comes from."""

    library: Library
    model: str = "gpt2"
    pre: str | None
    architecture: str = "llama"
    fields: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    sentence_piece: Any = None

    def folder(self, place: Path) -> Path:
        """What transformers would write."""
        place.mkdir()
        self.library.save(str(place / "tokenizer.json"))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", **self.settings}
        (place / "tokenizer_config.json").write_text(json.dumps(settings))
        return place

    def gguf(self, path: Path, **changes: Any) -> Path:
        """What llama.cpp would write."""
        written = json.loads(self.library.to_str())
        ids = self.library.get_vocab()
        tokens = sorted(ids, key=ids.__getitem__)
        special = {token["content"]: 3 if token["special"] else 4 for token in written["added_tokens"]}
        fields = {
            "model": self.model,
            "pre": self.pre,
            "tokens": tokens,
            "token_type": [special.get(token, 1) for token in tokens],
            **{
                f"{name}_id": ids[self.settings[name]]
                for name in ("bos_token", "eos_token")
                if name in self.settings
            },
        }
        if self.model == "gpt2":
            fields["merges"] = [" ".join(merge) for merge in written["model"]["merges"]]
        return write_gguf(path, {**fields, **self.fields, **changes}, self.architecture)


def write_gguf(path: Path, fields: Mapping[str, Any], architecture: str = "llama") -> Path:
    """A GGUF file of fields tokenizer.ggml.*, without tensors; a field that is None is left out."""
    writer = GGUFWriter(path, architecture)
    for name, value in fields.items():
        key = f"tokenizer.{name}" if name.startswith("chat_template") else f"tokenizer.ggml.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@cache
def prose() -> list[str]:
    """Lines to train on: English, Markdown, Python, and what no file here holds."""
    files = [
        ROOT / "README.md",
        *sorted((ROOT / "docs" / "guide").glob("*.md")),
        *sorted((ROOT / "streamgen" / "text").glob("*.py")),
    ]
    return [line for file in files for line in file.read_text().splitlines()] + TEXTS[2:6] * 3


def _byte_level(cut: Any, *, normalizer: Any = None, tokens_first: bool = False) -> Library:
    """A trained byte-level BPE, as tokenizer.json of these families has it."""
    found = Library(models.BPE())
    found.normalizer, found.pre_tokenizer = normalizer, cut
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    found.train_from_iterator(prose(), trainer)
    trained = json.loads(found.to_str())["model"]
    vocab = dict(trained["vocab"]) | {"Ġquick": len(trained["vocab"])}  # which no merge makes
    merges = [tuple(merge) for merge in trained["merges"]]
    found.model = models.BPE(vocab=vocab, merges=merges, ignore_merges=tokens_first)
    found.decoder = decoders.ByteLevel()
    return found


def _with(library: Library, *special: str, others: tuple[str, ...] = ()) -> Library:
    library.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    library.add_tokens([AddedToken(token, normalized=False) for token in others])
    return library


def _starting(library: Library, token: str) -> Library:
    """Every text begins with a token."""
    special = [(token, library.token_to_id(token))]
    template = processors.TemplateProcessing(single=f"{token} $A", special_tokens=special)
    library.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return library


def _split(pattern: str) -> Any:
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), to_bytes])


def _gpt2() -> Family:
    library = _with(_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)), "<|endoftext|>")
    return Family(library=library, pre="gpt-2", settings={"eos_token": "<|endoftext|>"})


def _opt() -> Family:
    """GPT-2's with a start token; llama.cpp has no such models."""
    library = _with(_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)), "<pad>", "</s>")
    settings = {"bos_token": "</s>", "eos_token": "</s>"}
    return Family(library=_starting(library, "</s>"), pre=None, settings=settings)


def _llama_3() -> Family:
    library = _byte_level(_split(LLAMA_3), tokens_first=True)
    _with(library, "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>")
    settings = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    return Family(library=_starting(library, "<|begin_of_text|>"), pre="llama-bpe", settings=settings)


def _smollm_3() -> Family:
    library = _with(_byte_level(_split(LLAMA_3), tokens_first=True), "<|end_of_text|>", "<|im_end|>")
    _with(library, others=("<think>", "</think>"))
    return Family(library=library, pre="smaug-bpe", settings={"eos_token": "<|im_end|>"})


def _smollm_2() -> Family:
    cut = pre_tokenizers.Sequence([ONE_DIGIT, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    library = _with(_byte_level(cut), "<|endoftext|>", "<|im_start|>", "<|im_end|>")
    return Family(library=library, pre="smollm", settings={"eos_token": "<|im_end|>"})


def _qwen() -> Family:
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    library = _byte_level(_split(PRETOKENIZE_REGEX), normalizer=normalizers.NFC())
    _with(library, "<|endoftext|>", "<|im_start|>", "<|im_end|>", others=("<tool_call>", "</tool_call>"))
    return Family(library=library, pre="qwen2", settings={"eos_token": "<|im_end|>"})


def _pieces(*, dummy: bool, names: Mapping[str, str], symbols: tuple[str, ...] = ()) -> Any:
    """A SentencePiece model. names: the special tokens, by id from 0 on."""
    written = io.BytesIO()
    special = {f"{name}_id": index for index, name in enumerate(names)}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(prose()),
        model_writer=written,
        model_type="bpe",
        vocab_size=900,
        byte_fallback=True,
        character_coverage=0.998,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        add_dummy_prefix=dummy,
        user_defined_symbols=[symbol.replace(" ", SPACE) for symbol in symbols],
        minloglevel=2,
        **{f"{name}_piece": piece for name, piece in names.items()},
        **{"pad_id": -1, **special},
    )
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


def _merges(made: Any) -> dict[str, Any]:
    """Tokens by id, and merges of them as transformers derives them from scores."""
    from transformers.tokenization_utils_base import generate_merges

    tokens = [made.id_to_piece(i) for i in range(made.get_piece_size())]
    vocab = {token: index for index, token in enumerate(tokens)}
    scores = {token: made.get_score(index) for token, index in vocab.items()}
    return {"vocab": vocab, "merges": generate_merges(vocab, scores)}


def _fields(made: Any, symbols: tuple[str, ...] = (), special: tuple[str, ...] = ()) -> dict[str, Any]:
    """What llama.cpp writes of a SentencePiece model: user-defined tokens have plain spaces there."""
    size = made.get_piece_size()
    tokens = [made.id_to_piece(i) for i in range(size)]
    shown = [plain if (plain := token.replace(SPACE, " ")) in symbols else token for token in tokens]
    kinds = [
        (made.is_unknown, 2),
        (made.is_control, 3),
        (made.is_byte, 6),
        (lambda i: shown[i] in symbols, 4),
    ]
    types = [next((kind for test, kind in kinds if test(i)), 1) for i in range(size)]
    names = {"bos": made.bos_id(), "eos": made.eos_id(), "unknown": made.unk_id()}
    return {
        "tokens": [*shown, *special],
        "scores": [*(made.get_score(i) for i in range(size)), *(-1000.0 for _ in special)],
        "token_type": [*types, *(3 for _ in special)],
        **{f"{name}_token_id": index for name, index in names.items()},
    }


LLAMA_NAMES = {"unk": "<unk>", "bos": "<s>", "eos": "</s>"}
LLAMA_SETTINGS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


@cache
def _llama_pieces() -> Any:
    return _pieces(dummy=True, names=LLAMA_NAMES)


def _llama_library() -> Library:
    """As tokenizer.json of Llama 2 has it."""
    found = Library(
        models.BPE(**_merges(_llama_pieces()), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    to_space = normalizers.Replace(" ", SPACE)
    found.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), to_space])
    steps = [
        decoders.Replace(SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    found.decoder = decoders.Sequence(steps)
    return _starting(_with(found, "<unk>", "<s>", "</s>"), "<s>")


def _llama_2() -> Family:
    return Family(
        library=_llama_library(),
        model="llama",
        pre="default",
        settings=LLAMA_SETTINGS,
        fields=_fields(_llama_pieces()),
        sentence_piece=_llama_pieces(),
    )


def _plain_llama() -> Family:
    """Llama 2's of the hub: tokenizer.json does not name ByteLevel anywhere."""
    library = _llama_library()
    special = [("<s>", library.token_to_id("<s>"))]
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=special)
    return Family(library=library, model="llama", pre=None, settings=LLAMA_SETTINGS)


def _phi_3() -> Family:
    """Llama 2's, with control tokens that take the spaces behind them."""
    library, special = _llama_library(), ("<|end|>", "<|user|>", "<|assistant|>")
    library.add_special_tokens([AddedToken("</s>", special=True, normalized=False, rstrip=True)])
    library.add_special_tokens([AddedToken(t, special=True, normalized=False, rstrip=True) for t in special])
    return Family(
        library=library,
        model="llama",
        pre="default",
        architecture="phi3",
        settings=LLAMA_SETTINGS,
        fields=_fields(_llama_pieces(), special=special),
    )


def _mistral() -> Family:
    """Llama 2's as transformers 5 writes it: no space is put before a text that begins with one."""
    from transformers import LlamaTokenizer

    theirs = LlamaTokenizer(**_merges(_llama_pieces()), add_bos_token=True)
    return Family(library=theirs.backend_tokenizer, pre=None, settings=LLAMA_SETTINGS)


def _gemma() -> Family:
    from transformers import GemmaTokenizer

    runs = ["\n" * n for n in range(1, 8)] + [" " * n for n in range(2, 9)] + ["\t", "\t\t"]
    symbols = (*runs, "<table>", "</table>", "<b>", "</b>", "[multimodal]")
    names = {"pad": "<pad>", "eos": "<eos>", "bos": "<bos>", "unk": "<unk>"}
    made = _pieces(dummy=False, names=names, symbols=symbols)
    theirs = GemmaTokenizer(**_merges(made), mask_token=None, add_bos_token=True)
    theirs.add_tokens([AddedToken(symbol, normalized=False) for symbol in symbols if " " not in symbol])
    settings = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return Family(
        library=theirs.backend_tokenizer,
        model="llama",
        pre="default",
        architecture="gemma3",
        settings=settings,
        fields={**_fields(made, symbols), "add_space_prefix": False},
        sentence_piece=made,
    )


FAMILIES = {
    "gpt-2": _gpt2,
    "opt": _opt,
    "llama-3": _llama_3,
    "smollm-2": _smollm_2,
    "smollm-3": _smollm_3,
    "qwen": _qwen,
    "llama-2": _llama_2,
    "phi-3": _phi_3,
    "mistral": _mistral,
    "gemma": _gemma,
}


@cache
def family(name: str) -> Family:
    """Trained once a process."""
    return (FAMILIES | {"plain-llama": _plain_llama})[name]()
