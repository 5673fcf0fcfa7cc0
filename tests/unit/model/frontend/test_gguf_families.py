"""GGUF files of architectures that transformers reads: the model that was written, with its grids."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize

from streamgen.base.errors import CheckpointError
from streamgen.model.frontend import load_decoder
from streamgen.model.frontend.gguf_file import open_gguf, read_tensor
from streamgen.model.graph.logical import LogicalGraph
from streamgen.numbers.quantisation import Numbers
from tests.shared.decoders import stepper
from tests.unit.model.frontend.checkpoints import add_words, stored
from tests.unit.model.frontend.families import CONTEXT, VOCABULARY, family, stepper_of

BLOCK = 256  # weights of a block of Q4_K
FIELDS = {
    "context_length": CONTEXT,
    "embedding_length": 48,
    "feed_forward_length": 72,
    "attention.head_count": 3,
    "attention.head_count_kv": 1,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 10000.0,
    "vocab_size": VOCABULARY,
}
GEMMA = {"attention.key_length": 24, "attention.value_length": 24, "attention.sliding_window": 5}
NOT_OF_GPT2 = dict.fromkeys(
    ("attention.head_count_kv", "attention.layer_norm_rms_epsilon", "rope.freq_base", "vocab_size")
)
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "qwen2": ("Qwen2", {}, {}),
    "qwen3": ("Qwen3", {"head_dim": 128}, {"attention.key_length": 128}),
    "gemma2": (
        "Gemma2",
        {"query_pre_attn_scalar": 24, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        GEMMA | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3": ("Gemma3", {"query_pre_attn_scalar": 24}, GEMMA | {"rope.freq_base": 1e6}),
    "phi3": (
        "Phi3",
        {"sliding_window": 5, "vocab_size": 32064},  # the class has its padding at 32,000
        {
            **{"vocab_size": 32064, "rope.dimension_count": 16, "attention.sliding_window": 5},
            **{"rope.scaling.original_context_length": 4096, "attention.layer_norm_rms_epsilon": 1e-5},
        },
    ),
    "gpt2": (
        "GPT2",
        {},
        NOT_OF_GPT2 | {"attention.layer_norm_epsilon": 1e-5},
    ),
}


def written(
    path: Path,
    architecture: str,
    kinds: dict[str, Kind] | None = None,
    fields: dict[str, Any] | None = None,
    dropped: str = "",
    integers: str = "",
    words: int = 0,
    **changes: Any,
) -> Any:
    """A file as llama.cpp's converter writes it; the model gets the weights that the file holds.

    kinds: of tensors by the start of their names, F32 without. dropped: a tensor that is left out.
    integers: one that has integers instead. words: tokens of its tokenizer, 0 for one that says no more.
    """
    name, own, more = MODELS[architecture]
    model = family(name, **own | changes)
    count = model.config.num_hidden_layers
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (FIELDS | {"block_count": count} | more | (fields or {})).items():
        if value is not None:
            add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
            add(f"{architecture}.{key}", value)
    if words:
        add_words(writer, words)
    else:
        writer.add_token_list([str(token) for token in range(model.config.vocab_size)])
    kind_of = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kind_of[architecture], count)
    for full, parameter in model.named_parameters():
        stem, _, suffix = full.rpartition(".")
        ours = f"{names.get_name(stem)}.{suffix}"
        kind = next((k for start, k in (kinds or {}).items() if start in ours), Kind.F32)
        array = parameter.detach().numpy()
        turned = architecture == "gpt2" and full.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
        array = array.T if turned else array
        data = stored(array, kind, len(ours))
        with torch.no_grad():
            held = torch.from_numpy(dequantize(data, kind).astype(np.float32))
            parameter.copy_(held.T if turned else held)
        if architecture.startswith("gemma") and "norm" in ours:
            data = data + 1
        if ours == integers:
            data, kind = np.zeros(data.shape, np.int32), Kind.I32
        if ours != dropped:
            writer.add_tensor(ours, np.ascontiguousarray(data), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _same(graph: LogicalGraph, model: Any) -> None:
    ids = np.random.default_rng(1).integers(0, VOCABULARY, 12)
    step, eager = stepper(graph), stepper_of(model)
    for some in (ids[:9], ids[9:]):
        expected = eager(some)
        assert np.abs(step(some) - expected).max() <= 1e-5 * np.abs(expected).max()


CHIEF = ("gemma3", "gpt2")


@pytest.mark.parametrize(
    "architecture",
    [one if one in CHIEF else pytest.param(one, marks=pytest.mark.slow) for one in MODELS],
)
def test_a_file_is_its_model(architecture: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    model = written(path, architecture)
    graph = load_decoder(path, 32)
    assert (graph.name, graph.context) == ("model", 32)
    _same(graph, model)


WIDE = {"hidden_size": BLOCK, "intermediate_size": 2 * BLOCK}


def test_each_matmul_asks_for_what_its_tensor_has(tmp_path: Path) -> None:
    """Grids of four bits are kept; layers that become one body have the widest format of them."""
    path = tmp_path / "mixed.gguf"
    kinds = {
        **{"attn_output": Kind.Q4_K, "attn_q": Kind.Q5_0, "ffn_up": Kind.Q4_0, "ffn_gate": Kind.F16},
        **{"blk.1.ffn_down": Kind.Q8_0, "blk.0.ffn_down": Kind.Q4_K, "token_embd": Kind.Q8_0},
    }
    fields = {"embedding_length": BLOCK, "feed_forward_length": 2 * BLOCK, "attention.head_count": 2}
    model = written(path, "qwen3", kinds, fields, **WIDE, num_attention_heads=2, tie_word_embeddings=True)
    graph = load_decoder(path)
    _same(graph, model)
    assert graph.by_name["layers"].op.period == 1
    wanted = {"q": "w8", "k": None, "o": "w4", "up": "w4", "gate": None, "down": "w8"}
    for layer in (0, 1):
        found = {name: graph.op(f"layers[{layer}].{name}") for name in wanted}
        assert {name: op.wanted for name, op in found.items()} == wanted
        assert {name for name, op in found.items() if op.grid} == {"o", "up"}
    assert graph.op("logits").asked == "w8" and graph.op("logits").grid is None
    small = graph.quantised(Numbers())
    assert small.op("layers[1].down").weight.format == "w8"
    codes = small.op("layers[1].o").weight.codes  # those of the file
    (tensor,) = (t for t in open_gguf(path).tensors if t.name == "blk.1.attn_output.weight")
    nibbles = np.asarray(tensor.data).reshape(BLOCK, 1, 144)[..., 16:].reshape(BLOCK, 4, 32)
    stored = np.stack([nibbles & 15, nibbles >> 4], axis=2).reshape(BLOCK, BLOCK)
    np.testing.assert_array_equal(codes.astype(int) + 8, stored)


def test_grids_of_transposed_weights(tmp_path: Path) -> None:
    """GPT-2 multiplies with [K, N], files hold [N, K]."""
    path = tmp_path / "transposed.gguf"
    kinds = {"ffn_up": Kind.Q4_1, "attn_qkv": Kind.Q8_0}
    fields = {"embedding_length": 96, "feed_forward_length": 192}
    model = written(path, "gpt2", kinds, fields, n_embd=96, n_inner=192)
    graph = load_decoder(path, 32)
    _same(graph, model)
    up = graph.op("layers[0].up")
    np.testing.assert_array_equal(up.grid.dequantise().astype(np.float32), up.weight)
    assert (up.wanted, graph.op("layers[0].q").wanted) == ("w4", "w8")


def test_grid_of_q4_k_is_what_the_library_dequantises(tmp_path: Path) -> None:
    path = tmp_path / "k.gguf"
    fields = {"embedding_length": BLOCK, "feed_forward_length": 2 * BLOCK, "attention.head_count": 2}
    kinds = {"ffn_up": Kind.Q4_K, "ffn_down": Kind.Q4_K}
    written(path, "qwen2", kinds, fields, **WIDE, num_attention_heads=2)
    for tensor in open_gguf(path).tensors:
        if tensor.tensor_type == Kind.Q4_K:
            found = read_tensor(path, tensor)
            assert found.grid is not None and (found.grid.group, found.asked) == (32, None)
            np.testing.assert_array_equal(found.array, dequantize(tensor.data, Kind.Q4_K))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "dropped", "message"),
    [
        (
            {"attn_logit_softcapping": 20.0},
            "",
            "gemma3.attn_logit_softcapping is 20.0, which is not supported; 0.0 is",
        ),
        (
            {"attention.value_length": 16},
            "",
            "gemma3.attention.value_length is 16, which is not supported; 24 is",
        ),
        ({"expert_count": 4}, "", "gemma3.expert_count is 4, which is not supported"),
        (
            {"expert_count": 4, "attention.value_length": 16},
            "blk.3.ffn_up.weight",
            ":\n  gemma3.attention.value_length is 16, which is not supported; 24 is"
            "\n  gemma3.expert_count is 4, which is not supported; 0 is"
            "\n  tensor model.layers.3.mlp.up_proj.weight is missing",
        ),
        ({}, "blk.3.ffn_up.weight", ": tensor model.layers.3.mlp.up_proj.weight is missing"),
        (
            {"embedding_length": 24},
            "",
            "\n  tensor model.embed_tokens.weight has shape [71, 48]; [71, 24] is needed",
        ),
    ],
)
def test_what_does_not_fit(fields: dict[str, Any], dropped: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.gguf"
    written(path, "gemma3", None, fields, dropped)
    with pytest.raises(CheckpointError) as caught:
        load_decoder(path)
    assert str(caught.value).startswith(f"{path}:") and message in str(caught.value)


def test_a_window_that_no_layer_has(tmp_path: Path) -> None:
    """No file says which layers of a Qwen2 have one."""
    path = tmp_path / "qwen2.gguf"
    written(path, "qwen2", None, {"attention.sliding_window": 5})
    with pytest.raises(CheckpointError) as caught:
        load_decoder(path, 32)
    said = "qwen2.attention.sliding_window is 5, which is not supported; 0 is"
    assert str(caught.value) == f"{path}: {said}"


def test_unknown_architecture(tmp_path: Path) -> None:
    path = tmp_path / "grok.gguf"
    writer = gguf.GGUFWriter(path, "grok")
    writer.add_tensor("output.weight", np.zeros((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"the architecture is 'grok'; .*gemma3.*qwen3.* can be read$"):
        load_decoder(path)
