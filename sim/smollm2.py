"""SmolLM2-135M-Instruct as transformers has it, with the weights of the GGUF file."""

import warnings
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize

from streamgen.model.frontend import default_checkpoint

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

__all__ = ["PARTS", "eager_smollm2"]

PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
"""Parts of a layer, by their names in GGUF files: their names in transformers."""


def eager_smollm2() -> Any:
    """LlamaForCausalLM in float32, its weights as gguf itself dequantises those of the file."""
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    )
    with torch.device("meta"):
        made = transformers.LlamaForCausalLM(config)
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    state = {}
    for tensor in gguf.GGUFReader(default_checkpoint()).tensors:
        weight = np.array(dequantize(tensor.data, tensor.tensor_type), np.float32)
        stem = tensor.name.removesuffix(".weight")
        if stem.startswith("blk."):
            _, index, part = stem.split(".")
            if part in ("attn_q", "attn_k"):  # llama.cpp has the rows of a rotated pair side by side
                weight = weight.reshape(-1, 32, 2, 576).swapaxes(1, 2).reshape(-1, 576)
            stem = f"model.layers.{index}.{PARTS[part]}"
        state[f"{names.get(stem, stem)}.weight"] = torch.from_numpy(weight)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    made.load_state_dict(state, assign=True)
    made.tie_weights()
    made.model.rotary_emb = type(made.model.rotary_emb)(config)  # its buffers are not in the file
    return made.eval()
