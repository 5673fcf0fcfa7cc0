"""Folders of Llamas with random bf16 weights, of any size, as checkpoints have them."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

__all__ = ["llama_folder"]


def llama_folder(place: Path, *, layers: int, hidden: int, features: int, vocabulary: int = 64) -> Path:
    """Write a folder of two files with a tied head, heads of 32 and 2 key heads."""
    place.mkdir()
    wide = {"self_attn.q_proj": (hidden, hidden), "self_attn.o_proj": (hidden, hidden)}
    wide |= dict.fromkeys(("self_attn.k_proj", "self_attn.v_proj"), (64, hidden))
    wide |= dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (features, hidden))
    wide |= {"mlp.down_proj": (hidden, features)}
    random = np.random.default_rng(layers)
    tensors: dict[str, torch.Tensor] = {}

    def add(name: str, *shape: int) -> None:
        values = random.standard_normal(shape, np.float32) * shape[-1] ** -0.5
        tensors[f"model.{name}.weight"] = torch.from_numpy(values + (len(shape) == 1)).bfloat16()

    add("embed_tokens", vocabulary, hidden)
    add("norm", hidden)
    for layer in range(layers):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            add(f"layers.{layer}.{norm}", hidden)
        for name, shape in wide.items():
            add(f"layers.{layer}.{name}", *shape)
    names = list(tensors)
    files = {f"model-{part}.safetensors": names[part::2] for part in (0, 1)}
    for file, some in files.items():
        save_file({name: tensors[name] for name in some}, place / file)
    index = {name: file for file, some in files.items() for name in some}
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": features,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 32,
        "num_key_value_heads": 2,
        "vocab_size": vocabulary,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    }
    (place / "config.json").write_text(json.dumps(config))
    return place
