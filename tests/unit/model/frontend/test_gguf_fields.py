"""What fields and tensors of a GGUF file mean, with llama.cpp's defaults; models in several files."""

import math
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from streamgen.base.errors import CheckpointError
from streamgen.model.frontend import load_decoder
from streamgen.model.frontend.gguf_architectures import ARCHITECTURES
from streamgen.model.frontend.metadata import Metadata, says_nothing
from tests.unit.model.frontend.checkpoints import llama, require_same
from tests.unit.model.frontend.test_load_gguf import gguf_file

SIZES = {
    **{"context_length": 48, "embedding_length": 96, "feed_forward_length": 72, "block_count": 6},
    **{"attention.head_count": 2, "attention.key_length": 24, "attention.layer_norm_rms_epsilon": 1e-6},
    **{"attention.sliding_window": 5},
}


def _configuration(architecture: str, **fields: Any) -> tuple[dict[str, Any], list[str]]:
    given = SIZES | fields
    metadata = Metadata(lambda key: given.get(key.removeprefix("a.")), prefix="a.")
    return ARCHITECTURES[architecture][1](metadata, ()), metadata.problems


@pytest.mark.parametrize(("architecture", "large"), [("gemma2", 46), ("gemma3", 62)])
def test_the_scale_of_a_gemma(architecture: str, large: int) -> None:
    """By the features of a head, of the models of 27 billion weights by hidden / heads."""
    assert _configuration(architecture)[0]["query_pre_attn_scalar"] == 24
    assert _configuration(architecture, block_count=large)[0]["query_pre_attn_scalar"] == 48
    for count, scale in ((6, 24), (large, 48)):
        stated = {"block_count": count, "attention.scale": float(np.float32(1 / math.sqrt(scale)))}
        assert _configuration(architecture, **stated)[1] == []
    assert _configuration(architecture, **{"attention.scale": 0.5})[1] == [
        f"a.attention.scale is 0.5, which is not supported; 0.0 or {1 / math.sqrt(24):.7g} is"
    ]


def test_defaults_are_those_of_llama_cpp() -> None:
    config, problems = _configuration("gemma3")
    assert problems == [] and config["num_key_value_heads"] == 2
    assert config["rope_parameters"]["full_attention"] == {"rope_type": "default", "rope_theta": 10000.0}
    assert _configuration("gemma2", **{"attention.sliding_window": None})[0]["sliding_window"] == 4096
    assert _configuration("gemma3", **{"attention.sliding_window": None})[1] == [
        "a.attention.sliding_window is missing"
    ]
    assert _configuration("qwen3", **{"attention.key_length": None})[0]["head_dim"] == 48
    assert _configuration("qwen2", context_length=None)[1] == ["a.context_length is missing"]


