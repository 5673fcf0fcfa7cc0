"""Checkpoints in which everything is wrong: one error has all kinds of reasons, whatever reads them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

import streamgen
from streamgen.base.errors import CheckpointError, UnsupportedOperationError
from streamgen.model.frontend import load_decoder
from streamgen.model.frontend.shapes import shapes_of
from tests.unit.model.frontend.checkpoints import llama
from tests.unit.model.frontend.families import VOCABULARY, family
from tests.unit.model.frontend.test_gguf_families import written
from tests.unit.model.frontend.test_load_gguf import gguf_file
from tests.unit.model.frontend.test_packed_weights import written_packed

CODE = {"AutoConfig": "attack.Config", "AutoModelForCausalLM": "attack.Model"}
TOKENIZER = f"the tokenizer has {VOCABULARY + 1} tokens, the vocabulary of the model {VOCABULARY}"
LAYER = "model.layers.0"
TWICE, INTEGERS = "model.embed_tokens.weight", f"{LAYER}.input_layernorm.weight"
TYPES = (
    f"tensor {TWICE} is in two files, a.safetensors and b.safetensors",
    f"tensor {INTEGERS} is I8; F64, F32, F16, BF16 can be read",
)


def _told(model_type: str) -> str:
    return (
        "auto_map names code in the checkpoint, attack.Config, attack.Model, which is never run; "
        f"without auto_map the checkpoint is read as the model_type {model_type!r} of transformers"
    )


def _config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _tokenizer(folder: Path, tokens: int = VOCABULARY + 1) -> None:
    words = Tokenizer(BPE(vocab={chr(ord("!") + i): i for i in range(tokens)}, merges=[]))
    words.pre_tokenizer, words.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    words.save(str(folder / "tokenizer.json"))


def _code(folder: Path) -> Path:
    """Code that leaves a mark when it runs."""
    mark = folder / "ran"
    (folder / "attack.py").write_text(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n")
    _config(folder, auto_map=CODE)
    return mark


def _tensors(folder: Path, missing: str) -> None:
    """One is missing, one is misshapen, one of another type, one in two files, and so many are too many."""
    tensors = load_file(folder / "model.safetensors")
    del tensors[missing]
    twice = {TWICE: tensors[TWICE].clone()}
    tensors |= {"model.norm.weight": torch.zeros(3), INTEGERS: torch.zeros(len(tensors[INTEGERS])).char()}
    tensors |= {f"extra.{i}": torch.zeros(2) for i in range(10)}
    (folder / "model.safetensors").unlink()
    for name, held in (("a.safetensors", tensors), ("b.safetensors", twice)):
        save_file(held, folder / name, {"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "a.safetensors") | {TWICE: "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _refused(folder: Path, read: Callable[[Path], Any] = load_decoder) -> list[str]:
    with pytest.raises(CheckpointError) as caught:
        read(folder)
    first, *reasons = str(caught.value).split("\n  ")
    assert first == f"{folder}:"
    return reasons


def _has(reasons: list[str], *parts: str) -> None:
    """One reason for each of these, in this order among the others."""
    places = [[i for i, reason in enumerate(reasons) if part in reason] for part in parts]
    assert all(places), dict(zip(parts, places, strict=True))
    firsts = [place[0] for place in places]
    assert firsts == sorted(firsts), reasons


@pytest.mark.parametrize("name", ["Qwen3", pytest.param("Llama", marks=pytest.mark.slow)])
def test_a_family_of_transformers(name: str, tmp_path: Path) -> None:
    """The config asks for biases, a function that nothing computes and code; tensors and tokenizer differ."""
    family(name, hidden_act="lgamma", attention_bias=False).save_pretrained(tmp_path)
    _config(tmp_path, attention_bias=True)
    _tensors(tmp_path, f"{LAYER}.mlp.up_proj.weight")
    _tokenizer(tmp_path)
    mark = _code(tmp_path)
    reasons = _refused(tmp_path)
    _has(
        reasons,
        _told(name.lower()),
        f"tensor {LAYER}.mlp.up_proj.weight is missing",
        f"tensor {LAYER}.self_attn.k_proj.bias is missing",
        "and 1 more of this kind",
        "tensor extra.0 has no place in the model",
        "and 2 more of this kind",
        "tensor model.norm.weight has shape [3]; [48] is needed",
        *TYPES,
        "model.layers.0.mlp.act_fn",
        TOKENIZER,
    )
    assert reasons[-1] == TOKENIZER and not mark.exists()
    assert any("aten.lgamma.default" in reason for reason in reasons)


def test_a_family_that_is_read_here(tmp_path: Path) -> None:
    family("Llama").save_pretrained(tmp_path)
    _config(tmp_path, partial_rotary_factor=0.5)
    _config(tmp_path, intermediate_size=80, num_key_value_heads=2, num_hidden_layers=3)
    _tensors(tmp_path, f"{LAYER}.self_attn.q_proj.weight")
    _tokenizer(tmp_path)
    mark = _code(tmp_path)
    reasons = _refused(tmp_path)
    _has(
        reasons,
        _told("llama"),
        "partial_rotary_factor is 0.5, which is not supported; heads of model_type 'llama' rotate as a whole",
        "3 query heads cannot share 2 key heads evenly",
        f"the metadata says 3 layers; the file has 2 (tensors like {LAYER}.self_attn.q_proj.weight)",
        "tensor model.norm.weight has shape [3]; [48] is needed",
        f"tensor {LAYER}.self_attn.q_proj.weight is missing",
        *TYPES,
        "tensor extra.0 has no place in a decoder of 2 layers",
        "and 2 more of this kind",
        TOKENIZER,
    )
    assert not mark.exists()


def test_values_that_cannot_be_used(tmp_path: Path) -> None:
    """Shapes are not known then, but names of tensors and the tokenizer are."""
    family("Llama").save_pretrained(tmp_path)
    _config(tmp_path, hidden_size="48", attention_bias=1)
    _tensors(tmp_path, f"{LAYER}.self_attn.q_proj.weight")
    _tokenizer(tmp_path)
    reasons = _refused(tmp_path)
    assert reasons[:5] == [
        "hidden_size is '48'; an integer of at least 1 is needed",
        "attention_bias is 1; true or false is needed",
        f"tensor {LAYER}.self_attn.q_proj.weight is missing",
        *TYPES,
    ]
    assert all(" extra." in reason for reason in reasons[5:-2])
    assert reasons[-2:] == ["and 2 more of this kind", TOKENIZER]


def test_packed_weights(tmp_path: Path) -> None:
    written_packed(tmp_path, "gptq")
    _config(tmp_path, hidden_act="lgamma")
    _tensors(tmp_path, f"{LAYER}.mlp.up_proj.scales")
    _tokenizer(tmp_path)
    mark = _code(tmp_path)
    reasons = _refused(tmp_path)
    _has(
        reasons,
        _told("qwen2"),
        f"tensor {LAYER}.mlp.up_proj.scales is missing",
        "tensor extra.0 has no place in the model",
        *TYPES,
        "aten.lgamma.default",
        TOKENIZER,
    )
    assert not mark.exists()
    _config(tmp_path, quantization_config={"quant_method": "awq", "bits": 3, "group_size": 16})
    reasons = _refused(tmp_path)
    _has(reasons, _told("qwen2"), "bits is 3; only 4 is", "group_size is 16; only", TOKENIZER)


def test_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "llama.gguf"
    changes = {"blk.1.ffn_up.weight": None, "output_norm.weight": np.zeros(3, np.float32)}
    changes |= {
        "blk.0.attn_norm.weight": np.zeros(64, np.int32),
        "rope_freqs.weight": np.zeros(8, np.float32),
    }
    metadata = {"logit_scale": 0.25, "attention.head_count_kv": 3}
    gguf_file(path, llama(), {}, metadata=metadata, tensors=changes, words=len(llama().lm_head.weight) + 1)
    reasons = _refused(path)
    _has(
        reasons,
        "tensor rope_freqs.weight has shape [8]; [8] is needed, and all divisors must be above 0",
        "llama.logit_scale is 0.25, which is not supported; 0.0 or 1.0 is",
        "4 query heads cannot share 3 key heads evenly",
        "tensor output_norm.weight has shape [3]; [64] is needed",
        "tensor blk.1.ffn_up.weight is missing",
        "tensor blk.0.attn_norm.weight is I32; F32, F16, BF16 and quantised types can be read",
        "the tokenizer has 49 tokens, the vocabulary of the model 48",
    )


def test_a_gguf_file_of_another_architecture(tmp_path: Path) -> None:
    path = tmp_path / "gemma.gguf"
    fields, wrong = {"expert_count": 4}, ("blk.3.ffn_up.weight", "blk.2.attn_norm.weight")
    written(path, "gemma3", None, fields, *wrong, words=VOCABULARY + 1)
    assert _refused(path) == [
        "gemma3.expert_count is 4, which is not supported; 0 is",
        "tensor model.layers.3.mlp.up_proj.weight is missing",
        f"tensor {wrong[1]} is I32; F32, F16, BF16 and quantised types can be read",
        TOKENIZER,
    ]


@pytest.mark.parametrize("name", ["Qwen3", "Llama"])
def test_operations_and_a_tokenizer(name: str, tmp_path: Path) -> None:
    """A function that nothing computes is told as for modules when it is alone, else with the tokenizer."""
    family(name).save_pretrained(tmp_path)
    _config(tmp_path, hidden_act="lgamma")
    with pytest.raises(UnsupportedOperationError, match="lgamma"):
        load_decoder(tmp_path)
    _tokenizer(tmp_path)
    reasons = _refused(tmp_path)
    assert "lgamma" in reasons[0] and reasons[-1] == TOKENIZER


def test_a_tokenizer_alone_is_told_by_who_reads_it(tmp_path: Path) -> None:
    family("Llama").save_pretrained(tmp_path)
    _tokenizer(tmp_path)
    assert len(load_decoder(tmp_path).op("embedding").floats(np.arange(1))) == 1
    with pytest.raises(CheckpointError) as caught:
        streamgen.compile(tmp_path, None, streamgen.CompileConfig(channels=2, context=16))
    assert str(caught.value) == f"{tmp_path}: {TOKENIZER}"


@pytest.mark.parametrize("name", ["Qwen3", "Mistral"])
def test_parts_of_heads_that_rotate_whole(name: str, tmp_path: Path) -> None:
    """transformers' classes of most families pass over a part; other programs do not."""
    family(name).save_pretrained(tmp_path)
    _config(tmp_path, partial_rotary_factor=0.5)
    said = (
        f"partial_rotary_factor is 0.5, which is not supported; heads of model_type {name.lower()!r} rotate "
        "as a whole, those of 'stablelm' rotate in part"
    )
    for function in ("silu", "relu2"):  # with the second one transformers reads a Mistral, too
        _config(tmp_path, hidden_act=function)
        with pytest.raises(CheckpointError) as caught:
            load_decoder(tmp_path)
        assert str(caught.value) == f"{tmp_path}: {said}"


