"""The graph of a folder with config.json and safetensors files, as transformers writes it.

The config must be that of a model type whose meaning is known in full, since names and shapes of tensors do
not tell, say, a norm with 1 + weight from one without.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from streamgen.errors import CheckpointError
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
from streamgen.graph.logical import LogicalGraph

__all__ = ["load_safetensors_decoder"]

MODEL_TYPES = ("llama", "mistral")
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
FLOATS = ("F32", "F16", "BF16")
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


def load_safetensors_decoder(folder: Path) -> LogicalGraph:
    """The decoder of a folder; CheckpointError says what is wrong."""
    config = _json(folder / "config.json")
    sizes = _sizes(folder / "config.json", config)
    files: dict[str, Any] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for path in _paths(folder):
        try:
            file = safe_open(path, framework="pt")
            for name in file.keys():  # noqa: SIM118 - the file is no mapping
                if name in files:
                    raise CheckpointError(f"{path}: tensor {name} is in another file too")
                part = file.get_slice(name)
                if part.get_dtype() not in FLOATS:
                    raise CheckpointError(
                        f"{path}: tensor {name} is {part.get_dtype()}; {', '.join(FLOATS)} can be read"
                    )
                files[name] = file
                shapes[name] = tuple(part.get_shape())
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(f"{path}: truncated or corrupt safetensors: {error}") from error

    def read(name: str) -> tuple[np.ndarray, None]:
        array = files[name].get_tensor(name).to(torch.float32).numpy()
        if not np.isfinite(array).all():
            position = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise CheckpointError(f"{folder}: tensor {name}{list(position)} is {array[position]}")
        return array, None

    return build_decoder(folder.resolve().name, Tensors(path=folder, shapes=shapes, read=read), NAMES, sizes)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file")
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: a JSON object is needed, not {type(found).__name__}")
    return found


def _paths(folder: Path) -> list[Path]:
    """The files of weights: those of the index, else model.safetensors, else all there are."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        named = _json(index).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(file, str) for file in named.values()):
            raise CheckpointError(f"{index}: weight_map must name a file for each tensor")
        paths = [folder / file for file in sorted(set(named.values()))]
    else:
        whole = folder / "model.safetensors"
        paths = [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
    if not paths:
        raise CheckpointError(f"{folder}: there is no safetensors file")
    for path in paths:
        if not path.is_file():
            raise CheckpointError(f"{path}: there is no such file")
    return paths


def _sizes(path: Path, config: dict[str, Any]) -> Sizes:
    metadata = Metadata(path, config.get)
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        raise metadata.refuse("model_type", kind, f"{' and '.join(map(repr, MODEL_TYPES))} are")
    if config.get("quantization_config"):
        raise metadata.refuse(
            "quantization_config", config["quantization_config"], f"weights of {', '.join(FLOATS)} are"
        )
    if config.get("partial_rotary_factor", 1.0) != 1.0:
        raise metadata.refuse("partial_rotary_factor", config["partial_rotary_factor"], "1.0 is")
    function = config.get("hidden_act", "silu")
    if function not in FUNCTIONS:
        raise metadata.refuse("hidden_act", function, f"{', '.join(FUNCTIONS)} are")
    context = metadata.integer("max_position_embeddings")
    window = config.get("sliding_window")
    if window is not None and metadata.integer("sliding_window") < context:
        raise metadata.refuse("sliding_window", window, f"attention to all of {context} positions is")
    hidden, heads = metadata.integer("hidden_size"), metadata.integer("num_attention_heads")
    head_dim = metadata.integer("head_dim", hidden // heads)
    if head_dim % 2:
        raise CheckpointError(f"{path}: head_dim is {head_dim}; an even number is needed")
    bias = metadata.boolean("attention_bias", False), metadata.boolean("mlp_bias", False)
    return Sizes(
        hidden=hidden,
        features=metadata.integer("intermediate_size"),
        layers=metadata.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=metadata.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        context=context,
        epsilon=metadata.number("rms_norm_eps", 1e-6),
        function=FUNCTIONS[function],
        rotation=lambda: Rotation(_scaled(path, config, head_dim, context)),
        vocabulary=metadata.integer("vocab_size"),
        tied=metadata.boolean("tie_word_embeddings", False),
        attention_bias=bias[0],
        feed_forward_bias=bias[1],
    )


def _scaled(path: Path, config: dict[str, Any], head_dim: int, context: int) -> np.ndarray:
    """Frequencies after the scaling that rope_parameters, or rope_theta and rope_scaling, ask for."""
    key = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    given = config.get(key) or {}
    if not isinstance(given, dict):
        raise CheckpointError(f"{path}: {key} is {given!r}; an object is needed")
    metadata = Metadata(path, lambda name: given.get(name))
    theta = Metadata(path, config.get).number("rope_theta", 10000.0)
    f = frequencies(metadata.number("rope_theta", theta), head_dim)
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "default":
        return f
    if kind == "linear":
        return linear_scaling(f, metadata.number("factor"))
    if kind != "llama3":
        raise metadata.refuse(f"{key}.rope_type", kind, "'default', 'linear' and 'llama3' are")
    low, high = metadata.number("low_freq_factor"), metadata.number("high_freq_factor")
    if low >= high:
        raise CheckpointError(f"{path}: low_freq_factor is {low}; it must be below high_freq_factor, {high}")
    original = metadata.integer("original_max_position_embeddings", context)
    return llama3_scaling(f, factor=metadata.number("factor"), low=low, high=high, context=original)
