"""Language models as people write them, a style a file: `build()` makes one with random weights.

VOCABULARY: ids that it knows. CONTEXT: positions that it has, None: any number. SHAPE: of its ids,
(1, "tokens") where a file says nothing.
"""

from importlib import import_module
from types import ModuleType

import torch

STYLES = (
    "attention_module",
    "cache_buffers",
    "einsum_rearrange",
    "encoder_layers",
    "gpt_in_one_file",
    "heads_apart",
    "llama_complex",
    "shared_queries",
    "textbook_chapter",
    "windows_and_caps",
)


def style(name: str) -> ModuleType:
    """The file of a style."""
    return import_module(f"tests.shared.own_models.{name}")


def built(name: str) -> torch.nn.Module:
    """A model with the same random weights each time."""
    torch.manual_seed(0)
    model: torch.nn.Module = style(name).build()
    return model.eval()


def others(name: str, tokens: int) -> tuple[torch.Tensor, ...]:
    """The arguments of a model after so many ids."""
    made = getattr(style(name), "others", None)
    return () if made is None else made(tokens)


def shaped(name: str, ids: torch.Tensor) -> torch.Tensor:
    """ids [T] as a model takes them."""
    shape = getattr(style(name), "SHAPE", (1, "tokens"))
    return ids.reshape([len(ids) if extent == "tokens" else extent for extent in shape])
