"""Masks of padding among the arguments of a module, such as the attention_mask of transformers.

A mask is integers or truth values with all dimensions of tokens, 1 where a token is and 0 where padding is.
The accelerator computes sequences of any length, so padding never enters it: the module is traced with a mask
of ones, and the host gives the accelerator the tokens of each sequence alone. That is right if results do not
depend on hidden tokens; `hides_padding` runs the module to see that.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from streamgen.model.frontend.difference import BOUND, gap_of
from streamgen.model.frontend.eager import has_values
from streamgen.model.frontend.imported import Imported
from streamgen.model.frontend.joined import WRAPPER, Reading
from streamgen.model.frontend.trace import is_ids, plain_attention

MASK = "mask"


def masks_of(module: torch.nn.Module, leaves: Sequence[Any], spec: pytree.TreeSpec) -> dict[int, str]:
    """Names of the leaves that are masks, by number: those whose names say so. ValueError for an example that
    hides tokens."""
    names = _names(module, leaves, spec)
    masks = {p: name for p, name in names.items() if MASK in name.lower() and _may_be(p, leaves)}
    for position, name in masks.items():
        if not (leaves[position] == 1).all():
            raise ValueError(
                f"example input {position} ({name}) hides tokens; an example of ones is needed. Runs may "
                "have padding behind the tokens, if every result is one row for a sequence"
            )
    return masks


def possible_masks(module: torch.nn.Module, leaves: Sequence[Any], spec: pytree.TreeSpec) -> dict[int, str]:
    """Names of the leaves that may be masks, whatever they are called: integers or truth values that are all
    1, except the first tensor."""
    names = _names(module, leaves, spec)
    first = next(p for p, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
    return {p: names[p] for p in names if p != first and _may_be(p, leaves) and (leaves[p] == 1).all()}


def hides_padding(imported: Imported, module: torch.nn.Module, reading: Reading) -> bool:
    """Whether all results are one row for a sequence and are the same without the tokens that masks hide at
    its end, for random tokens and different numbers of hidden ones."""
    graph, tokens = imported.graph, imported.lead[-1]
    single = all(graph.shapes[name].rows == "one" for name in graph.outputs)
    if not single or imported.sequence != len(imported.lead) - 1 or tokens < 2 or not has_values(module):
        return False
    generator = torch.Generator().manual_seed(2)
    given: list[Any] = []
    for name, leaf in zip(imported.arguments.names, reading.leaves, strict=True):
        if isinstance(leaf, torch.Tensor):
            extents = (*imported.lead, leaf.shape[-1])
            ids = name is not None and name in graph.vocabularies
            drawn = imported.drawn(name, extents, generator) if ids else None  # type: ignore[arg-type]
            leaf = (torch.randn(extents, generator=generator) if drawn is None else drawn).to(leaf.dtype)
        given.append(leaf)
    try:
        for hidden in {1, tokens // 2}:
            kept = [leaf[..., :-hidden, :] if isinstance(leaf, torch.Tensor) else leaf for leaf in given]
            pairs = zip(
                _results(module, reading, kept, 0), _results(module, reading, given, hidden), strict=True
            )
            if any(a.shape != b.shape or gap_of(a.numpy(), b.numpy()) > BOUND for a, b in pairs):
                return False
    except Exception:  # noqa: BLE001 - whatever a module raises of a mask with zeros
        return False
    return True


def _results(
    module: torch.nn.Module, reading: Reading, leaves: Sequence[Any], hidden: int
) -> list[torch.Tensor]:
    """The tensors that the user's module returns if masks hide so many tokens at the end."""
    own = reading.rejoined(leaves)
    for position in reading.masks:
        if hidden:
            own[position][..., -hidden:] = 0
    args, keywords = pytree.tree_unflatten(own, reading.own)
    with torch.no_grad(), plain_attention():
        results = getattr(module, WRAPPER)(*args, **keywords)
    return [leaf.double() for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]


def _may_be(position: int, leaves: Sequence[Any]) -> bool:
    """Whether a leaf has the type and the values of a mask, and the dimensions of the tokens of another
    leaf."""
    mask = leaves[position]
    if not is_ids(mask) or not mask.ndim or not ((mask == 0) | (mask == 1)).all():
        return False
    others = [leaf for p, leaf in enumerate(leaves) if p != position and isinstance(leaf, torch.Tensor)]
    return mask.shape in {leaf.shape if is_ids(leaf) else leaf.shape[:-1] for leaf in others}


def _names(module: torch.nn.Module, leaves: Sequence[Any], spec: pytree.TreeSpec) -> Mapping[int, str]:
    """The names of the tensors among the leaves that are arguments of their own, by number."""
    parameters = [
        parameter.name
        for parameter in inspect.signature(module.forward).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    args, keywords = pytree.tree_unflatten(list(range(len(leaves))), spec)
    named = [*zip(args, parameters, strict=False), *((number, name) for name, number in keywords.items())]
    return {
        number: name
        for number, name in named
        if isinstance(number, int) and isinstance(leaves[number], torch.Tensor)
    }
