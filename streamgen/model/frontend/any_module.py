"""Torch modules of all kinds: language models by their structure, the rest operation by operation."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from streamgen.base.errors import GraphError, UnsupportedOperationError
from streamgen.model.frontend.assembly import UNASKED
from streamgen.model.frontend.decoder import import_decoder, traced_context
from streamgen.model.frontend.examples import Example
from streamgen.model.frontend.export import import_structured
from streamgen.model.frontend.imported import Imported
from streamgen.model.frontend.module_kinds import require_readable
from streamgen.model.frontend.own_decoder import import_own, import_without_example, makes_logits
from streamgen.model.frontend.refusals import first_line
from streamgen.model.frontend.text_call import NoLanguageModel
from streamgen.model.frontend.trace import is_ids
from streamgen.model.frontend.transformers_modules import (
    generates,
    is_of_transformers,
    own_example,
    without_cache,
)
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.nest_values import require_plain
from streamgen.model.nests import ALL, ONE, Interface, leading_rule
from streamgen.model.operations import Attention, PlaceRows


def import_any(
    module: torch.nn.Module, example_inputs: Any = None, longest: int = 1, context: int | None = None
) -> tuple[LogicalGraph, Interface | None]:
    """Import a module of any kind: its graph, and how it nests arguments and results.

    The second value is None for a language model. A causal language model of transformers needs no example
    inputs; it is traced for texts of up to `context` positions, or of as many as its config allows if
    `context` is None. All other models of transformers are modules like one's own; if they take ids, they
    need no example either. A causal module of your own takes ids, int64 [1, T] or [T], and needs no example
    either; further example inputs are its arguments after the ids. A language model that takes its cache is
    recognised by its four example inputs: ids and positions, int64 [1, T], and keys and values, each a list
    with one tensor [1, kv_heads, P, head_dim] per layer. Its context is P + T positions. For all other
    modules, `example_inputs` and `longest` mean the same as for `import_structured`; they may take ids, too,
    if they make no logit for each id. A dict of example inputs holds keywords of the module: the interface
    then has one argument, the dict.

    Raises the errors of `import_decoder`, `import_own` and `import_structured`, and TypeError if example
    inputs are missing.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"model is {type(module).__name__}; a torch.nn.Module, a LogicalGraph, or the path of a GGUF "
            "file or of a folder of safetensors is needed"
        )
    require_readable(module)
    if is_of_transformers(module):
        if generates(module):
            return import_decoder(module, context=traced_context(module, context)), None
        own = own_example(module) if example_inputs is None else Example.of(example_inputs)
        return import_of_transformers(module, own, longest, context, given=example_inputs is not None)
    if example_inputs is None:
        needed = (
            "example_inputs are missing (--example-shape on the command line): one tensor for each input of "
            "the module; only language models, which take ids alone, need none"
        )
        try:
            graph = import_without_example(module, UNASKED if context is None else context)
        except NoLanguageModel as reason:
            raise TypeError(f"{needed}. This module is none: {reason}") from None
        if graph is not None:
            return graph, None
        raise TypeError(needed)
    example = Example.of(example_inputs)
    given = example.positional(module)
    if len(given) == 4 and isinstance(given[0], torch.Tensor) and isinstance(given[2], Sequence):
        return import_decoder(module, **_sizes(*given)), None  # type: ignore[arg-type]
    if not given or not is_ids(given[0]):
        imported = import_structured(module, example.arguments, example.keywords, longest)
        return imported.graph, interface_of(imported)
    try:
        return import_own(module, given[0], given[1:], UNASKED if context is None else context), None
    except (NoLanguageModel, UnsupportedOperationError) as reason:
        imported = _of_ids(module, example, longest, reason)
        return imported.graph, interface_of(imported)


def import_of_transformers(
    module: torch.nn.Module, example: Example, longest: int, context: int | None, *, given: bool = True
) -> tuple[LogicalGraph, Interface | None]:
    """`import_any` of a model of transformers that has no method to generate. It is a language model all the
    same if it is causal and makes a logit for each id. given: whether a user gave the example; otherwise its
    number of ids means nothing."""
    with without_cache(module):
        framed = given or bool(example.keywords)  # an image has one size
        imported = import_structured(module, example.arguments, example.keywords, longest, framed=framed)
        if not _is_language_model(imported.graph):
            return imported.graph, interface_of(imported)
        ids = next(leaf for leaf in (*example.arguments, *example.keywords.values()) if is_ids(leaf))
        return import_own(module, ids[:1], (), UNASKED if context is None else context), None


def _is_language_model(graph: LogicalGraph) -> bool:
    """Whether a graph of ids is causal and makes a logit for each id."""
    causal = any(isinstance(operation.op, Attention) and operation.op.causal for _, operation in graph.walk())
    return causal and any(graph.features(name) in graph.vocabularies.values() for name in graph.outputs)


