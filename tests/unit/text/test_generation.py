"""What checkpoints say of generation: ends as in transformers, and settings that are named, not dropped."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import GenerationConfig

import streamgen
from streamgen import cli
from streamgen.base.errors import CheckpointError, GenerationWarning
from streamgen.compiler.config import CompileConfig
from streamgen.text.generation import BEAMS, KNOWN, NEUTRAL, SAMPLING, generation_of, notice_of, settings_of
from streamgen.text.stored import Text, read_text, write_text
from streamgen.text.tokenizer_files import load_tokenizer
from tests.shared.decoders import WORDS
from tests.unit.text.vocabularies import family

GENERATION, CONFIG = "generation_config.json", "config.json"
CHATTY = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "repetition_penalty": 1.05, "foo": [1]}
NOTICE = (
    "settings of the checkpoint that are not applied to its texts: do_sample true, temperature 0.7, "
    "top_p 0.8, repetition_penalty 1.05, foo [1]; a text is greedy unless a temperature is given"
)


@pytest.mark.parametrize(
    "files",
    [
        {CONFIG: {"eos_token_id": [3, 4]}},
        {CONFIG: {"eos_token_id": 3}},
        {CONFIG: {"eos_token_id": None}},
        {CONFIG: {"text_config": {"eos_token_id": [5, 6]}}},
        {CONFIG: {"text_config": {"eos_token_id": 5}, "eos_token_id": 3}},
        {CONFIG: {"decoder": {"eos_token_id": 7}, "text_config": {"eos_token_id": 5}}},
        {CONFIG: {"eos_token_id": 3}, GENERATION: {"eos_token_id": [4, 5]}},
        {CONFIG: {"eos_token_id": 3}, GENERATION: {}},
        {GENERATION: {"eos_token_id": 0}},
        {},
    ],
)
def test_ends_are_those_of_transformers(tmp_path: Path, files: dict[str, Any]) -> None:
    """And those that tokenizer_config.json names."""
    folder = family("qwen").folder(tmp_path / "folder")
    for name, fields in files.items():
        (folder / name).write_text(json.dumps(fields))
    if GENERATION in files:
        theirs = GenerationConfig.from_pretrained(folder)
    else:
        theirs = GenerationConfig.from_model_config(dict(files.get(CONFIG, {})))
    ends = theirs.eos_token_id
    expected = set(ends if isinstance(ends, list) else [] if ends is None else [ends])
    assert generation_of(folder).ends == expected
    tokenizer = load_tokenizer(folder)
    assert tokenizer.ends == expected | {tokenizer.id_of("<|im_end|>")}


def test_every_field_of_transformers_is_known() -> None:
    theirs = {name for name in vars(GenerationConfig()) if not name.startswith("_original")}
    assert theirs <= KNOWN
    defaults = GenerationConfig._get_default_generation_params()
    ours = NEUTRAL | SAMPLING | BEAMS
    differ = {name for name, value in defaults.items() if name in ours and ours[name] != value}
    assert differ <= {"top_k", "do_sample", "early_stopping"}  # 50 of do_sample, which is named; false


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.1}, []),
        ({"do_sample": False, "temperature": 0.6}, []),
        ({"do_sample": True, "temperature": 1.0, "top_k": 50, "top_p": 1.0}, ["do_sample", "top_k"]),
        ({"do_sample": True, "temperature": 0.6}, ["do_sample", "temperature"]),
        ({"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "num_beams": 1, "max_length": 20}, []),
        ({"num_beams": 1, "length_penalty": 2.0, "early_stopping": True}, []),
        ({"num_beams": 4, "length_penalty": 2.0}, ["num_beams", "length_penalty"]),
        ({"repetition_penalty": 1.1, "max_length": 4096}, ["repetition_penalty", "max_length"]),
        ({"suppress_tokens": [1], "begin_suppress_tokens": []}, ["suppress_tokens"]),
        ({"forced_bos_token_id": 0, "forced_eos_token_id": None}, ["forced_bos_token_id"]),
        ({"bad_words_ids": [[1]], "guidance_scale": 1.0}, ["bad_words_ids"]),
        ({"eos_token_id": 1, "pad_token_id": 2, "use_cache": True, "transformers_version": "5.0"}, []),
        ({"unheard_of": 1, "another": False, "third": None}, ["unheard_of"]),
        ({"repetition_penalty": True}, ["repetition_penalty"]),
    ],
)
def test_settings_that_change_a_text(fields: dict[str, Any], named: list[str]) -> None:
    assert list(settings_of(fields)) == named


def test_settings_of_a_config_alone(tmp_path: Path) -> None:
    """Fields that generation knows; others are of the model."""
    config = {
        "do_sample": True,
        "text_config": {"temperature": 0.5, "layers": 3},
        "hidden_size": 7,
        "top_p": None,
    }
    (tmp_path / CONFIG).write_text(json.dumps(config))
    assert generation_of(tmp_path).settings == {"temperature": 0.5, "do_sample": True}


def test_settings_of_a_gguf_file(tmp_path: Path) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_float32("general.sampling.temp", 0.6)
    writer.add_int32("general.sampling.top_k", 20)
    writer.add_string("general.sampling.sequence", "")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    settings = generation_of(tmp_path / "m.gguf").settings
    assert notice_of(settings) == (
        "settings of the checkpoint that are not applied to its texts: general.sampling.temp 0.6, "
        "general.sampling.top_k 20; a text is greedy unless a temperature is given"
    )


def test_one_line_names_them() -> None:
    assert notice_of({}) is None
    assert notice_of(settings_of(CHATTY)) == NOTICE
    assert notice_of({"bad_words_ids": [[100]] * 50}) == (
        "settings of the checkpoint that are not applied to its texts: bad_words_ids "
        "[[100], [100], [100], [100], [100], [100], [100], [100], [10...; a text is greedy unless a "
        "temperature is given"
    )


def test_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / GENERATION).write_text("{")
    with pytest.raises(CheckpointError, match=r"generation_config.json cannot be read: "):
        generation_of(tmp_path)


@pytest.mark.parametrize("tokenizer", [WORDS, None])
def test_a_written_folder_keeps_them(tmp_path: Path, tokenizer: Any) -> None:
    text = Text(vocabulary=300, tokenizer=tokenizer, settings=settings_of(CHATTY))
    write_text(text, {}, tmp_path)
    assert read_text(tmp_path)[0].notice == text.notice == NOTICE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama whose generation_config.json wants another text than the greedy one."""
    place = tmp_path_factory.mktemp("chatty")
    sizes: Any = {
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 300,
    }
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, max_position_embeddings=32, **sizes
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).eval().save_pretrained(place)
    (place / GENERATION).write_text(json.dumps(CHATTY | {"eos_token_id": 7}))
    return place


SMALL = CompileConfig(max_tokens=2, context=8, multipliers=64, channels=2)


def test_compile_load_and_generate_say_it_once(folder: Path, tmp_path: Path, capsys: Any) -> None:
    """In Python a warning each; on the command line a line."""
    written = tmp_path / "written"
    calls: list[Callable[[], Any]] = [
        lambda: streamgen.compile(folder, config=SMALL).write(written),
        lambda: streamgen.load(written),
    ]
    for call in calls:
        with pytest.warns(GenerationWarning) as found:
            call()
        (warning,) = [entry for entry in found if entry.category is GenerationWarning]
        assert (str(warning.message), warning.filename) == (NOTICE, __file__)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert cli.main(["generate", str(written), "--prompt", "a"]) == 2
    lines = capsys.readouterr().err
    assert lines.count(f"streamgen: warning: {NOTICE}\n") == 1
    assert "there is no tokenizer.json, hence no tokenizer" in lines
