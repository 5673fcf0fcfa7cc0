"""Folders of encoders and classifiers, read with the class that their config.json names."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from streamgen.base.errors import CheckpointError
from streamgen.model.frontend import import_any, import_encoder, import_pretrained, load_decoder, shapes_of
from tests.shared.sentence_encoders import write_encoder
from tests.shared.transformers_encoders import encoded, small

HEAD = "classifier.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small("Bert tokens", num_hidden_layers=1).save_pretrained(tmp_path)
    return tmp_path


def changed(folder: Path, **fields: Any) -> Path:
    """The folder with other fields of its config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
    return folder


def test_a_folder_is_its_object(folder: Path) -> None:
    """The same graph, with the same constants; `estimate` reads the same shapes."""
    read = import_pretrained(folder, encoded(4), 6)
    graph, interface = import_any(small("Bert tokens", num_hidden_layers=1), encoded(4), 6)
    assert read is not None and read[1] == interface
    assert read[0].form() == graph.form()
    assert shapes_of(folder, longest=6).features(graph.outputs[0]) == 2


def test_folders_of_language_models(tmp_path: Path) -> None:
    """Those that generate are left to `load_decoder`, and paths that are no folder, too."""
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=50, n_positions=16)
    with torch.device("meta"):
        config.architectures = ["GPT2LMHeadModel"]
    config.save_pretrained(tmp_path)
    assert import_pretrained(tmp_path) is None
    assert import_pretrained(tmp_path / "missing.gguf") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(HEAD), rf"tensor {HEAD} is missing"),
        (lambda tensors: tensors.update(other=torch.ones(2)), "tensor other has no place in the model"),
        (lambda tensors: tensors[HEAD][0].fill_(torch.inf), rf"tensor {HEAD}\[0, 0\] is inf"),
        (lambda tensors: tensors.update({HEAD: torch.ones(3)}), rf"tensor {HEAD} has shape \[3\]; \[2, 32\]"),
    ],
)
def test_bad_tensors(change: Callable[[dict[str, torch.Tensor]], Any], message: str, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=message):
        import_pretrained(folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"auto_map": {"AutoModel": "code.Model"}},
            "auto_map names code in the checkpoint, code.Model, which",
        ),
        ({"sparkle": 1}, "sparkle is 1, which is not supported; the field is not known"),
        ({"architectures": ["BertForSequenceClassification"]}, "tensor bert.pooler.dense.weight is missing"),
    ],
)
def test_bad_configs(fields: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        import_pretrained(changed(folder, **fields))


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (
            ["BertForNothing"],
            "architectures names BertForNothing, which transformers lacks; the folder is read",
        ),
        (None, "architectures names no class; the folder is read as a causal language model"),
    ],
)
def test_folders_without_a_class(named: Any, message: str, folder: Path) -> None:
    changed(folder, architectures=named)
    assert import_pretrained(folder) is None
    with pytest.raises(CheckpointError, match=message):
        load_decoder(folder)


def test_no_language_model(folder: Path) -> None:
    """As where `--calibrate` reads it."""
    with pytest.raises(CheckpointError, match="names BertForTokenClassification, which generates no texts"):
        load_decoder(folder)


def test_bad_examples(folder: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"does not run on inputs of shape .*an id may be outside its tab"
    ):
        import_pretrained(folder, torch.full((1, 3), 50))


def test_without_values(tmp_path: Path) -> None:
    """On the meta device the class of the object counts, in a config.json alone the class that it names."""
    with torch.device("meta"):
        model = small("Bert tokens", num_hidden_layers=1)
    graph = shapes_of(model)
    assert graph.features(graph.outputs[0]) == 2
    model.config.architectures = ["BertForTokenClassification"]
    model.config.save_pretrained(tmp_path)
    assert shapes_of(tmp_path / "config.json").form() == graph.form()


def test_shapes_of_an_encoder_of_sentences(tmp_path: Path) -> None:
    """As the import reads it, with its pooling, also with the fields of published folders."""
    folder = write_encoder(tmp_path)
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**said, "position_embedding_type": "absolute"}))
    graph, _ = import_encoder(folder, 8)
    assert shapes_of(folder, longest=8).form() == graph.form()
