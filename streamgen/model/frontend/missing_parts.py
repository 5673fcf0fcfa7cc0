"""Parts of a language model that are not supported yet, by their names in the literature.

They are detected by structure: by the configuration, the modules, and the cache that the model makes, never
by a class name. A part is only a reason for a refusal: a model that can be compiled is never refused because
of a part.
"""

import re
import sys
from collections.abc import Iterator
from typing import Any

import torch

from streamgen.model.frontend.causal_model import ModelRun, values_of
from streamgen.model.frontend.refusals import MissingPart

STATES = ("state", "cache_params")
INPUTS = {
    "image": ("vision_config", "image_token_id"),
    "audio": ("audio_config", "audio_encoder", "audio_token_id"),
}
DECISIONS = "a decision that depends on values"
NO_CACHE = "continuing a text from a cache of keys and values"
ENDINGS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "num_decoder_layers")


def subject_of(model: Any) -> str:
    """The name and size of a model: `Mixtral, 32 layers`."""
    name = type(model).__name__
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    said = values_of(model.config)
    layers = next((said[key] for key in LAYERS if type(said.get(key)) is int), None)
    return name if layers is None else f"{name}, {layers} layer{'s' if layers != 1 else ''}"


def missing_parts(model: Any, probe: ModelRun) -> tuple[MissingPart, ...]:
    """Parts of a model of transformers that may be the reason for its refusal."""
    parts = [*_of_cache(model, probe), *_of_modules(model), *_of_inputs(model)]
    if probe.reason and not parts:
        name = "a model that needs more than token ids" if probe.cached else NO_CACHE
        parts.append(MissingPart(name=name, detail=probe.reason))
    return tuple(parts)


def _of_cache(model: Any, probe: ModelRun) -> Iterator[MissingPart]:
    said = values_of(model.config)
    latent = said.get("kv_lora_rank")
    if latent:
        yield MissingPart(
            name="latent attention (MLA)", detail=f"the configuration has kv_lora_rank {latent}"
        )
    layers = list(getattr(probe.cache, "layers", None) or [])
    recurrent = _recurrent(model)
    if recurrent or probe.name in STATES:
        yield MissingPart(name="recurrent state", detail=_places(recurrent, probe.name))
    elif probe.reason:
        return
    elif probe.name not in ("past_key_values", ""):
        yield MissingPart(name="a cache other than keys and values", detail=f"the model returns {probe.name}")
    elif not probe.name:
        yield MissingPart(name="a model without a cache", detail="it returns logits alone")
    indexed = [n for n, layer in enumerate(layers) if any("indexer" in key for key in vars(layer))]
    if indexed:
        yield MissingPart(name="sparse attention", detail=f"an index of keys {_places(indexed, '')}")
    if probe.sizes is not None and not latent:
        uneven = [index for index, sizes in enumerate(probe.sizes) if sizes.keys != sizes.values]
        if uneven:
            keys, values = probe.sizes[uneven[0]].keys, probe.sizes[uneven[0]].values
            yield MissingPart(
                name="keys and values of different sizes",
                detail=f"{_places(uneven, '')} keys are {_heads(keys)}, values {_heads(values)}",
            )


def _of_modules(model: Any) -> Iterator[MissingPart]:
    said = values_of(model.config)
    modules = dict(model.named_modules())
    experts = {
        value for key, value in said.items() if re.fullmatch(r"\w*experts", key) and type(value) is int
    }
    if any(count > 1 for count in experts):
        holders = dict.fromkeys(
            path.rpartition(".")[0]
            for path, module in modules.items()
            if _is_of_experts(path.rpartition(".")[2], module, experts)
        )
        outermost = [path for path in holders if not any(path.startswith(f"{other}.") for other in holders)]
        if outermost:
            yield MissingPart(name="mixture of experts", modules=tuple(outermost))
    convolutions = [
        path for path, module in modules.items() if isinstance(module, torch.nn.Conv1d | torch.nn.Conv2d)
    ]
    if convolutions and not _recurrent(model):  # those of a recurrent model belong to its state
        yield MissingPart(name="convolution", modules=tuple(convolutions))


def _of_inputs(model: Any) -> Iterator[MissingPart]:
    said = model.config.to_dict()
    kinds = [kind for kind, keys in INPUTS.items() if any(said.get(key) is not None for key in keys)]
    if kinds:
        yield MissingPart(
            name=f"{' and '.join(kinds)} inputs", detail="give only the language model inside the model"
        )


def _recurrent(model: Any) -> list[int]:
    """Layers for which transformers keeps a state instead of keys and values, or in addition to them."""
    try:
        cache = sys.modules["transformers"].DynamicCache(config=model.config)
    except Exception:  # noqa: BLE001 - of a configuration that lacks what transformers looks for there
        return []
    return [index for index, layer in enumerate(cache.layers) if hasattr(layer, "update_recurrent_state")]


def _is_of_experts(name: str, module: torch.nn.Module, counts: set[int]) -> bool:
    """Whether a module holds the weights of all experts."""
    if "expert" in name and "shared" not in name:
        return True
    return any(p.ndim == 3 and p.shape[0] in counts for p in module._parameters.values() if p is not None)


def _places(layers: list[int], name: str) -> str:
    if not layers:
        return f"the model returns {name}"
    return (
        f"in {len(layers)} layers, first in layer {layers[0]}" if len(layers) > 1 else f"in layer {layers[0]}"
    )


def _heads(sizes: tuple[int, int]) -> str:
    return f"{sizes[0]} heads of {sizes[1]}"
