"""Decoders of GGUF files whose models are made by transformers.

`gguf_architectures` defines the meaning of the fields. transformers' own reader undoes the changes that the
converters of llama.cpp make to tensors. Tensors for which the reader has no place would be dropped; here they
are refused by name.

Each matmul then gets the format of its tensor in the file: `weight_grid`, the grid of a 4-bit tensor, and
`weight_format`, "w8" if another quantisation asks for it.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, GGUFReader, get_tensor_name_map

from streamgen.base.errors import CheckpointError
from streamgen.base.extras import needed
from streamgen.model.frontend.gguf_architectures import ARCHITECTURES
from streamgen.model.frontend.gguf_fields import fields_of, other_fields
from streamgen.model.frontend.gguf_file import (
    architecture_of,
    asked_of,
    changes_nothing,
    field_of,
    has_grid,
    lent,
    read_tensor,
    unreadable_tensors,
)
from streamgen.model.frontend.metadata import Metadata
from streamgen.model.frontend.pretrained import attention_of, imported, quiet, tensor_problems, unreadable
from streamgen.model.frontend.problems import refusal
from streamgen.model.graph.logical import LogicalGraph
from streamgen.numbers.weights import BYTES

HEAD, TIED = "output", "token_embd"  # the head reads the latter if it has no tensor of its own


def load_gguf_pretrained(path: Path, reader: GGUFReader, context: int | None = None) -> LogicalGraph:
    """The decoder of a file, for texts of up to `context` positions.

    CheckpointError names all tensors that are missing, of the wrong shape or type, or without a place, fields
    whose meaning is not known, and architectures that transformers does not know.
    """
    architecture = architecture_of(path, reader)
    if architecture not in ARCHITECTURES:
        known = ", ".join(sorted([*ARCHITECTURES, "llama"]))
        raise CheckpointError(f"{path}: the architecture is {architecture!r}; {known} can be read")
    with needed(f"a GGUF file of architecture {architecture}"):
        import accelerate  # type: ignore[import-untyped]  # noqa: F401
        from transformers import AutoModelForCausalLM
    fields = fields_of(path, reader)
    rows = next((int(t.shape[1]) for t in reader.tensors if t.name == f"{TIED}.weight"), None)
    config = _config(path, reader, fields, rows)
    if fields.broken:
        raise refusal(path, fields.problems, vocabulary=rows)
    try:
        with quiet(), lent(reader):
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
    except Exception as error:  # transformers documents no set of exceptions
        raise refusal(path, fields.problems, [unreadable(error)], vocabulary=rows) from error
    tensors = [*tensor_problems(info), _without_place(reader, model), unreadable_tensors(reader.tensors)]
    if not any(tensors):
        _mark(path, reader, architecture, model)
    name = field_of(path, reader, "general.name")
    name = name if isinstance(name, str) else path.stem
    return imported(model, path, fields.problems, *tensors, context=context, name=name)


def _config(path: Path, reader: GGUFReader, fields: Metadata, rows: int | None) -> Any:
    """The configuration of transformers for the fields of a file; problems with the fields are noted."""
    from transformers import CONFIG_MAPPING

    model_type, values = ARCHITECTURES[architecture_of(path, reader)]
    kind: Any = CONFIG_MAPPING[model_type]
    names = {tensor.name for tensor in reader.tensors if not changes_nothing(tensor)}
    given = values(fields, names)
    if rows is not None:
        fields.same("vocab_size", rows)
        given["vocab_size"] = rows
    other_fields(path, reader, fields)
    special = dict.fromkeys(
        ("bos_token_id", "eos_token_id", "pad_token_id")
    )  # about texts, which `text` reads
    own = {"tie_word_embeddings": f"{HEAD}.weight" not in names} | given  # if the architecture leaves it open
    try:
        with quiet():
            return kind(**own, **special)
    except Exception as error:  # transformers documents no set of exceptions
        raise refusal(path, fields.problems, [unreadable(error)], vocabulary=rows) from error


def _without_place(reader: GGUFReader, model: Any) -> list[str]:
    """Tensors that transformers' reader drops without a message, unless they change nothing."""
    from transformers.modeling_gguf_pytorch_utils import TensorProcessor, get_gguf_hf_weights_map

    places = get_gguf_hf_weights_map(model, TensorProcessor())
    return [
        f"tensor {tensor.name} has no place in the model"
        for tensor in reader.tensors
        if tensor.name not in places and not changes_nothing(tensor)
    ]


def _mark(path: Path, reader: GGUFReader, architecture: str, model: torch.nn.Module) -> None:
    """Mark each matmul with the format of its tensor."""
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
            stored, given = read_tensor(path, tensor), weight.detach().numpy()
            if np.array_equal(stored.array, given) or np.array_equal(stored.array, given.T):  # of GPT-2
                module.weight_grid = stored.grid
            else:  # the library's reader has rotated the grid, so it needs more bits
                module.weight_format = BYTES.name
        elif asked := asked_of(tensor):
            module.weight_format = asked
