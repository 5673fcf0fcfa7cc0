"""Models of transformers as modules: which of them are decoders, and how the others are called."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from streamgen.model.frontend.causal_model import plain_ids
from streamgen.model.frontend.examples import Example

IDS = "input_ids"


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
    """Ids [1, T], none of them padding. TypeError for a model that takes anything else."""
    if model.main_input_name != IDS:
        raise TypeError(
            f"example_inputs are missing: {type(model).__name__} takes {model.main_input_name}; one tensor "
            f"for each input, or a dict with their names, is needed. Only models that take {IDS} alone need "
            "none"
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
