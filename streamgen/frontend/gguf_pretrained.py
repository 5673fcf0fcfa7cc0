"""Decoders of GGUF files of all architectures that transformers reads.

Its classes say what the metadata mean and its own reader undoes what the converters of llama.cpp do to
tensors. Each matmul then says how its tensor is held in the file: `weight_grid`, the grid of a 4-bit tensor,
and `weight_format`, "w8" where another quantisation asks for it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, GGUFReader, get_tensor_name_map

from streamgen.errors import CheckpointError
from streamgen.extras import needed
from streamgen.frontend.gguf_file import (
    architecture_of,
    asked_of,
    field_of,
    has_grid,
    lent,
    read_tensor,
    unreadable_tensors,
)
from streamgen.frontend.pretrained import attention_of, imported, quiet, tensor_problems, unreadable
from streamgen.frontend.problems import refusal
from streamgen.graph.logical import LogicalGraph
from streamgen.operations import Attention

__all__ = ["load_gguf_pretrained"]

# Fields that transformers takes no notice of, and the attributes of its config that must say the same.
ALSO = {
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attention.value_length": "head_dim",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.dimension_count": "head_dim",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
}
WINDOW = "attention.sliding_window"
TIED = "token_embd"  # what the head reads where it has no tensor of its own


def load_gguf_pretrained(path: Path, reader: GGUFReader, context: int | None = None) -> LogicalGraph:
    """The decoder of a file, for texts of up to `context` positions.

    CheckpointError names all tensors that are missing, misshapen, of another type or without a place, fields
    whose meaning is not known, and architectures that transformers does not know.
    """
    architecture = architecture_of(path, reader)
    with needed(f"a GGUF file of architecture {architecture}"):
        import accelerate  # type: ignore[import-untyped]  # noqa: F401
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
    if architecture not in GGUF_CONFIG_MAPPING:
        known = ", ".join(sorted(GGUF_CONFIG_MAPPING.keys() - {"general", "tokenizer"}))
        raise CheckpointError(f"{path}: the architecture is {architecture!r}; {known} can be read")
    problems: list[str] = []
    try:
        with quiet(), lent(reader):
            config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
            window = _complete(path, reader, config, architecture)
            problems += _unknown(path, reader, config, architecture, GGUF_CONFIG_MAPPING[architecture])
            config._attn_implementation = attention_of(config)
            model, info = AutoModelForCausalLM.from_pretrained(
                path.parent,
                config=config,
                gguf_file=path.name,
                dtype=torch.float32,
                local_files_only=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except CheckpointError:
        raise
    except Exception as error:  # transformers documents no set of exceptions
        words = next((int(t.shape[1]) for t in reader.tensors if t.name == f"{TIED}.weight"), None)
        raise refusal(path, problems, [unreadable(error)], vocabulary=words) from error
    if not any(tensors := [*tensor_problems(info), unreadable_tensors(reader.tensors)]):
        _mark(path, reader, architecture, model)
    name = field_of(path, reader, "general.name")
    name = name if isinstance(name, str) else path.stem

    def seen(graph: LogicalGraph) -> Sequence[str]:
        if not window or window >= graph.context or window in _windows(graph):
            return ()
        return [f"{architecture}.{WINDOW} is {window!r}, which is not supported: no layer has it"]

    return imported(model, path, problems, *tensors, context=context, name=name, seen=seen)


def _complete(path: Path, reader: GGUFReader, config: Any, architecture: str) -> Any:
    """Give a config what transformers does not read for it: features of a head, and a window, which comes
    back. Whether the model has it, its graph tells."""
    if getattr(config, "head_dim", None) is None:
        config.head_dim = config.hidden_size // config.num_attention_heads
    window = field_of(path, reader, f"{architecture}.{WINDOW}")
    if getattr(config, "sliding_window", window) is None:
        config.sliding_window = window or None
    return window


def _windows(graph: LogicalGraph) -> set[int | None]:
    return {operation.op.window for _, operation in graph.walk() if isinstance(operation.op, Attention)}


def _unknown(path: Path, reader: GGUFReader, config: Any, architecture: str, read: Any) -> list[str]:
    """Fields of the model that change what it means and are not read."""
    prefix, problems = f"{architecture}.", []
    for key in reader.fields:
        name = key.removeprefix(prefix)
        if not key.startswith(prefix) or read.get(name) is not None:
            continue
        value = field_of(path, reader, key)
        meant = getattr(config, ALSO[name], None) if name in ALSO else None
        if meant != value:
            said = f"; {meant} is" if name in ALSO and meant is not None else ""
            problems.append(f"{key} is {value!r}, which is not supported{said}")
    return problems


def _mark(path: Path, reader: GGUFReader, architecture: str, model: torch.nn.Module) -> None:
    """Say of each matmul how its tensor is held."""
    kinds = {name: kind for kind, name in MODEL_ARCH_NAMES.items()}
    names = get_tensor_name_map(kinds[architecture], model.config.num_hidden_layers)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for module_path, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.ndim != 2 or isinstance(module, torch.nn.Embedding):
            continue
        name = names.get_name(module_path)
        tensor = tensors.get(f"{name}.weight") or tensors.get(f"{TIED}.weight" if name == "output" else "")
        if tensor is None:
            continue
        if has_grid(tensor):
            found, given = read_tensor(path, tensor), weight.detach().numpy()
            if np.array_equal(found.array, given) or np.array_equal(found.array, given.T):  # of GPT-2
                module.weight_grid = found.grid
            else:  # a grid that the library's reader turned needs more bits
                module.weight_format = "w8"
        elif asked := asked_of(tensor):
            module.weight_format = asked
