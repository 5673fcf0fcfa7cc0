"""Torch modules of all kinds: language models by their structure, the rest operation by operation."""

import sys
from collections.abc import Sequence
from typing import Any

import torch

from streamgen.base.errors import GraphError
from streamgen.model.frontend.decoder import import_decoder, traced_context
from streamgen.model.frontend.export import import_structured
from streamgen.model.frontend.imported import Imported
from streamgen.model.frontend.module_kinds import require_readable
from streamgen.model.frontend.own_decoder import import_own, made_ids
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.nests import Interface, leading_rule, require_plain

CONTEXT = 2048  # positions of a module's own that names none, when nobody asks for a number


def import_any(
    module: torch.nn.Module, example_inputs: Any = None, longest: int = 1, context: int | None = None
) -> tuple[LogicalGraph, Interface | None]:
    """The graph of a module, and how it nests arguments and results, unless it is a language model.

    A causal language model of transformers needs no example inputs; it is traced for texts of up to `context`
    positions, None: of as many as its config allows. A causal module of one's own takes ids, int64 [1, T] or
    [T], and needs no example either; further example inputs are its arguments behind the ids. One that takes
    its cache is told by ids and positions, int64 [1, T], and keys and values, a list of a tensor
    [1, kv_heads, P, head_dim] a layer; P + T positions are its context. For all others they, and `longest`,
    are what `import_structured` takes.

    Errors: those of `import_decoder`, `import_own` and `import_structured`; TypeError when example inputs are
    missing.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"model is {type(module).__name__}; a torch.nn.Module, a LogicalGraph, or the path of a GGUF "
            "file or of a folder of safetensors is needed"
        )
    require_readable(module)
    transformers = sys.modules.get("transformers")
    if transformers is not None and isinstance(module, transformers.PreTrainedModel):
        return import_decoder(module, context=traced_context(module, context)), None
    if example_inputs is None and (example_inputs := made_ids(module)) is None:
        raise TypeError(
            "example_inputs are missing: one tensor for each input of the module; only language models, "
            "which take ids [1, T] or [T] alone, need none"
        )
    given = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    if len(given) == 4 and isinstance(given[0], torch.Tensor) and isinstance(given[2], Sequence):
        return import_decoder(module, **_sizes(*given)), None  # type: ignore[arg-type]
    if given and isinstance(given[0], torch.Tensor) and not given[0].is_floating_point():
        return import_own(module, given[0], given[1:], CONTEXT if context is None else context), None
    imported = import_structured(module, given, longest=longest)
    return imported.graph, _interface(imported)


def _interface(imported: Imported) -> Interface:
    """What a user of the hardware must know of the module; GraphError for nests that cannot be kept."""
    (arguments, _), results = (
        structure.rebuilt({name: name for name in structure.names if name is not None})
        for structure in (imported.arguments, imported.results)
    )
    require_plain(arguments, "arguments")
    require_plain(results, "results")
    lead = next(shape[:-1] for shape in imported.arguments.shapes if shape is not None)
    leading: dict[str, tuple[int, ...] | None] = {}
    for name, shape in zip(imported.results.names, imported.results.shapes, strict=True):
        if name is not None and shape is not None:
            rule = leading_rule(shape[:-1], lead)
            if leading.setdefault(name, rule) != rule:
                raise GraphError(f"result {name!r} is returned twice, with other leading dimensions")
    return Interface(arguments=arguments, results=results, leading=leading, only=imported.only)


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
