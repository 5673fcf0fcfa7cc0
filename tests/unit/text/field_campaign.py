"""Folders and GGUF files of which a field is changed, and what transformers makes of them."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, GenerationConfig

from streamgen.base.errors import CheckpointError
from streamgen.text.tokenizer_files import load_tokenizer
from tests.unit.text.vocabularies import TEXTS, family

__all__ = ["BASES", "Case", "Verdict", "cases", "judged"]

SETTINGS, GENERATION, CONFIG = "tokenizer_config.json", "generation_config.json", "config.json"
MAP, ADDED = "special_tokens_map.json", "added_tokens.json"
GONE = object()  # a field that is taken out
CHAT = [{"role": "user", "content": " And 'the'  sky? é"}]
NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
    "image_token",
)
TEMPLATE = "".join(f"[{{{{ {name} }}}}]" for name in NAMES) + "{{ messages[0].content }}"
SPECIAL = "hi <|end|>  \n </s> x<s>  y<unk> <|im_end|><|endoftext|> <new> <eos><bos>ab<pad><mask>  1 22   3\n"

# A family, the class that its folder names, the type of its model.
BASES = [
    ("gpt-2", "GPT2Tokenizer", "gpt2"),
    ("gpt-2", "GPT2Tokenizer", "opt"),
    ("gpt-2", "CodeGenTokenizer", "phi"),
    ("gpt-2", "GPTNeoXTokenizer", "gpt_neox"),
    ("gpt-2", "CohereTokenizer", "cohere"),
    ("gpt-2", None, "olmo"),
    ("llama-3", "PreTrainedTokenizerFast", "llama"),
    ("llama-3", "LlamaTokenizer", "llama"),
    ("smollm-2", "GPT2Tokenizer", "llama"),
    ("smollm-3", "PreTrainedTokenizerFast", "smollm3"),
    ("qwen", "Qwen2Tokenizer", "qwen2"),
    ("qwen", "LlamaTokenizerFast", "qwen2"),
    ("qwen", "Qwen2Tokenizer", "qwen3"),
    ("qwen", None, "qwen3_5"),
    ("plain-llama", "LlamaTokenizer", "llama"),
    ("plain-llama", "LlamaTokenizerFast", "mistral"),
    ("plain-llama", "LlamaTokenizer", "idefics"),
    ("phi-3", "LlamaTokenizer", "phi3"),
    ("mistral", "LlamaTokenizer", "mistral"),
    ("gemma", "GemmaTokenizer", "gemma3_text"),
    ("gemma", "GemmaTokenizerFast", "gemma2"),
]
END = {"content": "<|im_end|>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
# Values for fields by their names; others are drawn from ANY.
VALUES: Mapping[str, list[Any]] = {
    "add_prefix_space": [True, False, None],
    "legacy": [True, False, None, 3],
    "tokenizer_class": [
        "PreTrainedTokenizerFast", "TokenizersBackend", "GPT2TokenizerFast", "LlamaTokenizer",
        "Qwen2Tokenizer", "GemmaTokenizer", "GPTNeoXTokenizerFast", "CohereTokenizer", "CodeGenTokenizer",
        "T5Tokenizer", "BertTokenizer", "OwnTokenizer", None, GONE,
    ],
    "model_type": [
        "llama", "mistral", "gpt2", "qwen2", "qwen3", "gemma2", "phi3", "olmo", "olmo2", "t5", "bert", "own",
        GONE,
    ],
    "extra_special_tokens": [
        {"image_token": "<|im_end|>"}, ["<|end|>", "<new>"], [END | {"__type": "AddedToken"}], [], None, 3
    ],
    "additional_special_tokens": [["<new>", "hi"], ["</s>"], [], None, {"boi_token": "<|end|>"}],
    "model_specific_special_tokens": [{"image_token": "<new>"}, {}],
    "added_tokens_decoder": [
        GONE, {}, None, {"1": {"content": "x"}},
    ],
    "chat_template": [
        [{"name": "default", "template": "{{ 1 }}"}], [{"name": "rag", "template": "a"}], {"default": "b"},
        "", None, GONE, 3,
    ],
    "eos_token_id": [0, 3, [3, 4], [], None, GONE, "3", True],
    "text_config": [{"eos_token_id": [5, 6]}, {"eos_token_id": 5}, None, {}],
    "fix_mistral_regex": [True, False],
    "clean_up_tokenization_spaces": [True, False, None],
}  # fmt: skip
TOKENS = [
    "<|im_end|>",
    "<|endoftext|>",
    "</s>",
    "hi",
    "<new>",
    None,
    GONE,
    END | {"__type": "AddedToken"},
    False,
    5,
    "",
]
OF_CONFIG = ("model_type", "eos_token_id", "text_config")
ANY = [True, False, None, 0, 1, 7, "x", "", [], [3], {}, {"a": 1}, GONE]
FIELDS = {
    SETTINGS: [
        *NAMES, "foo_token", *(name for name in VALUES if name not in OF_CONFIG),
        "add_bos_token", "add_eos_token", "split_special_tokens", "errors", "model_max_length",
        "max_length", "padding_side", "truncation_side", "truncation", "padding", "stride",
        "pad_to_multiple_of", "do_lower_case", "strip_accents", "sp_model_kwargs",
        "use_default_system_prompt", "trust_remote_code", "use_fast", "tokenizer_file",
        "vocab_file", "merges_file", "vocab", "merges", "post_processor", "normalizer",
        "pre_tokenizer", "auto_map", "init_inputs", "fast_tokenizer_files", "from_slow", "unk_id",
        "byte_fallback", "fuse_unk", "dropout", "backend", "name_or_path", "is_local",
        "local_files_only", "verbose", "trim_offsets", "bos_token_id", "eos_token_id",
        "spaces_between_special_tokens", "response_template", "chat_control_tokens",
        "model_input_names", "return_token_type_ids", "processor_class", "unheard_of", "gguf_file",
        "subfolder", "tokenizer_object", "tokenizer_padding", "tokenizer_truncation", "vocab_size",
        "files_loaded", "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
        "add_special_tokens",
    ],
    CONFIG: ["model_type", "tokenizer_class", "eos_token_id", "text_config", "unheard_of"],
    GENERATION: ["eos_token_id", "unheard_of"],
    MAP: [*NAMES, "extra_special_tokens", "additional_special_tokens", "add_bos_token", "unheard_of"],
    ADDED: ["<|im_end|>", "<new>"],
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A folder of `base`, in which a field of a file has another value. old: without added_tokens_decoder."""

    base: tuple[str, str | None, str]
    old: bool
    file: str | None
    field: str | None
    value: Any

    def __str__(self) -> str:
        value = "gone" if self.value is GONE else repr(self.value)
        return f"{self.base}{' old' if self.old else ''}: {self.file} {self.field} = {value}"

    def folder(self, place: Path) -> Path:
        name, kind, model = self.base
        folder = family(name).folder(place)
        written = json.loads((folder / "tokenizer.json").read_text())
        files: dict[str, dict[str, Any]] = {
            SETTINGS: json.loads((folder / SETTINGS).read_text()) | {"chat_template": TEMPLATE},
            CONFIG: {"model_type": model},
        }
        if kind is None:
            del files[SETTINGS]["tokenizer_class"]
        else:
            files[SETTINGS]["tokenizer_class"] = kind
        if not self.old:
            added = {str(token.pop("id")): token for token in written["added_tokens"]}
            files[SETTINGS]["added_tokens_decoder"] = added
        if self.file is not None:
            fields = files.setdefault(self.file, {})
            if self.value is GONE:
                fields.pop(self.field, None)
            elif self.value == "flags":  # of added tokens
                for token in fields["added_tokens_decoder"].values():
                    token[self.field] = not token[self.field]
            else:
                fields[self.field] = self.value
        for file, fields in files.items():
            (folder / file).write_text(json.dumps(fields))
        return folder


