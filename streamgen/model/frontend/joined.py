"""Readings of example inputs: which of their dimensions are tokens, and which are joined to features.

All dimensions but the last are usually tokens. A module that flattens images, such as [B, 1, 28, 28] to 784
features, needs fewer of them: its inputs are read as rows of joined features, which `Joined` gives back
to the module in their own shape.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import wraps
from math import prod
from typing import Any

import torch
from torch.utils import _pytree as pytree

from streamgen.base.errors import GraphError
from streamgen.model.frontend.imported import Imported
from streamgen.model.nests import leading_rule

WRAPPER = "inner"  # attribute of Joined


class Joined(torch.nn.Module):
    """A module whose inputs come with their last dimensions joined.

    trailing: of each leaf of the arguments, the extents that are joined; None for a leaf that is no tensor.
    """

    def __init__(self, module: torch.nn.Module, trailing: Sequence[tuple[int, ...] | None]) -> None:
        super().__init__()
        setattr(self, WRAPPER, module)
        self.training = module.training

        @wraps(module.forward)  # whose parameters name the inputs
        def forward(*args: Any, **keywords: Any) -> Any:
            leaves, spec = pytree.tree_flatten((args, keywords))
            own = [
                leaf if extents is None else leaf.unflatten(-1, extents)
                for leaf, extents in zip(leaves, trailing, strict=True)
            ]
            args, keywords = pytree.tree_unflatten(own, spec)
            return module(*args, **keywords)

        self.forward = forward


def readings(leaves: Sequence[Any]) -> Iterator[tuple[list[Any], list[tuple[int, ...] | None]]]:
    """The example arguments in each reading, and the extents that it joins; None for a leaf that it leaves as
    it is.

    First all dimensions but the last are tokens, if the inputs then hold equal numbers of tokens. Then fewer
    and fewer leading dimensions are tokens.
    """
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if len({tensor.shape[:-1].numel() for tensor in tensors}) == 1:
        yield list(leaves), [None] * len(leaves)
    for tokens in range(max(tensor.ndim for tensor in tensors) - 2, 0, -1):
        if any(tensor.ndim <= tokens for tensor in tensors) or len({t.shape[:tokens] for t in tensors}) > 1:
            continue
        trailing = [
            tuple(leaf.shape[tokens:]) if isinstance(leaf, torch.Tensor) and leaf.ndim > tokens + 1 else None
            for leaf in leaves
        ]
        joined = [
            leaf if extents is None else leaf.reshape(*leaf.shape[:tokens], prod(extents))
            for leaf, extents in zip(leaves, trailing, strict=True)
        ]
        yield joined, trailing


def with_trailing(imported: Imported, trailing: Sequence[tuple[int, ...] | None]) -> Imported | None:
    """The import with the extents that are joined in its inputs and results. None if the leading dimensions
    of a result are not those of the inputs."""
    joined = {
        name: extents
        for name, extents in zip(imported.arguments.names, trailing, strict=True)
        if name is not None and extents is not None
    }
    lead = next(shape[:-1] for shape in imported.arguments.shapes if shape is not None)
    shapes = list(imported.results.shapes)
    for position, (name, shape) in enumerate(zip(imported.results.names, shapes, strict=True)):
        if name is None or shape is None:
            continue
        tokens = _leading(shape, lead)
        if tokens is None:
            return None
        if tokens != len(shape) - 1:
            joined[name] = shape[tokens:]
            shapes[position] = (*shape[:tokens], prod(shape[tokens:]))
    return replace(imported, results=replace(imported.results, shapes=tuple(shapes)), trailing=joined)


def _leading(shape: Sequence[int], lead: Sequence[int]) -> int | None:
    """How many dimensions of a result are those of tokens; None if none are."""
    for tokens in (*range(len(shape) - 1, 0, -1), len(shape)):
        try:
            leading_rule(shape[:tokens], lead)
        except GraphError:
            continue
        if prod(shape[:tokens]) == prod(lead):
            return tokens
    return None