def _of_ids(module: torch.nn.Module, example: Example, longest: int, reason: Exception) -> Imported:
    """The import of a module that takes ids and is no language model, for a reason.

    Raises the error that is the reason if the module is meant to be one: if it makes a logit for each id of
    one text, or is causal. Raises the errors of `import_structured`.
    """
    ids = example.positional(module)[0]
    one_text = ids.ndim == 2 and len(ids) == 1 != ids.shape[1]  # whose ids are tokens, not columns
    has_logits = makes_logits(module, example.positional(module))
    if has_logits and isinstance(reason, UnsupportedOperationError):
        raise reason
    try:
        imported = import_structured(
            module, example.arguments, example.keywords, longest, within=not one_text
        )
    except (UnsupportedOperationError, GraphError, ValueError) as error:
        if has_logits:
            raise reason from None
        message = f"{error}\nThe module is no language model either: {first_line(reason)}"
        if isinstance(error, UnsupportedOperationError):
            raise UnsupportedOperationError(message, error.operations) from None
        raise type(error)(message) from None
    if _is_language_model(imported.graph):
        raise reason
    return imported


def example_of(extents: Sequence[int], *, ids: bool = False) -> torch.Tensor:
    """An example input of a shape: random numbers, the same each time, or the ids 0."""
    if ids:
        return torch.zeros(*extents, dtype=torch.int64)
    return torch.randn(*extents, generator=torch.Generator().manual_seed(0))


def interface_of(imported: Imported) -> Interface:
    """How the module nests its inputs and outputs; GraphError for nests that a folder cannot store."""
    (arguments, keywords), results = (
        _plain(structure.rebuilt({name: name for name in structure.names if name is not None}))
        for structure in (imported.arguments, imported.results)
    )
    if keywords:
        arguments = (*arguments, keywords)
    require_plain(arguments, "arguments")
    require_plain(results, "results")
    leading: dict[str, tuple[int, ...] | None] = {}
    for name, shape in zip(imported.results.names, imported.results.shapes, strict=True):
        if name is not None and shape is not None:
            rule = _rule(imported, name, shape)
            if leading.setdefault(name, rule) != rule:
                raise GraphError(f"result {name!r} is returned twice, with different leading dimensions")
    single = any(imported.outer(name) != imported.lead for name in leading)
    places = {
        value.name: imported.graph.vocabularies[value.name]
        for value in imported.graph.inputs
        if any(isinstance(o.op, PlaceRows) and value.name in o.inputs for o in imported.graph.operations)
    }
    return Interface(
        arguments=arguments,
        results=results,
        leading=leading,
        only=imported.only,
        trailing=imported.trailing,
        ids=imported.ids,
        whole=imported.whole,
        ranks=len(imported.lead) if single else None,
        places=places,
        masks=imported.masks,
        padding={name: tuple(sorted(ids)) for name, ids in imported.padding.items()},
        types=imported.types,
        unused=imported.unused,
        frames=imported.frames,
        kinds=imported.kinds,
    )


def _plain(nest: Any) -> Any:
    """A nest with tuples in place of those that name their parts, such as the result of torch.max, and dicts
    in place of classes made from dict, such as those of results in transformers."""
    if isinstance(nest, tuple):
        return tuple(map(_plain, nest))
    if isinstance(nest, list):
        return list(map(_plain, nest))
    return {name: _plain(part) for name, part in nest.items()} if isinstance(nest, Mapping) else nest


def _rule(imported: Imported, name: str, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Which leading dimensions of the inputs a result has."""
    outer = imported.outer(name)
    rule = leading_rule(shape[:-1], outer)
    if outer == imported.lead:
        return rule
    if rule is None:
        rule = tuple(range(len(outer)))
    if not outer:
        rule = (ONE,) * len(rule)
    if ALL in rule:
        raise GraphError(f"result {name!r} joins the dimensions {list(outer)}; they must stay apart")
    sequence = imported.sequence
    assert sequence is not None
    return tuple(d + (d >= sequence) for d in rule)


def _sizes(ids: Any, positions: Any, keys: Any, values: Any) -> dict[str, int]:
    """The sizes of the cache that the example inputs of a language model show."""
    tensors = [*keys, *values]
    if not tensors or not all(isinstance(tensor, torch.Tensor) and tensor.ndim == 4 for tensor in tensors):
        raise TypeError("keys and values must be lists with one tensor [1, kv_heads, P, head_dim] per layer")
    if len(keys) != len(values) or len({tuple(tensor.shape) for tensor in tensors}) != 1:
        raise ValueError("keys and values must have one tensor per layer, all of the same shape")
    _, kv_heads, past, head_dim = tensors[0].shape
    if ids.ndim != 2 or positions.shape != ids.shape:
        raise ValueError(
            f"ids and positions are {list(ids.shape)} and {list(positions.shape)}; both must be [1, T]"
        )
    return {
        "layers": len(keys),
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "context": past + ids.shape[1],
    }
