"""Torch modules of all kinds: language models by their structure, the rest operation by operation."""

import sys
from collections.abc import Sequence
from typing import Any

import torch

from streamgen.frontend.decoder import import_decoder
from streamgen.frontend.export import import_module
from streamgen.graph.logical import LogicalGraph

__all__ = ["import_any"]


def import_any(module: torch.nn.Module, example_inputs: Any = None) -> LogicalGraph:
    """The graph of a module.

    A causal language model of transformers needs no example inputs. One of one's own is told by them: ids and
    positions, int64 [1, T], and keys and values, a list of a tensor [1, kv_heads, P, head_dim] a layer; P + T
    positions are its context. For all others they are what `import_module` takes.

    Errors: those of `import_decoder` and `import_module`; TypeError when example inputs are missing.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"model is {type(module).__name__}; a torch.nn.Module, a LogicalGraph, or the path of a GGUF "
            "file or of a folder of safetensors is needed"
        )
    transformers = sys.modules.get("transformers")
    if transformers is not None and isinstance(module, transformers.PreTrainedModel):
        return import_decoder(module)
    if example_inputs is None:
        raise TypeError(
            "example_inputs are missing: one tensor for each input of the module; only language models of "
            "transformers need none"
        )
    given = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    if len(given) == 4 and isinstance(given[0], torch.Tensor) and isinstance(given[2], Sequence):
        return import_decoder(module, **_sizes(*given))  # type: ignore[arg-type]
    return import_module(module, given)


def _sizes(ids: Any, positions: Any, keys: Any, values: Any) -> dict[str, int]:
    """What the example inputs of a language model say of its cache."""
    tensors = [*keys, *values]
    if not tensors or not all(isinstance(one, torch.Tensor) and one.ndim == 4 for one in tensors):
        raise TypeError("keys and values must be lists of a tensor [1, kv_heads, P, head_dim] a layer")
    if len(keys) != len(values) or len({tuple(one.shape) for one in tensors}) != 1:
        raise ValueError("keys and values must have a tensor of one shape for each layer")
    _, kv_heads, past, head_dim = tensors[0].shape
    if ids.ndim != 2 or positions.shape != ids.shape:
        raise ValueError(f"ids and positions are {list(ids.shape)} and {list(positions.shape)}, not [1, T]")
    return {
        "layers": len(keys),
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "context": past + ids.shape[1],
    }