def _change(folder: Path, *changes: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for change in changes:
        change(tensors)
    save_file(tensors, path, {"format": "pt"})


@pytest.mark.parametrize("name", ["Qwen3", "Llama"])
def test_a_head_of_its_own_that_the_config_ties(name: str, tmp_path: Path) -> None:
    """transformers takes it, and says so in a log; older files have the embedding twice."""
    family(name, tie_word_embeddings=True).save_pretrained(tmp_path)
    head, embedding = "lm_head.weight", "model.embed_tokens.weight"
    _change(tmp_path, lambda tensors: tensors.update({head: tensors[embedding].clone()}))
    assert load_decoder(tmp_path).op("logits").weight.shape == (VOCABULARY, 48)
    _change(tmp_path, lambda tensors: tensors[head][3].add_(1))
    with pytest.raises(CheckpointError) as caught:
        load_decoder(tmp_path)
    said = f"{tmp_path}: tie_word_embeddings is true, but tensor {head} differs from {embedding}"
    assert str(caught.value) == said


@pytest.mark.parametrize("name", ["Qwen3", "Llama"])
def test_weights_that_are_not_finite(name: str, tmp_path: Path) -> None:
    """All tensors that have some."""
    family(name).save_pretrained(tmp_path)
    norm, up = "model.norm.weight", f"{LAYER}.mlp.up_proj.weight"
    _change(tmp_path, lambda t: t[norm][3].fill_(torch.inf), lambda t: t[up][2, 1].fill_(torch.nan))
    assert {*_refused(tmp_path)} == {f"tensor {norm}[3] is inf", f"tensor {up}[2, 1] is nan"}


@pytest.mark.parametrize("known", [True, False])
def test_code_of_a_folder_is_never_run(known: bool, tmp_path: Path) -> None:
    """A model type that only the code knows leaves nothing else to look at but the tokenizer."""
    family("Qwen3").save_pretrained(tmp_path)
    mark = _code(tmp_path)
    kind = "qwen3" if known else "own"
    _config(tmp_path, model_type=kind)
    for read in (load_decoder, shapes_of, lambda path: shapes_of(path / "config.json")):
        with pytest.raises(CheckpointError) as caught:
            read(tmp_path)
        assert str(caught.value) == f"{tmp_path}: {_told(kind)}"
        _tokenizer(tmp_path, VOCABULARY)
    _tokenizer(tmp_path)
    assert _refused(tmp_path) == [_told(kind), TOKENIZER]
    (tmp_path / "model.safetensors").unlink()
    assert _refused(tmp_path, shapes_of) == [_told(kind), TOKENIZER]
    assert not mark.exists()
    if known:
        path = tmp_path / "config.json"
        path.write_text(path.read_text().replace('"auto_map"', '"_name_or_path"'))
        assert shapes_of(tmp_path).features("embedding") == 48
