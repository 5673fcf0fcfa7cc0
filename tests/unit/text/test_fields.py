"""Fields of tokenizer files: each is computed as in transformers, changes nothing, or is refused by name."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer
from transformers.models.auto.tokenization_auto import (
    MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS,
    TOKENIZER_MAPPING_NAMES,
)

from streamgen.base.errors import CheckpointError
from streamgen.base.gguf_metadata import read_metadata
from streamgen.text import tokenizer_classes
from streamgen.text.ends import ENDS
from streamgen.text.gguf_tokenizer import NAMES as GGUF_NAMES
from streamgen.text.tokenizer_classes import CLASSES, MODELS_AS_IS, MODELS_OF_CLASSES, MODELS_OF_OTHER_CLASSES
from streamgen.text.tokenizer_files import load_tokenizer
from tests.unit.text.field_campaign import BASES, Case, cases, judged
from tests.unit.text.vocabularies import TEXTS, family

SETTINGS = "tokenizer_config.json"
Record = Callable[[str, object], None]


def verdicts(chosen: Sequence[Case], place: Path, record: Record) -> Counter[str]:
    """How many of each kind; no case may be wrong."""
    counts: Counter[str] = Counter()
    for index, case in enumerate(chosen):
        verdict = judged(case, place / str(index))
        shutil.rmtree(place / str(index))
        assert verdict.kind != "wrong", f"{case}: {verdict.why}"
        counts[verdict.kind] += 1
    for kind, count in counts.items():
        record(kind, count)
    print(f"{len(chosen)} folders: {dict(counts)}")
    return counts


@pytest.mark.parametrize("base", BASES, ids=str)
def test_folders_as_they_are(tmp_path: Path, base: Any) -> None:
    for old in (False, True):
        verdict = judged(Case(base, old, None, None, None), tmp_path / str(old))
        assert verdict.kind == "equal", verdict.why


@pytest.mark.slow
def test_a_sample_of_changed_folders(tmp_path: Path, seed: int, record_property: Record) -> None:
    counts = verdicts(Random(f"{seed} fields").sample(cases(), 500), tmp_path, record_property)
    assert counts["equal"] > 250 and counts["refused"] > 50


@pytest.mark.campaign
@pytest.mark.parametrize("part", range(16))
def test_all_changed_folders(tmp_path: Path, part: int, record_property: Record) -> None:
    verdicts(cases()[part::16], tmp_path, record_property)


def test_which_class_reads_a_folder_is_as_in_transformers() -> None:
    generic = {"TokenizersBackend", "MistralCommonBackend"}
    assert {name for name, kind in TOKENIZER_MAPPING_NAMES.items() if kind in generic} == MODELS_AS_IS
    theirs = {name: (kind or "").removesuffix("Fast") for name, kind in TOKENIZER_MAPPING_NAMES.items()}
    assert {name: kind for name, kind in theirs.items() if kind in CLASSES} == MODELS_OF_CLASSES
    wrong = MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS & MODELS_OF_CLASSES.keys()
    assert wrong == set(tokenizer_classes.CORRECTED)
    others = {name for name, kind in TOKENIZER_MAPPING_NAMES.items() if kind} - MODELS_AS_IS
    assert others - MODELS_OF_CLASSES.keys() == MODELS_OF_OTHER_CLASSES


HUB: dict[str, tuple[str, str, dict[str, Any]]] = {  # as the files of these families are on the hub
    "Llama 3": (
        "llama-3",
        "llama",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": True,
            "model_input_names": ["input_ids", "attention_mask"],
            "model_max_length": 131072,
        },
    ),
    "Qwen 2.5": (
        "qwen",
        "qwen2",
        {
            "tokenizer_class": "Qwen2Tokenizer",
            "add_bos_token": False,
            "add_prefix_space": False,
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "errors": "replace",
            "model_max_length": 131072,
            "pad_token": "<|endoftext|>",
            "split_special_tokens": False,
            "unk_token": None,
        },
    ),
    "Gemma 3": (
        "gemma",
        "gemma3_text",
        {
            "tokenizer_class": "GemmaTokenizer",
            "add_bos_token": True,
            "add_eos_token": False,
            "clean_up_tokenization_spaces": False,
            "extra_special_tokens": {"boi_token": "<b>"},
            "image_token": "[multimodal]",
            "model_max_length": 10**30,
            "pad_token": "<pad>",
            "processor_class": "Gemma3Processor",
            "sp_model_kwargs": None,
            "spaces_between_special_tokens": False,
            "use_default_system_prompt": False,
            "mask_token": None,
        },
    ),
    "SmolLM 2": (
        "smollm-2",
        "llama",
        {
            "tokenizer_class": "GPT2Tokenizer",
            "add_prefix_space": False,
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
            "bos_token": "<|im_start|>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": 8192,
            "pad_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
            "vocab_size": 49152,
        },
    ),
    "Mistral": (
        "plain-llama",
        "mistral",
        {
            "tokenizer_class": "LlamaTokenizer",
            "add_bos_token": True,
            "add_eos_token": False,
            "additional_special_tokens": [],
            "clean_up_tokenization_spaces": False,
            "legacy": True,
            "model_max_length": 10**30,
            "pad_token": None,
            "sp_model_kwargs": {},
            "spaces_between_special_tokens": False,
            "use_default_system_prompt": False,
        },
    ),
    "Llama 2": (
        "plain-llama",
        "llama",
        {
            "tokenizer_class": "LlamaTokenizer",
            "legacy": False,
            "model_max_length": 10**30,
            "pad_token": None,
            "padding_side": "right",
            "sp_model_kwargs": {},
            "add_bos_token": True,
            "add_eos_token": False,
            "clean_up_tokenization_spaces": False,
        },
    ),
    "Phi 3": (
        "phi-3",
        "phi3",
        {
            "tokenizer_class": "LlamaTokenizer",
            "add_bos_token": False,
            "add_eos_token": False,
            "legacy": False,
            "model_max_length": 4096,
            "padding_side": "left",
            "sp_model_kwargs": {},
            "use_default_system_prompt": False,
            "pad_token": "</s>",
        },
    ),
    "Phi 2": (
        "gpt-2",
        "phi",
        {
            "tokenizer_class": "CodeGenTokenizer",
            "add_prefix_space": False,
            "bos_token": "<|endoftext|>",
            "clean_up_tokenization_spaces": True,
            "model_max_length": 2048,
            "return_token_type_ids": False,
            "unk_token": "<|endoftext|>",
        },
    ),
    "GPT-2": ("gpt-2", "gpt2", {"model_max_length": 1024}),
}


@pytest.mark.parametrize("name", HUB)
def test_folders_of_the_hub(tmp_path: Path, name: str) -> None:
    base, model, fields = HUB[name]
    folder = Case((base, None, model), False, None, None, None).folder(tmp_path / "hub")
    path = folder / SETTINGS
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"unheard_of": 3},
            "tokenizer_config.json has the field unheard_of = 3, which is not known; only null, false or an "
            "empty value is allowed",
        ),
        (
            {"split_special_tokens": True},
            "split_special_tokens of tokenizer_config.json is True; allowed: null, false or an empty value",
        ),
        ({"errors": "strict"}, "errors of tokenizer_config.json is 'strict'; allowed: 'replace'"),
        ({"bos_token": 3}, "bos_token of tokenizer_config.json is 3; the text of a token is needed"),
        (
            {"tokenizer_class": "T5Tokenizer"},
            "tokenizer_class of tokenizer_config.json is 'T5Tokenizer'; known are PreTrainedTokenizerFast, "
            f"which reads tokenizer.json as it is, {', '.join(CLASSES)}",
        ),
        (
            {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": 1},
            "add_prefix_space of tokenizer_config.json is 1; allowed: true, false, null",
        ),
        (
            {"extra_special_tokens": 3},
            "extra_special_tokens of tokenizer_config.json is 3; a list of tokens is needed",
        ),
        (
            {"auto_map": []},
            "auto_map of tokenizer_config.json names code of the folder's own, [], which is never run; "
            "without auto_map tokenizer.json is read",
        ),
        (
            {"chat_template": 3},
            "chat_template of tokenizer_config.json is 3; a text is needed, or texts by names",
        ),
    ],
)
def test_fields_that_are_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    folder = family("qwen").folder(tmp_path / "folder")
    path = folder / SETTINGS
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(CheckpointError) as error:
        load_tokenizer(folder)
    assert str(error.value) == f"{folder}: {message}"


def test_a_model_of_an_unknown_class_is_refused(tmp_path: Path) -> None:
    folder = Case(("qwen", None, "bert"), False, None, None, None).folder(tmp_path / "folder")
    with pytest.raises(CheckpointError) as error:
        load_tokenizer(folder)
    assert str(error.value) == (
        f"{folder}: tokenizer_config.json names no tokenizer_class, and that of the model_type 'bert' is not "
        "known; PreTrainedTokenizerFast reads tokenizer.json as it is"
    )


def test_old_files_are_read_where_the_new_field_is_missing(tmp_path: Path) -> None:
    folder = family("qwen").folder(tmp_path / "folder")
    (folder / "special_tokens_map.json").write_text(json.dumps({"sep_token": "<|im_end|>"}))
    assert load_tokenizer(folder).names == {"eos_token": "<|im_end|>", "sep_token": "<|im_end|>"}
    (folder / "special_tokens_map.json").write_text(json.dumps({"add_bos_token": False}))
    with pytest.raises(CheckpointError) as error:
        load_tokenizer(folder)
    assert str(error.value) == (
        f"{folder}: special_tokens_map.json has the field add_bos_token = False, which is not known; only "
        "names of tokens are"
    )


STARTED = ("llama-3", "llama-2", "phi-3", "gemma")  # families whose texts begin with a token by default
GGUF_FAMILIES = (*STARTED, "gpt-2", "smollm-2", "smollm-3", "qwen")
IDS = [0, 2, 899, 10**6, "x", True, None]
ANY = [True, False, 0, 3, 1.5, "x", "", ["a"], [1], None]
GGUF_FIELDS: dict[str, list[Any]] = {
    "add_bos_token": [True, False, None, 1, "false"],
    "add_eos_token": [True, False, None, 0, "true"],
    "add_space_prefix": [1, "x"],
    "add_sep_token": [True, False],
    "pre": [None, "", "viking", 3],
    "model": [None, "", "bert", "t5", 3],
    "token_type": [None, [1], "x"],
    "scores": [None, [1.0], "x"],
    "merges": [None, ["a zz"], "x"],
    "tokens": [None, ["a"], "x"],
    "chat_template": ["{{ cls_token }}", 3, None],
    "chat_template.rag": ["x", 3],
    "chat_templates": [["rag"]],
    "chat_templates.rag": ["x"],
} | {
    f"{name}_token_id": IDS
    for name in ("bos", "eos", "eot", "eom", "unknown", "padding", "seperator", "cls", "mask")
}
IDLE_FIELDS = {
    f"{name}_token_id": [0, 3]
    for name in (
        "fim_pre",
        "fim_suf",
        "fim_mid",
        "fim_pad",
        "fim_rep",
        "fim_sep",
        "prefix",
        "suffix",
        "middle",
    )
} | {"token_type_count": [2]}
UNKNOWN_FIELDS = {
    name: ANY
    for name in (
        "remove_extra_whitespaces", "precompiled_charsmap", "clean_spaces", "ignore_merges",
        "escape_whitespaces", "treat_whitespace_as_suffix", "unheard_of", "unheard_of_token_id",
        "add_sep_token",
    )
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", GGUF_FAMILIES)
def test_changed_fields_of_gguf(tmp_path: Path, name: str, record_property: Record) -> None:
    """Ids of the family's folder between the tokens that the file puts before and behind, or refused."""
    counts: Counter[str] = Counter()
    folder = family(name).folder(tmp_path / "folder")
    for field, values in (GGUF_FIELDS | IDLE_FIELDS | UNKNOWN_FIELDS).items():
        for value in values:
            path = family(name).gguf(tmp_path / "m.gguf", **{field: value})
            counts[outcome := gguf_outcome(path, folder, name in STARTED)] += 1
            if field in IDLE_FIELDS or (
                field in UNKNOWN_FIELDS and value in (False, "", None) and value != 0
            ):
                assert outcome == "equal", (field, value)
            elif field in UNKNOWN_FIELDS and value is not False:
                assert outcome == "refused", (field, value)
    record_property("outcomes", dict(counts))
    print(f"{name}: {dict(counts)}")
    assert counts["equal"] > 40 and counts["refused"] > 60


