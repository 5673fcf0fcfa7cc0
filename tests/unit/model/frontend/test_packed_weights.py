"""Folders with weights that GPTQ or AWQ have packed: the model that they mean, with its own codes."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from streamgen.base.errors import CheckpointError
from streamgen.model.frontend import load_decoder
from streamgen.numbers.quantisation import Numbers
from tests.shared.decoders import is_tied, stepper
from tests.unit.model.frontend.families import VOCABULARY, family, stepper_of

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 1}
ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # column of each nibble, as AutoAWQ packs
GROUP = 32


def _packed(codes: np.ndarray, axis: int, order: Any) -> np.ndarray:
    """int32 with eight codes along an axis each: nibble by nibble, in plain Python."""
    codes = codes if axis == 0 else codes.T
    words = []
    for first in range(0, len(codes), 8):
        word = np.zeros(codes.shape[1], np.uint64)
        for nibble, place in enumerate(order):
            word |= codes[first + place].astype(np.uint64) << np.uint64(4 * nibble)
        words.append(word)
    found = np.array(words).astype(np.uint32).view(np.int32)
    return found if axis == 0 else found.T


def written_packed(
    folder: Path, method: str, name: str = "Qwen2", **said: Any
) -> tuple[Any, dict[str, np.ndarray]]:
    """A folder as the packers write it, the model that it means, and the codes [N, K] of its matmuls."""
    model = family(name, **SIZES)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    rng = np.random.default_rng(0)
    held = {}
    begin = 1 if said.get("checkpoint_format", "gptq") == "gptq" and method == "gptq" else 0
    for stem, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or stem == "lm_head":
            continue
        N, K = module.weight.shape
        codes, zeros = rng.integers(0, 16, (K, N)), rng.integers(0, 16, (K // GROUP, N))
        scales = rng.uniform(0.01, 0.03, zeros.shape).astype(np.float16)
        spread = [np.repeat(part, GROUP, axis=0) for part in (scales.astype(np.float64), zeros + begin)]
        with torch.no_grad():
            module.weight.copy_(torch.from_numpy((spread[0] * (codes - spread[1])).T))
        held[stem] = codes.T
        del tensors[f"{stem}.weight"]
        axis, order = (0, range(8)) if method == "gptq" else (1, ORDER)
        parts = {"qweight": _packed(codes, axis, order), "scales": scales}
        parts["qzeros"] = _packed(zeros, 1, order)
        if method == "gptq":
            parts["g_idx"] = (np.arange(K) // GROUP).astype(np.int32)
        tensors |= {f"{stem}.{part}": torch.from_numpy(array.copy()) for part, array in parts.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, "bits": 4, "group_size": GROUP} | said
    (folder / "config.json").write_text(json.dumps(config))
    return model, held


@pytest.mark.parametrize(
    ("method", "name", "said"),
    [
        ("gptq", "Qwen2", {"desc_act": False, "sym": False}),
        ("gptq", "Llama", {"checkpoint_format": "gptq_v2"}),
        ("awq", "Qwen2", {"version": "gemm", "zero_point": True}),
    ],
)
def test_the_model_that_it_means(method: str, name: str, said: dict[str, Any], tmp_path: Path) -> None:
    model, held = written_packed(tmp_path, method, name, **said)
    graph = load_decoder(tmp_path, 32)
    ids = np.random.default_rng(1).integers(0, VOCABULARY, 12)
    step, eager = stepper(graph), stepper_of(model)
    for some in (ids[:9], ids[9:]):
        expected = eager(some)
        assert np.abs(step(some) - expected).max() <= 1e-5 * np.abs(expected).max()
    small = graph.quantised(Numbers(by_layer={"logits": "w8"}))
    for ours, theirs in (("q", "self_attn.q_proj"), ("o", "self_attn.o_proj"), ("down", "mlp.down_proj")):
        weight = small.op(f"layers[1].{ours}").weight
        assert (weight.format, weight.group) == ("w4", GROUP)
        np.testing.assert_array_equal(weight.codes.astype(int) + 8, held[f"model.layers.1.{theirs}"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes'; only 'gptq' and 'awq' are"),
        ({"bits": 3}, "bits is 3; only 4 is"),
        ({"group_size": -1}, "group_size is -1; only 32, 64 and 128 are"),
        ({"desc_act": True}, "desc_act is True; only false is"),
        ({"quant_method": "awq", "version": "gemv"}, "version is 'gemv'; only 'gemm' is"),
        (
            {"checkpoint_format": "marlin"},
            "checkpoint_format is 'marlin'; only 'gptq' and 'gptq_v2' and 'gemm' are",
        ),
    ],
)
def test_what_is_packed_otherwise(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    said = {"quant_method": "gptq", "bits": 4, "group_size": 128} | changes
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": said}))
    with pytest.raises(CheckpointError) as caught:
        load_decoder(tmp_path)
    assert str(caught.value) == f"{tmp_path}: quantization_config.{message} supported"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dynamic": {"+:.*down.*": {"bits": 8}}}, "dynamic is {'+:.*down.*': {'bits': 8}}"),
        ({"rotation": "hadamard"}, "rotation is 'hadamard'"),
        ({"dynamic": {}, "rotation": None, "sym": False, "damp_percent": 0.05, "pack_dtype": "int32"}, ""),
    ],
)
def test_fields_that_are_not_known(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    """As the overrides of single layers of the library GPTQModel."""
    written_packed(tmp_path, "gptq", "Qwen2", **changes)
    if not message:
        assert load_decoder(tmp_path, 32).op("embedding") is not None
        return
    with pytest.raises(CheckpointError) as caught:
        load_decoder(tmp_path)
    said = f"quantization_config.{message}, which is not supported; the field is not known"
    assert str(caught.value) == f"{tmp_path}: {said}"


@pytest.mark.slow
def test_tensors_that_do_not_fit(tmp_path: Path) -> None:
    written_packed(tmp_path, "gptq")
    file, stem = tmp_path / "model.safetensors", "model.layers.0.mlp.up_proj"
    whole = load_file(file)
    for changed, message in (
        ({f"{stem}.scales": None}, rf"tensor {stem}.scales is missing"),
        ({f"{stem}.scales": whole[f"{stem}.scales"][:1]}, r"zeros \[2, 96\] and scales \[1, 96\]"),
        ({f"{stem}.g_idx": whole[f"{stem}.g_idx"].flip(0)}, "the columns of a group are not consecutive"),
        ({f"{stem}.qzeros": torch.zeros(2, 12)}, f"tensor {stem}.qzeros is F32; I32, I64 can be read"),
        (
            {f"{stem}.scales": torch.zeros(2, 96).int()},
            f"tensor {stem}.scales is I32; F64, F32, F16, BF16 can",
        ),
        ({f"{stem}.scales": torch.zeros(2)}, rf"tensor {stem}.scales has shape \[2\]; two dimensions"),
        (
            {"model.norm.weight": torch.zeros(64).int()},
            "tensor model.norm.weight is I32; F64, F32, F16, BF16 can",
        ),
        ({"model.norm.weight": None}, "tensor model.norm.weight is missing"),
        ({"extra.weight": torch.zeros(2)}, "tensor extra.weight has no place in the model"),
        ({"model.norm.weight": torch.zeros(3)}, r"model.norm.weight has shape \[3\]; \[64\] is needed"),
    ):
        tensors = {name: tensor for name, tensor in (whole | changed).items() if tensor is not None}
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, file, {"format": "pt"})
        with pytest.raises(CheckpointError) as caught:
            load_decoder(tmp_path)
        assert re.search(message, str(caught.value)), str(caught.value)


def test_a_head_that_is_tied(tmp_path: Path) -> None:
    """One that is written beside its embedding must be that."""
    written_packed(tmp_path, "gptq")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    tensors = load_file(tmp_path / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    save_file(tensors | {"lm_head.weight": embedding.clone()}, tmp_path / "model.safetensors")
    assert is_tied(load_decoder(tmp_path, 16))
    save_file(tensors | {"lm_head.weight": embedding + 1}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        load_decoder(tmp_path, 16)
