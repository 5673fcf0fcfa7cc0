"""Where the elements of a tensor come from: views, transposes, repeats and slices, carried out on indices.

Models split heads, repeat keys, rotate halves and cut fused projections in many ways that all move elements
and compute nothing, but for signs. `Origins` runs such calls on integers in place of values: element e of a
source is start + e (start >= 1), negated where the model negates. What a chain of calls does is then read
from the result, however it is written.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from streamgen.frontend.trace import Mismatch, aten, shape

__all__ = ["MOVES", "RENAMES", "Origins", "renamed"]

# One tensor in, the same elements in the same order out.
RENAMES = {
    aten.alias.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.detach.default,
    aten.detach_.default,
    aten.dropout.default,
    aten.lift_fresh_copy.default,
    aten.to.device,
    aten.to.dtype,
    aten.to.dtype_layout,
    aten.to.other,
    aten.type_as.default,
}
MOVES = {
    aten.cat.default,
    aten.chunk.default,
    aten.expand.default,
    aten.flatten.using_ints,
    aten.mT.default,
    aten.movedim.int,
    aten.narrow.default,
    aten.neg.default,
    aten.permute.default,
    aten.repeat.default,
    aten.repeat_interleave.self_int,
    aten.reshape.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.split.Tensor,
    aten.split.sizes,
    aten.split_with_sizes.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.stack.default,
    aten.swapaxes.default,
    aten.t.default,
    aten.transpose.int,
    aten.unbind.int,
    aten.unflatten.int,
    aten.unsqueeze.default,
    aten.view.default,
    operator.getitem,
}


def renamed(node: Node) -> Node:
    """What a chain of renames starts from."""
    while node.op == "call_function" and node.target in RENAMES:
        node = node.args[0]
    return node


class Origins:
    """Indices into sources, the nodes that are not moves."""

    def __init__(self) -> None:
        self.sources: list[tuple[int, Node]] = []  # first index, node
        self.end = 1
        self.known: dict[Node, Any] = {}

    def of(self, node: Node) -> torch.Tensor:
        """int64 indices of the shape of the node's tensor."""
        node = renamed(node)
        if node not in self.known:
            if node.op == "call_function" and node.target in MOVES:
                args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self.of)
                target: Callable[..., Any] = node.target
                self.known[node] = target(*args, **kwargs)
            elif not isinstance(node.meta["val"], torch.Tensor):
                raise Mismatch(node, "a tensor is needed here")
            else:
                extents = shape(node)
                self.known[node] = torch.arange(self.end, self.end + extents.numel()).view(extents)
                self.sources.append((self.end, node))
                self.end += extents.numel()
        return self.known[node]

    def split(self, indices: torch.Tensor) -> list[tuple[Node, torch.Tensor, torch.Tensor]]:
        """Each source that has elements among the indices: node, where they are (mask), positions in it."""
        magnitude = indices.abs()
        found = []
        for start, node in self.sources:
            mask = (magnitude >= start) & (magnitude < start + shape(node).numel())
            if mask.any():
                found.append((node, mask, magnitude - start))
        return found
