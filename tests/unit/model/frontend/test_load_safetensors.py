"""streamgen.model.frontend.checkpoint: decoders of safetensors folders; damage is named."""

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from streamgen.base.errors import CheckpointError, UnsupportedOperationError
from streamgen.model.frontend import load_decoder
from tests.shared.decoders import is_tied

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
from tests.unit.model.frontend.checkpoints import HIDDEN, LINEAR, LLAMA3, VOCABULARY, llama, require_same


@pytest.mark.parametrize(
    ("changes", "dtype", "shard"),
    [
        ({"tie_word_embeddings": True, "rope_parameters": LLAMA3}, torch.float32, "1GB"),
        ({"attention_bias": True, "mlp_bias": True, "rope_parameters": LINEAR}, torch.bfloat16, "30KB"),
        ({"head_dim": 24, "hidden_act": "gelu_pytorch_tanh"}, torch.float16, "1GB"),
        ({"hidden_act": "relu"}, torch.float64, "1GB"),
    ],
)
def test_safetensors(tmp_path: Path, changes: dict[str, Any], dtype: torch.dtype, shard: str) -> None:
    model = llama(**changes).to(dtype)
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard != "1GB")
    decoder = load_decoder(tmp_path)
    assert decoder.name == tmp_path.name
    assert is_tied(decoder) == bool(changes.get("tie_word_embeddings"))
    require_same(decoder, _copy(model, changes))


def _copy(model: Any, changes: dict[str, Any]) -> Any:
    """The model in float32, its rotary frequencies not rounded to the type it is stored in."""
    fresh = llama(**changes)
    fresh.load_state_dict({name: tensor.float() for name, tensor in model.state_dict().items()})
    return fresh


def test_older_config(tmp_path: Path) -> None:
    """rope_theta and rope_scaling beside one another, as before transformers 5."""
    model = llama(rope_parameters=LLAMA3)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = parameters
    (tmp_path / "config.json").write_text(json.dumps(config))
    require_same(load_decoder(tmp_path), model)


YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "relu2"},
        {"hidden_act": "laplace"},
        {"hidden_act": "quick_gelu", "tie_word_embeddings": True},
        {"rope_parameters": YARN | {"attention_factor": 1.0}},
    ],
    ids=str,
)
def test_what_is_not_known_here_is_read_by_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    """As in every other family."""
    model = llama(**changes)
    model.save_pretrained(tmp_path)
    require_same(load_decoder(tmp_path), model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "lgamma"}, "aten.lgamma.default"),
        ({"rope_parameters": YARN}, "its cosine and sine at position 0 are "),
    ],
)
def test_what_nothing_computes(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    llama(**changes).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedOperationError, match=re.escape(message)):
        load_decoder(tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    llama(num_hidden_layers=1).save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sliding_window": 7}, "sliding_window is 7, which is not supported; the field is not known"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor is missing"),
        (
            {"rope_parameters": LLAMA3 | {"low_freq_factor": 4.0}},
            "low_freq_factor is 4.0; it must be below high_freq_factor, 4.0",
        ),
        (
            {"quantization_config": {"bits": 4}},
            "quantization_config.quant_method is None; only 'gptq' and 'awq' are supported",
        ),
        (
            {"partial_rotary_factor": 0.5},
            "partial_rotary_factor is 0.5, which is not supported; heads of model_type 'llama' rotate "
            "as a whole, those of 'stablelm' rotate in part",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}},
            "rope_parameters.partial_rotary_factor is 0.25, which is not supported; heads of model_type "
            "'llama' rotate as a whole, those of 'stablelm' rotate in part",
        ),
        ({"hidden_size": "64"}, "hidden_size is '64'; an integer of at least 1 is needed"),
        ({"attention_bias": 1}, "attention_bias is 1; true or false is needed"),
        ({"head_dim": 15}, "head_dim is 15; an even number is needed"),
        ({"num_attention_heads": None}, "num_attention_heads is missing"),
    ],
)
def test_bad_config(folder: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError) as caught:
        load_decoder(tmp_path)
    assert str(caught.value) == f"{tmp_path}: {message}"


