"""Folders of safetensors of any family; tensors that do not fit, and code that must not run, are named."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from streamgen.base.errors import CheckpointError
from streamgen.model.frontend import load_decoder
from tests.shared.decoders import stepper
from tests.unit.model.frontend.families import CONTEXT, FAMILIES, VOCABULARY, family, stepper_of

CHIEF = ("Mistral", "Gemma2")  # the first is read without transformers
NAMES = [name if name in CHIEF else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_is_its_model(name: str, tmp_path: Path) -> None:
    model = family(name)
    model.save_pretrained(tmp_path)
    graph = load_decoder(tmp_path, 32)
    assert (graph.name, graph.context) == (tmp_path.name, CONTEXT if name in ("Llama", "Mistral") else 32)
    ids = np.random.default_rng(1).integers(0, VOCABULARY, 12)
    step, eager = stepper(graph), stepper_of(model)
    for some in (ids[:9], ids[9:]):
        expected = eager(some)
        assert np.abs(step(some) - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    family("Qwen3", num_hidden_layers=1).save_pretrained(path)
    return path


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def _change(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_all_tensors_that_do_not_fit_are_in_one_error(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.0.self_attn.q_norm.weight"]
    tensors["model.layers.0.mlp.down_proj.weight"] = torch.zeros(4, 4)
    save_file({**tensors, "extra.bias": torch.zeros(3)}, path, {"format": "pt"})
    with pytest.raises(CheckpointError) as caught:
        load_decoder(folder)
    assert str(caught.value).splitlines() == [
        f"{folder}:",
        "  tensor model.layers.0.self_attn.q_norm.weight is missing",
        "  tensor extra.bias has no place in the model",
        "  tensor model.layers.0.mlp.down_proj.weight has shape [4, 4]; [48, 72] is needed",
    ]


def test_pickled_weights_are_not_read(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"transformers cannot read it: .*safetensors"):
        load_decoder(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "no such model"}, ": transformers cannot read it: "),
        ({"num_attention_heads": "5"}, ": transformers cannot read it: "),
    ],
)
def test_configs_that_cannot_be_read(folder: Path, changes: dict[str, object], message: str) -> None:
    _change(folder, **changes)
    with pytest.raises(CheckpointError) as caught:
        load_decoder(folder)
    assert str(caught.value).startswith(f"{folder}{message}")
