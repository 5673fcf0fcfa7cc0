"""Calls that change a tensor in place: every tensor in the same memory sees the change."""

from typing import Any

import torch
from torch.fx import Node

from streamgen.model.frontend.moves import RENAMES
from streamgen.model.frontend.trace import Unsupported, aten


def is_in_place(node: Node) -> bool:
    """Whether a call changes its first argument."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable and node.target not in RENAMES


def memory(node: Any) -> int:
    """The storage of a call's tensor; dropout in eval mode returns its input."""
    while node.target == aten.dropout.default:
        node = node.args[0]
    return int(_tensors(node.meta["val"])[0].untyped_storage()._cdata)


def is_seen(node: Node) -> bool:
    """Whether anything behind a call in place reads the memory that it changes, other than its result."""
    changed, views = memory(node.args[0]), set()
    nodes = iter(node.graph.nodes)
    for other in nodes:
        if other is node:
            break
        if _has_tensors(other.meta.get("val")) and memory(other) == changed:
            views.add(other)
    return any(not views.isdisjoint(other.all_input_nodes) for other in nodes)


def change(contents: dict[Node, Any], node: Any, changed: torch.Tensor) -> None:
    """Update the contents of all views of the memory of `node` after a change in place.

    An example: if `node` holds the indices [5, 7] and `changed` is [7, 5], each view exchanges 5 and 7.
    contents: indices by call (see `elements`). Raises Unsupported if an index stands for several places.
    """
    views = [other for other in contents if memory(other) == memory(node)]
    largest = max((held for view in views for held in _tensors(contents[view])), key=torch.Tensor.numel)
    if len(largest.unique()) != largest.numel():
        raise Unsupported("it changes a tensor in place that holds an element twice")
    before, order = contents[node].reshape(-1).sort()
    after = changed.reshape(-1)[order]

    def seen(held: torch.Tensor) -> torch.Tensor:
        places = torch.searchsorted(before, held.contiguous()).clamp(max=len(before) - 1)
        return torch.where(before[places] == held, after[places], held)

    for view in views:
        held = contents[view]
        contents[view] = seen(held) if isinstance(held, torch.Tensor) else [seen(part) for part in held]


def _has_tensors(value: Any) -> bool:
    first = value[0] if isinstance(value, list | tuple) and value else value
    return isinstance(first, torch.Tensor)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)
