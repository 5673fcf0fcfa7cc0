"""The graph of a folder with config.json and safetensors files, as transformers writes Llama and Mistral.

The config must be that of a model type whose meaning is known in full, since names and shapes of tensors do
not tell, say, a norm with 1 + weight from one without; and it must ask for a function and a rotation that are
known here, or transformers makes the model (`pretrained`), as those of all other families.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from streamgen.frontend.assembly import Rotation
from streamgen.frontend.llama import (
    Names,
    Sizes,
    Tensors,
    build_decoder,
    frequencies,
    linear_scaling,
    llama3_scaling,
)
from streamgen.frontend.metadata import Metadata
from streamgen.frontend.problems import config_problems
from streamgen.frontend.safetensors_file import TensorFolder, read_config
from streamgen.graph.logical import LogicalGraph

__all__ = ["FUNCTIONS", "NAMES", "is_llama", "load_safetensors_decoder", "sizes_of"]

MODEL_TYPES = ("llama", "mistral")
ROTATIONS = ("default", "linear", "llama3")
FUNCTIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
}
NAMES = Names(
    embedding="model.embed_tokens",
    norm="model.norm",
    head="lm_head",
    layer="model.layers.{}.",
    parts={
        "attention_norm": "input_layernorm",
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "o": "self_attn.o_proj",
        "feed_forward_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    },
    ignored=("rotary_emb.inv_freq",),
    interleaved=False,
)


def is_llama(config: Mapping[str, Any]) -> bool:
    """Whether a folder's config is one that is read here."""
    return (
        config.get("model_type") in MODEL_TYPES
        and str(config.get("hidden_act", "silu")) in FUNCTIONS
        and _kind(_rope(config)[1]) in ROTATIONS
    )


def load_safetensors_decoder(folder: Path) -> LogicalGraph:
    """The decoder of a folder; CheckpointError says what is wrong."""
    sizes = sizes_of(read_config(folder))
    found = TensorFolder(folder)

    def read(name: str) -> tuple[np.ndarray, None, None]:
        return found.floats(name), None, None

    tensors = Tensors(path=folder, shapes=found.shapes, read=read, problems=found.problems)
    return build_decoder(folder.resolve().name, tensors, NAMES, sizes)


def sizes_of(config: dict[str, Any]) -> Sizes:
    """What a config.json that is read here says, with all that is wrong in it."""
    metadata = Metadata(config.get, config_problems(config))
    context, vocabulary = metadata.integer("max_position_embeddings"), metadata.integer("vocab_size")
    window = None if config.get("sliding_window") is None else metadata.integer("sliding_window")
    hidden, heads = metadata.integer("hidden_size"), metadata.integer("num_attention_heads")
    head_dim = metadata.integer("head_dim", max(1, hidden // heads))
    if head_dim % 2 and not metadata.broken:
        metadata.note(f"head_dim is {head_dim}; an even number is needed")
    bias = metadata.boolean("attention_bias", False), metadata.boolean("mlp_bias", False)
    scaled = _scaled(metadata, config, head_dim, context)
    return Sizes(
        hidden=hidden,
        features=metadata.integer("intermediate_size"),
        layers=metadata.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=metadata.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        context=context,
        epsilon=metadata.number("rms_norm_eps", 1e-6),
        function=FUNCTIONS[config.get("hidden_act", "silu")],
        rotation=lambda: Rotation(scaled),
        vocabulary=vocabulary if config.get("vocab_size") == vocabulary else None,
        window=window if window is not None and window < context else None,
        tied=metadata.boolean("tie_word_embeddings", False),
        attention_bias=bias[0],
        feed_forward_bias=bias[1],
        problems=metadata.problems,
        broken=metadata.broken,
    )


def _rope(config: Mapping[str, Any]) -> tuple[str, Any]:
    """Where the scaling of a rotation stands, and what stands there."""
    key = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    return key, config.get(key) or {}


def _kind(given: Any) -> Any:
    """Of a rotation's scaling."""
    return given.get("rope_type", given.get("type", "default")) if isinstance(given, Mapping) else "default"


def _scaled(of: Metadata, config: dict[str, Any], head_dim: int, context: int) -> np.ndarray:
    """Frequencies after the scaling that rope_parameters, or rope_theta and rope_scaling, ask for."""
    key, given = _rope(config)
    if not isinstance(given, dict):
        of.note(f"{key} is {given!r}; an object is needed")
        given = {}
    metadata = Metadata(given.get, of.problems)
    f = frequencies(metadata.number("rope_theta", of.number("rope_theta", 10000.0)), head_dim)
    kind = _kind(given)
    if kind == "linear":
        f = linear_scaling(f, metadata.number("factor"))
    elif kind == "llama3":
        low, high = metadata.number("low_freq_factor"), metadata.number("high_freq_factor")
        original = metadata.integer("original_max_position_embeddings", context)
        factor = metadata.number("factor")
        if low < high:
            f = llama3_scaling(f, factor=factor, low=low, high=high, context=original)
        elif not metadata.broken:
            metadata.note(f"low_freq_factor is {low}; it must be below high_freq_factor, {high}")
    of.broken = of.broken or metadata.broken
    return f