def cases() -> list[Case]:
    """All that there are."""
    found = [Case(base, old, None, None, None) for base in BASES for old in (False, True)]
    for base in BASES:
        for file, fields in FIELDS.items():
            for field in fields:
                values = VALUES.get(field, TOKENS if field in NAMES or field == "foo_token" else ANY)
                if file == ADDED:
                    values = [3, 900, 901, 902, 903, 904, 905, "x", None]
                found += [Case(base, old, file, field, value) for value in values for old in (False, True)]
        for flag in ("special", "lstrip", "rstrip", "normalized", "single_word"):
            found.append(Case(base, False, SETTINGS, flag, "flags"))
    return found


@dataclass(frozen=True)
class Verdict:
    """kind: refused, equal, alone (transformers fails), or wrong. why: of a wrong or refused one."""

    kind: str
    why: str = ""


def judged(case: Case, place: Path) -> Verdict:
    folder = case.folder(place)
    try:
        ours: Any = load_tokenizer(folder)
    except CheckpointError as error:
        return Verdict("refused", str(error).removeprefix(f"{folder}: "))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = AutoTokenizer.from_pretrained(folder)
            theirs.encode("a")
    except Exception as error:  # noqa: BLE001 - of any kind: transformers checks no field
        return Verdict("alone", f"{type(error).__name__}: {error}")
    if wrong := _differs(ours, theirs):
        return Verdict("wrong", wrong)
    return _ends(folder, ours)


def _differs(ours: Any, theirs: Any) -> str:
    if ours.size != len(theirs):
        return f"{ours.size} tokens, {len(theirs)}"
    for text in (*TEXTS, SPECIAL):
        for whole in (True, False):
            if ours.encode(text, whole=whole) != theirs.encode(text, add_special_tokens=whole):
                return f"ids of {text!r}, whole {whole}"
        if ours.decode(ours.encode(text)) != theirs.decode(theirs.encode(text)):
            return f"text of {text!r}"
    answers: list[Any] = []
    for call in (
        lambda: ours.chat(CHAT),
        lambda: theirs.apply_chat_template(CHAT, return_dict=False, add_generation_prompt=True),
    ):
        try:
            answers.append(call())
        except Exception as error:  # noqa: BLE001 - a template may fail in any way
            answers.append(error)
    failed = [isinstance(answer, Exception) for answer in answers]
    if failed[0] or (not failed[1] and answers[0] == answers[1]):
        return ""  # refused when it is asked for, or equal
    return f"chat {answers}"


def _ends(folder: Path, ours: Any) -> Verdict:
    """Those that transformers stops at, and the end token by its name."""
    name, more = (
        (GENERATION, {}) if (folder / GENERATION).is_file() else (CONFIG, {"_from_model_config": True})
    )
    try:
        generation = GenerationConfig.from_pretrained(folder, name, **more)
    except Exception as error:  # noqa: BLE001 - as above
        return Verdict("alone", f"{type(error).__name__}: {error}")
    ends = generation.eos_token_id
    stops = set(ends if isinstance(ends, list) else [] if ends is None else [ends])
    named = ours.names.get("eos_token")
    expected = stops | ({ours.id_of(named)} if named else set())
    return Verdict("equal") if ours.ends == expected else Verdict("wrong", f"ends {ours.ends}, {expected}")