@pytest.mark.parametrize(
    ("fields", "rope"),
    [
        ({"rope.scaling.type": "none", "rope.scaling.factor": 8.0}, {"rope_type": "default"}),
        ({"rope.scaling.factor": 8.0}, {"rope_type": "linear", "factor": 8.0}),
        ({"rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 12,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 12},
        ),
    ],
)
def test_scaling(fields: dict[str, Any], rope: dict[str, Any]) -> None:
    config, problems = _configuration("qwen2", **fields)
    assert problems == [] and config["rope_parameters"] == {"rope_theta": 10000.0} | rope


def test_what_says_nothing() -> None:
    for value in (None, False, 0, 0.0, "", "none", "None", [], {}, [0, 0], [False], {"a": None}):
        assert says_nothing(value), value
    for value in (True, 1, -1, 0.5, "linear", [0, 1], {"a": 1}):
        assert not says_nothing(value), value


def test_tensors_that_change_nothing(tmp_path: Path) -> None:
    model = llama()
    tensors: dict[str, np.ndarray | None] = {
        "rope_freqs.weight": np.ones(8, np.float32),
        "output.bias": np.zeros(48, np.float32),
        "blk.0.attn_q.scale": np.ones(1, np.float32),
    }
    gguf_file(tmp_path / "neutral.gguf", model, {}, tensors=tensors)
    require_same(load_decoder(tmp_path / "neutral.gguf"), model)
    gguf_file(tmp_path / "bias.gguf", model, {}, tensors={"output.bias": np.ones(48, np.float32)})
    with pytest.raises(CheckpointError) as caught:
        load_decoder(tmp_path / "bias.gguf")
    said = "tensor output.bias has no place in a decoder of 2 layers"
    assert str(caught.value) == f"{tmp_path / 'bias.gguf'}: {said}"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "general.type",
            "adapter",
            "general.type is 'adapter'; 'model' is needed, a file with a whole model",
        ),
        ("clip.has_vision_encoder", True, "clip.has_vision_encoder is True; fields of another architecture"),
        ("adapter.lora.alpha", 16.0, "adapter.lora.alpha is 16.0; fields of another architecture"),
        ("mradermacher.quantize_version", 2, ""),
        ("general.quantization_version", 2, ""),
    ],
)
def test_fields_beside_those_of_the_architecture(key: str, value: Any, message: str, tmp_path: Path) -> None:
    path, model = tmp_path / "beside.gguf", llama()
    gguf_file(tmp_path / "plain.gguf", model, {})
    _copied(tmp_path / "plain.gguf", path, {key: value}, range(100))
    if not message:
        require_same(load_decoder(path), model)
        return
    with pytest.raises(CheckpointError, match=f"^{re.escape(str(path))}: {re.escape(message)}"):
        load_decoder(path)


def _copied(source: Path, path: Path, fields: dict[str, Any], chosen: range) -> None:
    """Some tensors of a file, in another one with more fields."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, "llama")
    for key, field in reader.fields.items():
        if key.startswith("llama."):
            fields = {key: field.contents()} | fields
    adds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in fields.items():
        if key == "general.type":
            writer.add_type(value)
        else:
            adds[type(value)](key, value)
    for index, tensor in enumerate(reader.tensors):
        if index in chosen:
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _split(folder: Path, model: Any, **changes: Any) -> list[Path]:
    """The model in three files, the first of which has no tensor, as gguf-split can write them."""
    gguf_file(folder / "whole.gguf", model, {})
    total = len(gguf.GGUFReader(folder / "whole.gguf").tensors)
    paths = [folder / f"model-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for number, (path, chosen) in enumerate(zip(paths, (range(0), range(9), range(9, total)), strict=True)):
        said = {"split.no": number, "split.count": 3, "split.tensors.count": total} | changes
        _copied(folder / "whole.gguf", path, said, chosen)
    return paths


def test_a_model_in_several_files(tmp_path: Path) -> None:
    model = llama()
    first, second, third = _split(tmp_path, model)
    require_same(load_decoder(first), model)
    with pytest.raises(CheckpointError) as caught:
        load_decoder(second)
    ending = "-00001-of-00003.gguf"
    assert (
        str(caught.value)
        == f"{second}: the model is split into 3 files; give the first, which ends with {ending}"
    )
    third.unlink()
    with pytest.raises(CheckpointError) as caught:
        load_decoder(first)
    assert str(caught.value) == f"{first}: the model is split into 3 files; {third.name} is missing"


def test_files_of_different_models(tmp_path: Path) -> None:
    first, second, third = _split(tmp_path, llama())
    third.write_bytes(second.read_bytes())
    with pytest.raises(CheckpointError) as caught:
        load_decoder(first)
    assert str(caught.value) == f"{third}: split.no is 1; 2 is needed"
    first, *_ = _split(tmp_path, llama(), **{"split.tensors.count": 7})
    with pytest.raises(CheckpointError, match=r"split\.tensors\.count is 7; the 3 files have 21 tensors$"):
        load_decoder(first)
