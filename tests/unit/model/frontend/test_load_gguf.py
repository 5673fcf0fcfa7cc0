"""streamgen.model.frontend.checkpoint: decoders of GGUF files; damage is named."""

import re
import warnings
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

from sim.smollm2 import PARTS
from streamgen.base.errors import CheckpointError
from streamgen.model.frontend import load_decoder
from streamgen.model.golden_text import vocabulary_of
from tests.shared.decoders import MATMULS, is_tied

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
from tests.unit.model.frontend.checkpoints import (
    FEATURES,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LINEAR,
    LLAMA3,
    VOCABULARY,
    add_words,
    llama,
    require_same,
)

PLAIN = {"rope_type": "default", "rope_theta": 500.0}


def _neighbours(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order of llama.cpp's converter: both halves of a head dealt out in turn."""
    halves = weight.reshape(heads, 2, HEAD_DIM // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def gguf_file(
    path: Path,
    model: Any,
    kinds: dict[str, Kind],
    *,
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray | None] | None = None,
    endian: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE,
    words: int = 0,
) -> None:
    """Write a model as llama.cpp does, and give the model the weights that the file holds.

    kinds: by the start of the part's name, F32 without. metadata, tensors: changed, or left out when None.
    words: tokens of its tokenizer, 0 for none.
    """
    fields: dict[str, Any] = {
        "context_length": 96,
        "embedding_length": HIDDEN,
        "block_count": 2,
        "feed_forward_length": FEATURES,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": HEAD_DIM,
    }
    writer = gguf.GGUFWriter(path, "llama", endianess=endian)
    if words:
        add_words(writer, words)
    for key, value in (fields | (metadata or {})).items():
        adds = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
        }
        add = adds.get(type(value))
        if add is not None:
            add(f"llama.{key}", value)
    state = {name: tensor.detach() for name, tensor in model.named_parameters()}
    arrays: dict[str, np.ndarray | None] = {}
    for name, tensor in state.items():
        stem, _, suffix = name.rpartition(".")
        layer = re.match(r"model\.layers\.(\d+)\.(.*)", stem)
        if layer:
            part = next(ours for ours, theirs in PARTS.items() if theirs == layer[2])
            ours = f"blk.{layer[1]}.{part}.{suffix}"
        else:
            part = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}[
                stem
            ]
            ours = f"{part}.{suffix}"
        kind = next((kind for start, kind in kinds.items() if part.startswith(start)), Kind.F32)
        kind = Kind.F32 if tensor.ndim == 1 else kind
        data = quantize(tensor.numpy(), kind)
        tensor.copy_(torch.from_numpy(dequantize(data, kind).astype(np.float32)))
        if part in ("attn_q", "attn_k"):
            data = _neighbours(data, HEADS if part == "attn_q" else KV_HEADS)
        arrays[ours] = data
        if endian == gguf.GGUFEndian.LITTLE and tensors is None:
            writer.add_tensor(ours, data, raw_dtype=kind)
    if tensors is not None:
        for name, data in (arrays | tensors).items():
            if data is not None:
                writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"tie_word_embeddings": True}, {"attn": Kind.Q4_1, "ffn": Kind.Q4_0, "token_embd": Kind.Q8_0}),
        ({"attention_bias": True}, {"attn": Kind.F16, "ffn": Kind.Q8_0, "output": Kind.Q8_0}),
    ],
)
def test_gguf(tmp_path: Path, changes: dict[str, Any], kinds: dict[str, Kind]) -> None:
    model = llama(**changes)
    gguf_file(tmp_path / "tiny.gguf", model, kinds)
    decoder = load_decoder(tmp_path / "tiny.gguf")
    assert (decoder.name, decoder.context, vocabulary_of(decoder)) == ("tiny", 96, VOCABULARY)
    assert is_tied(decoder) == bool(changes.get("tie_word_embeddings"))
    assert not decoder.op("layers[0].rotate_q").interleaved
    for index, theirs in enumerate(model.model.layers):
        ours = {name: decoder.op(f"layers[{index}].{name}") for name in MATMULS}
        for linear in ours.values():
            assert (linear.grid is not None) == (kinds["attn"] == Kind.Q4_1)
            if linear.grid is not None:  # rows of the grid move with those of the weight
                assert np.array_equal(linear.grid[:].dequantise().astype(np.float32), linear.weight)
        # gguf rounds d * q + m twice, the grid once.
        q = ours["q"].weight
        difference = np.abs(q - theirs.self_attn.q_proj.weight.detach().numpy()).max()
        assert difference <= 2.0**-23 * np.abs(q).max()
    require_same(decoder, model)


