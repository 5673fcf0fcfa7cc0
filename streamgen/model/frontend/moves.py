"""Calls that move elements and compute nothing: views, transposes, repeats, slices, copies, casts."""

import operator

import torch
from torch.fx import Node

from streamgen.model.frontend.trace import aten

DROPOUTS = {
    aten.alpha_dropout.default,
    aten.dropout.default,
    aten.feature_alpha_dropout.default,
    aten.feature_dropout.default,
}
# One tensor in, the same elements in the same order out.
RENAMES = {
    aten.alias.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.detach.default,
    aten.detach_.default,
    aten.lift_fresh_copy.default,
    aten.to.device,
    aten.to.dtype,
    aten.to.dtype_layout,
    aten.to.other,
    aten.type_as.default,
    aten._to_copy.default,
    torch.ops.prims.convert_element_type.default,
} | DROPOUTS
MOVES = {
    aten.cat.default,
    aten.chunk.default,
    aten.expand.default,
    aten.flatten.using_ints,
    aten.mT.default,
    aten.movedim.int,
    aten.narrow.default,
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
    """The node at the start of a chain of renames."""
    while node.op == "call_function" and node.target in RENAMES:
        node = node.args[0]
    return node