def test_all_that_is_wrong_is_in_one_error(folder: Path, tmp_path: Path) -> None:
    """Features of the config, tensors, and a tokenizer of another model."""
    config = json.loads((folder / "config.json").read_text())
    config |= {"rms_norm_eps": -1, "partial_rotary_factor": 0.5, "mlp_bias": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.zeros(HIDDEN, dtype=torch.int8)
    save_file(tensors, tmp_path / "model.safetensors")
    words = Tokenizer(BPE(vocab={chr(ord("!") + i): i for i in range(VOCABULARY + 1)}, merges=[]))
    words.pre_tokenizer, words.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    words.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(CheckpointError) as caught:
        load_decoder(tmp_path)
    layer = "tensor model.layers.0.mlp"
    assert str(caught.value).splitlines() == [
        f"{tmp_path}:",
        "  partial_rotary_factor is 0.5, which is not supported; heads of model_type 'llama' rotate "
        "as a whole, those of 'stablelm' rotate in part",
        "  rms_norm_eps is -1; a finite number above 0 is needed",
        f"  {layer}.gate_proj.bias is missing",
        f"  {layer}.up_proj.bias is missing",
        f"  {layer}.down_proj.bias is missing",
        "  tensor model.norm.weight is I8; F64, F32, F16, BF16 can be read",
        f"  the tokenizer has {VOCABULARY + 1} tokens, the vocabulary of the model {VOCABULARY}",
    ]


def test_wrong_tensors(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"intermediate_size": 80, "attention_bias": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError) as caught:
        load_decoder(tmp_path)
    layer = "tensor model.layers.0."
    assert str(caught.value).splitlines() == [
        f"{tmp_path}:",
        f"  {layer}mlp.gate_proj.weight has shape [96, 64]; [80, 64] is needed",
        f"  {layer}mlp.up_proj.weight has shape [96, 64]; [80, 64] is needed",
        f"  {layer}mlp.down_proj.weight has shape [64, 96]; [64, 80] is needed",
        f"  {layer}self_attn.q_proj.bias is missing; its shape is [64]",
        f"  {layer}self_attn.k_proj.bias is missing; its shape is [32]",
        f"  {layer}self_attn.v_proj.bias is missing; its shape is [32]",
        f"  {layer}self_attn.o_proj.bias is missing; its shape is [64]",
    ]


def _truncate(folder: Path) -> str:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    return r"model\.safetensors: truncated or corrupt safetensors: "


def _corrupt(folder: Path) -> str:
    path = folder / "model.safetensors"
    path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])
    return r"model\.safetensors: truncated or corrupt safetensors: "


def _remove(folder: Path) -> str:
    (folder / "model.safetensors").unlink()
    return r": there is no safetensors file$"


def _no_config(folder: Path) -> str:
    (folder / "config.json").unlink()
    return r"config\.json: there is no such file$"


def _not_json(folder: Path) -> str:
    (folder / "config.json").write_text("{")
    return r"config\.json: not JSON: "


def _a_list(folder: Path) -> str:
    (folder / "config.json").write_text("[]")
    return r"config\.json: a JSON object is needed, not list$"


def _no_type(folder: Path) -> str:
    (folder / "config.json").write_text('{"model_type": [[]]}')
    return r"config\.json: model_type is \[\[\]\]; a text is needed$"


def _lost_shard(folder: Path) -> str:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    return r"gone\.safetensors: there is no such file$"


def _bad_index(folder: Path) -> str:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": 3}')
    return r"model\.safetensors\.index\.json: weight_map must name a file for each tensor$"


def _twice(folder: Path) -> str:
    (folder / "a.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors").rename(folder / "b.safetensors")
    return r":\n  tensor lm_head\.weight is in two files, a\.safetensors and b\.safetensors\n"


def _integers(folder: Path) -> str:
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"model.norm.weight": torch.zeros(HIDDEN).char()}, folder / "model.safetensors")
    return r": tensor model\.norm\.weight is I8; F64, F32, F16, BF16 can be read$"


def _infinite(folder: Path) -> str:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] = torch.inf
    save_file(tensors, folder / "model.safetensors")
    return r": tensor model\.norm\.weight\[3\] is inf$"


@pytest.mark.parametrize(
    "damage",
    [
        _truncate,
        _corrupt,
        _remove,
        _no_config,
        _not_json,
        _a_list,
        _no_type,
        _lost_shard,
        _bad_index,
        _twice,
        _integers,
        _infinite,
    ],
)
def test_damaged_folder(folder: Path, tmp_path: Path, damage: Callable[[Path], str]) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    message = damage(tmp_path)
    with pytest.raises(CheckpointError, match=f"^{re.escape(str(tmp_path))}.*{message}"):
        load_decoder(tmp_path)
