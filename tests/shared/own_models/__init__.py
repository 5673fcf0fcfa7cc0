"""Models as people write them, a style a file: `build()` makes one with random weights.

Of a network, `example(n)` are the arguments for n rows. Of a language model:

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
NETWORKS = (
    "codebook",
    "dlrm",
    "experts_in_einsum",
    "experts_in_loop",
    "factorisation_machine",
    "feature_tokens",
    "fourier_features",
    "graph_network",
    "kan_radial",
    "kan_splines",
    "lora",
    "mixer",
    "tab_transformer",
)


def style(name: str) -> ModuleType:
    """The file of a style."""
    return import_module(f"tests.shared.own_models.{name}")


def built(name: str) -> torch.nn.Module:
    """A model with the same random weights each time."""
    torch.manual_seed(0)
    model: torch.nn.Module = style(name).build()
    return model.eval()


def example(name: str, rows: int) -> tuple[torch.Tensor, ...]:
    """The arguments of a network for some rows, the same each time."""
    torch.manual_seed(rows)
    made: tuple[torch.Tensor, ...] = style(name).example(rows)
    return made


def others(name: str, tokens: int) -> tuple[torch.Tensor, ...]:
    """The arguments of a model after so many ids."""
    made = getattr(style(name), "others", None)
    return () if made is None else made(tokens)


def shaped(name: str, ids: torch.Tensor) -> torch.Tensor:
    """ids [T] as a model takes them."""
    shape = getattr(style(name), "SHAPE", (1, "tokens"))
    return ids.reshape([len(ids) if extent == "tokens" else extent for extent in shape])
