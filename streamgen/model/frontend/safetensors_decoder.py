"""The graph of a folder with config.json and safetensors files, as transformers writes Llama and Mistral.

Only a config whose every field is known is read here, because names and shapes of tensors do not show, for
example, whether a norm multiplies by 1 + weight or by weight. Its function and its rotation must be known
too. Otherwise transformers makes the model (`pretrained`), as for all other families.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from streamgen.gateware.functions import CONFIGURED
from streamgen.model.frontend.assembly import Rotation
from streamgen.model.frontend.checkpoint_files import file_problems
from streamgen.model.frontend.config_fields import INERT, NEUTRAL
from streamgen.model.frontend.llama import (
    Names,
    Sizes,
    Tensors,
    build_decoder,
    frequencies,
    linear_scaling,
    llama3_scaling,
)
from streamgen.model.frontend.metadata import Metadata
from streamgen.model.frontend.problems import PART, config_problems
from streamgen.model.frontend.safetensors_file import TensorFolder, read_config
from streamgen.model.graph.logical import LogicalGraph
from streamgen.numbers.stored import StoredArray

MODEL_TYPES = ("llama", "mistral")
ROTATIONS = ("default", "linear", "llama3")
MISTRAL_WINDOW = 4096  # of a config that names none
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
    """Whether every field of a folder's config is known here."""
    if config.get("model_type") not in MODEL_TYPES or str(config.get("hidden_act", "silu")) not in CONFIGURED:
        return False
    key, rope = _rope(config)
    if isinstance(rope, Mapping) and _kind(rope) not in ROTATIONS:
        return False
    known: Mapping[str, Any] = rope if isinstance(rope, Mapping) else {}
    fields, inner = Metadata(config.get), Metadata(known.get)
    _sizes(fields, inner, config)
    fields.asked |= {key, PART, *INERT}
    inner.asked.add(PART)
    return not fields.unknown(config, NEUTRAL) and not inner.unknown(known, {})


def load_safetensors_decoder(folder: Path) -> LogicalGraph:
    """The decoder of a folder; CheckpointError says what is wrong."""
    sizes = sizes_of(read_config(folder))
    sizes = replace(sizes, problems=[*sizes.problems, *file_problems(folder)])
    files = TensorFolder(folder)

    def read(name: str) -> tuple[np.ndarray | StoredArray, None, None]:
        return files.stored(name) if len(files.shapes[name]) == 2 else files.floats(name), None, None

    tensors = Tensors(path=folder, shapes=files.shapes, read=read, problems=files.problems)
    return build_decoder(folder.resolve().name, tensors, NAMES, sizes)


def sizes_of(config: Mapping[str, Any]) -> Sizes:
    """The sizes in a config.json of a kind that is read here, with all its problems."""
    fields = Metadata(config.get, config_problems(config))
    key, rope = _rope(config)
    if not isinstance(rope, Mapping):
        fields.note(f"{key} is {rope!r}; an object is needed")
        rope = {}
    return _sizes(fields, Metadata(rope.get, fields.problems), config)


def _sizes(fields: Metadata, rope: Metadata, config: Mapping[str, Any]) -> Sizes:
    """The sizes. fields: of the config. rope: of the inner object that describes the rotation."""
    llama = config.get("model_type") == "llama"
    context, vocabulary = fields.integer("max_position_embeddings"), fields.integer("vocab_size")
    window = None if llama else _window(fields, config)
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", max(1, hidden // heads))
    if head_dim % 2 and not fields.broken:
        fields.note(f"head_dim is {head_dim}; an even number is needed")
    biases = [fields.boolean(key, False) if llama else False for key in ("attention_bias", "mlp_bias")]
    scaled = _scaled(fields, rope, head_dim, context)
    return Sizes(
        hidden=hidden,
        features=fields.integer("intermediate_size"),
        layers=fields.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        context=context,
        epsilon=fields.number("rms_norm_eps", 1e-6),
        function=CONFIGURED[fields.get("hidden_act") or "silu"],
        rotation=lambda: Rotation(scaled),
        vocabulary=vocabulary if config.get("vocab_size") == vocabulary else None,
        window=window if window is not None and window < context else None,
        tied=fields.boolean("tie_word_embeddings", False),
        attention_bias=biases[0],
        feed_forward_bias=biases[1],
        problems=fields.problems,
        broken=fields.broken,
    )


def _window(fields: Metadata, config: Mapping[str, Any]) -> int | None:
    """The window of a Mistral: its class has one unless the config says null."""
    stated = "sliding_window" in config and fields.get("sliding_window") is None
    return None if stated else fields.integer("sliding_window", MISTRAL_WINDOW)


def _rope(config: Mapping[str, Any]) -> tuple[str, Any]:
    """The key of the rotation's scaling and its value; transformers prefers the older key."""
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    return key, config.get(key) or {}


def _kind(rope: Mapping[str, Any]) -> Any:
    """The type of a rotation's scaling."""
    return rope.get("rope_type", rope.get("type", "default"))


def _scaled(fields: Metadata, rope: Metadata, head_dim: int, context: int) -> np.ndarray:
    """Frequencies after the scaling in rope_parameters, or in rope_theta and rope_scaling."""
    older = fields.number("rope_theta", 10000.0)
    f = frequencies(rope.number("rope_theta", older), head_dim)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    rope.get("type")
    if kind == "linear":
        f = linear_scaling(f, rope.number("factor"))
    elif kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        original = rope.integer("original_max_position_embeddings", context)
        factor = rope.number("factor")
        if low < high:
            f = llama3_scaling(f, factor=factor, low=low, high=high, context=original)
        elif not rope.broken:
            rope.note(f"low_freq_factor is {low}; it must be below high_freq_factor, {high}")
    fields.broken = fields.broken or rope.broken
    return f
