"""Matmuls of one engine in all formats of Gemma 3 270M's file: Q5_0, Q6_K and Q8_0 in 8 bits, Q4_K in 4."""

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize

import streamgen
from streamgen.compiler.config import CompileConfig
from streamgen.kernels.matmul.matmul import ColumnParams
from streamgen.model.frontend import import_module, load_decoder, load_feed_forward
from streamgen.model.operations import Linear
from tests.shared.decoders import MATMULS, TINY, compiled_model
from tests.unit.model.frontend.checkpoints import stored
from tests.unit.model.frontend.families import VOCABULARY
from tests.unit.model.frontend.test_gguf_families import written

SIZE = 256  # a block of Q4_K and of Q6_K
KINDS = {
    "blk.0.ffn_gate": Kind.Q4_K,
    "blk.0.ffn_up": Kind.Q5_0,
    "blk.0.ffn_down": Kind.Q6_K,
    "blk.1.ffn_gate": Kind.Q8_0,
    "blk.1.ffn_up": Kind.Q8_0,
    "blk.1.ffn_down": Kind.Q8_0,
}


def _written(path: Path) -> dict[str, np.ndarray]:
    """A file with two feed-forward blocks; what its tensors mean."""
    writer, meant = gguf.GGUFWriter(path, "llama"), {}
    for seed, (name, kind) in enumerate(KINDS.items()):
        weight = np.random.default_rng(seed).normal(size=(SIZE, SIZE)) / SIZE**0.5
        data = stored(weight.astype(np.float32), kind, seed)
        meant[name] = dequantize(data, kind).astype(np.float64)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant


@pytest.mark.slow
def test_four_formats_of_a_file_on_one_engine(tmp_path: Path) -> None:
    """Verilog gives golden's bits, and nearly the numbers of the file."""
    meant = _written(tmp_path / "blocks.gguf")
    first, second = (load_feed_forward(tmp_path / "blocks.gguf", layer) for layer in (0, 1))
    module = torch.nn.Sequential(first.gate, first.up, first.down, second.gate).eval()
    config = CompileConfig(
        name="mixed", max_tokens=1, channels=2, multipliers=64, policy="shared", n_lanes=1, lanes=1
    )
    quantised = import_module(module, torch.zeros(1, SIZE)).quantised(config.numbers(False))
    formats = [one.op.weight.format for _, one in quantised.walk() if isinstance(one.op, Linear)]
    assert formats == ["w4", "w8", "w8", "w8"]
    accelerator = streamgen.compile(module, torch.zeros(1, SIZE), config)
    (group,) = accelerator.groups
    columns = [node.params for node in group.program.graph.nodes if isinstance(node.params, ColumnParams)]
    assert [column.formats for column in columns] == [("w4", "w8")] * config.size("channels")
    x = np.random.default_rng(0).normal(size=(2, SIZE)).astype(np.float32)
    found = accelerator.run(x)
    np.testing.assert_array_equal(found, accelerator.golden(x))
    expected = np.linalg.multi_dot([x, *(weight.T for weight in list(meant.values())[:4])])
    # activations have 8 bits, and so do the weights of three matmuls
    assert np.abs(found - expected).max() <= 0.03 * np.abs(expected).max()
    accelerator.close()


@pytest.mark.campaign
@pytest.mark.long_runs
@pytest.mark.timeout(1200)
def test_a_decoder_of_four_formats(tmp_path: Path) -> None:
    """Two layers like Gemma 3's: logits of a prompt and greedy text."""
    path = tmp_path / "mixed.gguf"
    kinds = {
        **{"attn_q": Kind.Q5_0, "attn_k": Kind.Q5_0, "attn_v": Kind.Q8_0, "attn_output": Kind.Q4_K},
        **{"ffn_gate": Kind.Q4_K, "ffn_up": Kind.Q5_0, "ffn_down": Kind.Q6_K, "token_embd": Kind.Q8_0},
    }
    fields = {"embedding_length": SIZE, "feed_forward_length": SIZE, "attention.head_count": 4}
    fields |= {"attention.key_length": 64, "attention.value_length": 64}
    sizes = {"hidden_size": SIZE, "intermediate_size": SIZE, "num_attention_heads": 4, "head_dim": 64}
    written(path, "gemma3", kinds, fields, **sizes, num_hidden_layers=2)
    config = replace(TINY, name="mixed", context=32)
    graph = load_decoder(path, config.context)
    quantised = graph.quantised(config.numbers(True))
    formats = {name: quantised.op(f"layers[0].{name}").weight.format for name in MATMULS}
    assert formats == dict.fromkeys(MATMULS, "w8") | {"o": "w4", "gate": "w4"}
    model = compiled_model(graph, config)
    ids = np.random.default_rng(0).integers(0, VOCABULARY, 10)
    np.testing.assert_array_equal(model.logits(ids), model.golden.logits(ids))
    assert list(model.generate(ids[:5], 4)) == list(model.golden.generate(ids[:5], 4))
    model.close()
