"""Whether padding may be left out: results must not depend on tokens that masks hide."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from streamgen.model.frontend.difference import BOUND, gap_of
from streamgen.model.frontend.eager import has_values
from streamgen.model.frontend.imported import Imported
from streamgen.model.frontend.joined import WRAPPER, Reading
from streamgen.model.frontend.trace import is_ids, plain_attention


def hides_padding(imported: Imported, module: torch.nn.Module, reading: Reading) -> bool:
    """Whether padding may be left out, for random tokens and different numbers of hidden ones.

    A result that is one row for a sequence must be the same without the tokens that masks hide at its end. A
    result with a row for each token must be the same in the rows of the others, and hold floats.
    """
    graph, tokens = imported.graph, imported.lead[-1]
    if imported.sequence != len(imported.lead) - 1 or tokens < 2 or not has_values(module):
        return False
    if all(mask.rule.of_scores for mask in reading.masks.values()):
        return False
    if any(graph.shapes[name].rows != "one" and name in imported.types for name in graph.outputs):
        return False
    generator = torch.Generator().manual_seed(2)
    given: list[Any] = []
    for name, leaf in zip(imported.arguments.names, reading.leaves, strict=True):
        if isinstance(leaf, torch.Tensor):
            extents = (*imported.lead, leaf.shape[-1])
            if name is not None and name in graph.vocabularies:
                leaf = imported.drawn(name, extents, generator).to(leaf.dtype)
            elif is_ids(leaf):  # no result depends on them
                leaf = torch.zeros(extents, dtype=leaf.dtype)
            else:
                leaf = torch.randn(extents, generator=generator).to(leaf.dtype)
        given.append(leaf)
    try:
        for hidden in {1, tokens // 2}:
            kept = [leaf[..., :-hidden, :] if isinstance(leaf, torch.Tensor) else leaf for leaf in given]
            pairs = zip(
                _results(module, reading, kept, 0), _results(module, reading, given, hidden), strict=True
            )
            if any(_differ(short, long, tokens - hidden, tokens) for short, long in pairs):
                return False
    except Exception:  # noqa: BLE001 - whatever a module raises of a mask with zeros
        return False
    return True


def _results(
    module: torch.nn.Module, reading: Reading, leaves: Sequence[Any], hidden: int
) -> list[torch.Tensor]:
    """The tensors that the user's module returns if masks hide so many tokens at the end."""
    own = reading.rejoined(leaves, hidden)
    args, keywords = pytree.tree_unflatten(own, reading.own)
    with torch.no_grad(), plain_attention():
        results = getattr(module, WRAPPER)(*args, **keywords)
    return [leaf.double() for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]


def _differ(short: torch.Tensor, long: torch.Tensor, shown: int, tokens: int) -> bool:
    """Whether a result without hidden tokens differs from that with them, which may have rows for them."""
    if short.ndim != long.ndim:
        return True
    for dimension, (few, many) in enumerate(zip(short.shape, long.shape, strict=True)):
        if (few, many) == (shown, tokens):
            long = long.narrow(dimension, 0, shown)
    return short.shape != long.shape or gap_of(short.numpy(), long.numpy()) > BOUND