@pytest.mark.parametrize(
    ("scaling", "stated"),
    [
        (LLAMA3, {}),
        (LINEAR, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        (LINEAR, {"rope.scale_linear": 4.0}),
        (PLAIN, {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}),
    ],
)
def test_gguf_scaling(tmp_path: Path, scaling: dict[str, Any], stated: dict[str, Any]) -> None:
    """llama3 scaling is a tensor of divisors in GGUF, linear scaling is metadata."""
    model = llama(rope_parameters=scaling)
    metadata = stated | {"rope.freq_base": float(scaling["rope_theta"])}
    tensors: dict[str, np.ndarray | None] = {}
    if scaling is LLAMA3:
        plain = 10000.0 ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        tensors["rope_freqs.weight"] = (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    gguf_file(tmp_path / "scaled.gguf", model, {}, metadata=metadata, tensors=tensors)
    require_same(load_decoder(tmp_path / "scaled.gguf"), model)


@pytest.mark.parametrize("window", [5, 96, 0])
def test_a_window(window: int, tmp_path: Path) -> None:
    """Of a Mistral, which is an architecture llama there."""
    model = llama("Mistral", sliding_window=window or None)
    gguf_file(tmp_path / "mistral.gguf", model, {}, metadata={"attention.sliding_window": window})
    decoder = load_decoder(tmp_path / "mistral.gguf")
    assert decoder.op("layers[1].attention").window == (5 if window == 5 else None)
    require_same(decoder, model)


def test_other_quantisations_ask_for_eight_bits(tmp_path: Path) -> None:
    model = llama()
    path = tmp_path / "k.gguf"
    gguf_file(
        path, model, {"attn_v": Kind.Q5_0, "ffn_up": Kind.Q5_1, "ffn_gate": Kind.F16, "attn_k": Kind.Q4_0}
    )
    decoder = load_decoder(path)
    wanted = {name: decoder.op(f"layers[1].{name}").wanted for name in ("v", "up", "gate", "k", "q")}
    assert wanted == {"v": "w8", "up": "w8", "gate": None, "k": "w4", "q": None}
    require_same(decoder, model)


@pytest.mark.parametrize(
    ("metadata", "tensors", "message"),
    [
        ({"context_length": None}, {}, ": llama.context_length is missing"),
        (
            {"attention.head_count": -0.5},
            {},
            ": llama.attention.head_count is -0.5; an integer of at least 1 is needed",
        ),
        (
            {"attention.layer_norm_rms_epsilon": float("nan")},
            {},
            ": llama.attention.layer_norm_rms_epsilon is nan; a finite number above 0 is needed",
        ),
        (
            {"block_count": 3},
            {},
            ": the metadata says 3 layers; the file has 2 (tensors like blk.0.attn_q.weight)",
        ),
        (
            {"rope.scaling.type": "yarn"},
            {},
            ": llama.rope.scaling.type is 'yarn', which is not supported; 'none', 'linear' are",
        ),
        (
            {"attention.sliding_window": -5.0},
            {},
            ": llama.attention.sliding_window is -5.0; an integer of at least 1 is needed",
        ),
        (
            {"expert_count": 8},
            {},
            ": llama.expert_count is 8, which is not supported; 0 is",
        ),
        (
            {"logit_scale": 0.25},
            {},
            ": llama.logit_scale is 0.25, which is not supported; 0.0 or 1.0 is",
        ),
        (
            {"attention.causal": False, "nextn_predict_layers": 1, "residual_scale": 1.0},
            {},
            ":\n  llama.attention.causal is False, which is not supported; True is"
            "\n  llama.nextn_predict_layers is 1, which is not supported; the field is not known",
        ),
        (
            {"attention.scale": 0.5},
            {},
            ": llama.attention.scale is 0.5, which is not supported; 0.0 or 0.25 is",
        ),
        (
            {"vocab_size": VOCABULARY + 1},
            {},
            ": llama.vocab_size is 49, which is not supported; 48 is",
        ),
        (
            {"rope.dimension_count": 18},
            {},
            ": llama.rope.dimension_count is 18; an even number up to 16 is needed",
        ),
        (
            {"attention.value_length": 8},
            {},
            ": llama.attention.value_length is 8, which is not supported; 16 is",
        ),
        (
            {},
            {
                "blk.1.ffn_up.weight": None,
                "blk.0.attn_k.weight": np.zeros((16, 64), np.float32),
                "blk.1.attn_q_norm.weight": np.zeros(16, np.float32),
            },
            ":\n  tensor blk.0.attn_k.weight has shape [16, 64]; [32, 64] is needed"
            "\n  tensor blk.1.ffn_up.weight is missing; its shape is [96, 64]"
            "\n  tensor blk.1.attn_q_norm.weight has no place in a decoder of 2 layers",
        ),
        (
            {"logit_scale": 0.25, "expert_count": 8, "attention.head_count_kv": 3},
            {"blk.1.ffn_up.weight": None},
            ":\n  llama.logit_scale is 0.25, which is not supported; 0.0 or 1.0 is"
            "\n  llama.expert_count is 8, which is not supported; 0 is"
            "\n  4 query heads cannot share 3 key heads evenly"
            "\n  tensor blk.0.attn_k.weight has shape [32, 64]; [48, 64] is needed"
            "\n  tensor blk.0.attn_v.weight has shape [32, 64]; [48, 64] is needed"
            "\n  tensor blk.1.attn_k.weight has shape [32, 64]; [48, 64] is needed"
            "\n  tensor blk.1.attn_v.weight has shape [32, 64]; [48, 64] is needed"
            "\n  tensor blk.1.ffn_up.weight is missing; its shape is [96, 64]",
        ),
        (
            {"embedding_length": None, "rope.freq_base": -1.0},
            {"blk.1.ffn_up.weight": None},
            ":\n  llama.embedding_length is missing"
            "\n  llama.rope.freq_base is -1.0; a finite number above 0 is needed"
            "\n  tensor blk.1.ffn_up.weight is missing",
        ),
        (
            {},
            {"rope_freqs.weight": np.full(3, 2.0, np.float32)},
            ": tensor rope_freqs.weight has shape [3]; [8] is needed, and all divisors must be above 0",
        ),
        (
            {},
            {"output_norm.weight": np.full(64, np.inf, np.float32)},
            ": tensor output_norm.weight[0] is inf",
        ),
    ],
)
def test_bad_gguf(tmp_path: Path, metadata: dict, tensors: dict, message: str) -> None:
    path = tmp_path / "bad.gguf"
    gguf_file(path, llama(), {}, metadata=metadata, tensors=tensors)
    with pytest.raises(CheckpointError) as caught:
        load_decoder(path)
    assert str(caught.value) == f"{path}{message}"


def test_damaged_gguf(tmp_path: Path) -> None:
    """Truncated anywhere, or any byte of the metadata wrong: an error or a decoder, never anything else."""
    whole = tmp_path / "whole.gguf"
    gguf_file(whole, llama(), {"attn": Kind.Q4_1})
    data = whole.read_bytes()
    start = gguf.GGUFReader(whole).data_offset
    path = tmp_path / "damaged.gguf"
    for size in [*range(0, start, 97), start, len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(CheckpointError, match=r"damaged\.gguf: (truncated or corrupt|not a) GGUF"):
            load_decoder(path)
    noticed = 0
    for position in range(4, start, 11):
        damaged = bytearray(data)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            load_decoder(path)
        except CheckpointError as error:
            assert "damaged.gguf" in str(error)
            noticed += 1
    assert noticed > 50


def test_other_byte_order(tmp_path: Path) -> None:
    path = tmp_path / "big.gguf"
    gguf_file(path, llama(), {}, endian=gguf.GGUFEndian.BIG)
    with pytest.raises(CheckpointError) as caught:
        load_decoder(path)
    assert str(caught.value) == f"{path}: the file is big-endian; only little-endian files can be read"


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.gguf: there is no such file$"):
        load_decoder(tmp_path / "none.gguf")
