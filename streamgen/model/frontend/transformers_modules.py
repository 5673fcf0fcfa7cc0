"""Models of transformers as modules: which of them are decoders, and how the others are called."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from streamgen.model.frontend.causal_model import plain_ids
from streamgen.model.frontend.examples import Example

IDS, PIXELS = "input_ids", "pixel_values"


def is_of_transformers(module: torch.nn.Module) -> bool:
    """Whether a module is a model of transformers, which is only imported if the user has done so."""
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(module, transformers.PreTrainedModel)


def generates(model: Any) -> bool:
    """Whether transformers generates texts with a model or a class of models: it is a causal language model,
    and no body without a head, no encoder, and no classifier."""
    answer: bool = model.can_generate()
    return answer


def own_example(model: Any) -> Example:
    """Ids [1, T], none of them padding, or an image of the size that the config names. TypeError for a model
    that takes anything else."""
    size, channels = (getattr(model.config, name, None) for name in ("image_size", "num_channels"))
    if model.main_input_name == PIXELS and isinstance(size, int) and isinstance(channels, int):
        image = torch.randn(1, channels, size, size, generator=torch.Generator().manual_seed(0))
        return Example((), {PIXELS: image})
    if getattr(model.config, "is_encoder_decoder", False):
        raise TypeError(
            f"example_inputs are missing: {type(model).__name__} has an encoder beside a decoder; a dict "
            "with the inputs of both is needed, such as input_ids and decoder_input_ids"
        )
    if model.main_input_name != IDS:
        raise TypeError(
            f"example_inputs are missing: {type(model).__name__} takes {model.main_input_name}; a tensor "
            f"for each input, or a dict with their names, is needed. Models that take {IDS} alone or "
            "images of one size need none"
        )
    return Example((torch.tensor([plain_ids(model)]),))


@contextmanager
def without_cache(model: torch.nn.Module) -> Iterator[None]:
    """Meanwhile the parts of a model return no cache, which a graph of a whole text has no use for."""
    configs = {id(c): c for part in model.modules() if (c := getattr(part, "config", None)) is not None}
    cached = [config for config in configs.values() if getattr(config, "use_cache", False)]
    try:
        for config in cached:
            config.use_cache = False
        yield
    finally:
        for config in cached:
            config.use_cache = True
