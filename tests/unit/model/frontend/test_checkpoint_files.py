"""The files of a folder: each is read, or cannot change a result, or is refused by name."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from streamgen.base.errors import CheckpointError
from streamgen.model.frontend import load_decoder
from tests.unit.model.frontend.families import family

HARMLESS = (
    *(
        "README.md",
        "LICENSE",
        ".gitattributes",
        "USE_POLICY.md",
        "generation_config.json",
        "tokenizer.json.bak",
    ),
    *("special_tokens_map.json", "chat_template.jinja", "vocab.json", "merges.txt", "tokenizer.model"),
    *(
        "pytorch_model.bin",
        "pytorch_model-00001-of-00002.bin",
        "pytorch_model.bin.index.json",
        "training_args.bin",
    ),
    *("trainer_state.json", "all_results.json", "model.safetensors.index.json", "consolidated.safetensors"),
    *(
        "params.json",
        "modeling_own.py",
        "preprocessor_config.json",
        "model.fp16.safetensors",
        "quantize_config.json",
    ),
)


@pytest.fixture(params=["Llama", "Qwen3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Of a family that is read here, and of one that transformers reads."""
    family(request.param, num_hidden_layers=1).save_pretrained(tmp_path)
    return tmp_path


def test_harmless_files(folder: Path) -> None:
    for name in HARMLESS:
        if not (folder / name).exists():
            (folder / name).write_text("{}")
    (folder / "onnx").mkdir()
    assert load_decoder(folder, 16).op("embedding") is not None


def test_unknown_files(folder: Path) -> None:
    for name in ("extra.safetensors", "scales.json", "delta.pt"):
        (folder / name).write_text("{}")
    with pytest.raises(CheckpointError) as caught:
        load_decoder(folder, 16)
    remedy = "is not known; if it is not part of the model, move it out of the folder"
    assert str(caught.value) == "\n  ".join(
        [
            f"{folder}:",
            *(f"file {name} {remedy}" for name in ("delta.pt", "extra.safetensors", "scales.json")),
        ]
    )


@pytest.mark.parametrize(
    "names", [["adapter_config.json", "adapter_model.safetensors"], ["adapters.safetensors"]]
)
def test_an_adapter(names: list[str], folder: Path) -> None:
    for name in names:
        (folder / name).write_text("{}")
    with pytest.raises(CheckpointError) as caught:
        load_decoder(folder, 16)
    assert str(caught.value) == (
        f"{folder}: {', '.join(names)}: an adapter lies beside the model; merge it into the weights "
        "(merge_and_unload of the library peft), or move it out of the folder"
    )


def test_an_index_that_is_left_over(folder: Path) -> None:
    """model.safetensors is read, as transformers reads it."""
    tensors = load_file(folder / "model.safetensors")
    save_file({name: 2 * t for name, t in tensors.items()}, folder / "model-00001-of-00001.safetensors")
    weight_map = dict.fromkeys(tensors, "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    table = load_decoder(folder, 16).op("embedding").floats(np.arange(3))
    np.testing.assert_array_equal(table, tensors["model.embed_tokens.weight"][:3].numpy())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qk_norm": True}, "qk_norm is True, which is not supported; the field is not known"),
        ({"is_causal": False}, "is_causal is False, which is not supported; True is"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "yarn": 2}},
            "rope_parameters.yarn is 2, which is not supported; attention_factor, beta_fast, beta_slow, "
            "factor, high_freq_factor, long_factor, low_freq_factor, mrope_interleaved, mrope_section, "
            "mscale, mscale_all_dim, original_max_position_embeddings, partial_rotary_factor, rope_theta, "
            "rope_type, short_factor, truncate, type are known",
        ),
    ],
)
def test_unknown_fields(changes: dict[str, object], message: str, folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(CheckpointError, match="not supported") as caught:
        load_decoder(folder, 16)
    assert str(caught.value).removeprefix(f"{folder}:").strip().startswith(message)


def test_fields_that_say_nothing(folder: Path) -> None:
    said = {
        **{"qk_norm": False, "is_causal": True, "num_experts": 0, "quantization": None, "rope_type": "none"},
        **{"unsloth_version": "2026.1", "layers_skipped": [], "torch_dtype": "bfloat16", "use_mrope": False},
    }
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | said))
    assert load_decoder(folder, 16).op("embedding") is not None


def test_masks_of_old_checkpoints(tmp_path: Path) -> None:
    """They are made anew."""
    family("GPT2", n_layer=1).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file(load_file(path) | {"h.0.attn.bias": torch.ones(1)}, path, {"format": "pt"})
    assert load_decoder(tmp_path, 16).op("embedding") is not None


def test_tensors_that_transformers_drops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word, as a class may ask for: here with the layers that predict several tokens."""
    model = family("Qwen3", num_hidden_layers=1)
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file(load_file(path) | {"mtp.norm.weight": torch.ones(1)}, path, {"format": "pt"})
    monkeypatch.setattr(type(model), "_keys_to_ignore_on_load_unexpected", [r"^mtp\."])
    with pytest.raises(CheckpointError) as caught:
        load_decoder(tmp_path, 16)
    assert str(caught.value) == f"{tmp_path}: tensor mtp.norm.weight has no place in the model"