def gguf_outcome(path: Path, folder: Path, starts: bool) -> str:
    """Equal, or refused; AssertionError when something is wrong."""
    try:
        ours = load_tokenizer(path)
    except CheckpointError:
        return "refused"
    fields = read_metadata(path)

    def stated(name: str) -> Any:
        return fields.get(f"tokenizer.ggml.{name}")

    tokens, types = stated("tokens"), stated("token_type")
    ids = {name: stated(f"{name}_token_id") for name in GGUF_NAMES.values()}
    theirs = AutoTokenizer.from_pretrained(folder)
    texts = [tokens[index] for index in ids.values() if index is not None]
    theirs.add_tokens([AddedToken(text, special=True) for text in texts if types[tokens.index(text)] == 1])
    before = [ids["bos"]] if (starts if stated("add_bos_token") is None else stated("add_bos_token")) else []
    behind = [ids["eos"]] if stated("add_eos_token") else []
    for text in TEXTS:
        plain = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text, whole=False) == plain, text
        assert ours.encode(text) == [*before, *plain, *behind], text
    named = {f"{short}_token": tokens[ids[n]] for short, n in GGUF_NAMES.items() if ids[n] is not None}
    assert ours.names == named
    known = {index for index, token in enumerate(tokens) if token in ENDS and types[index] != 1}
    stops = {stated(f"{name}_token_id") for name in ("eos", "eot", "eom")} - {None}
    assert ours.ends == known | stops
    template = fields.get("tokenizer.chat_template")
    assert ours.templates.get("default") == template
    return "equal"
