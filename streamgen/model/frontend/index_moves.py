"""Calls that move elements to other places and put numbers between them, by the indices of the elements.

pad, tril, triu, masked_fill and where with a constant mask, cat and stack with constants, diag, roll, tile

A place that takes a number stays in the row of the element that was there, or that is next to it. Where no
element says which row it is in, all elements must be of one row.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from streamgen.model.frontend.draft import Draft
from streamgen.model.frontend.self_attention import MASK
from streamgen.model.frontend.trace import Unsupported, arguments, aten, shape

CONSTANT_PART = "it joins a constant to a value that is computed at run time"
CHOOSE = {"index", "indices", "mask"}
"""Names of arguments that say which elements are meant."""
FILLED = {
    aten.block_diag.default,
    aten.diag.default,
    aten.diag_embed.default,
    aten.diagflat.default,
}
"""Moves that put zeros between elements."""
PLAIN = {
    aten.atleast_1d.default,
    aten.atleast_1d.Sequence,
    aten.atleast_2d.default,
    aten.atleast_2d.Sequence,
    aten.atleast_3d.default,
    aten.atleast_3d.Sequence,
    aten.broadcast_tensors.default,
    aten.broadcast_to.default,
    aten.cartesian_prod.default,
    aten.column_stack.default,
    aten.combinations.default,
    aten.diagonal.default,
    aten.diagonal_copy.default,
    aten.diagonal_scatter.default,
    aten.dsplit.array,
    aten.dsplit.int,
    aten.dstack.default,
    aten.expand_copy.default,
    aten.fliplr.default,
    aten.flipud.default,
    aten.gather.default,
    aten.hsplit.array,
    aten.hsplit.int,
    aten.index_copy.default,
    aten.masked_scatter.default,
    aten.meshgrid.default,
    aten.meshgrid.indexing,
    aten.moveaxis.intlist,
    aten.movedim.intlist,
    aten.narrow_copy.default,
    aten.permute_copy.default,
    aten.ravel.default,
    aten.roll.default,
    aten.rot90.default,
    aten.scatter.src,
    aten.select_copy.int,
    aten.select_scatter.default,
    aten.slice_copy.Tensor,
    aten.slice_scatter.default,
    aten.split_copy.Tensor,
    aten.split_with_sizes_copy.default,
    aten.squeeze_copy.default,
    aten.squeeze_copy.dim,
    aten.squeeze_copy.dims,
    aten.swapdims.default,
    aten.t_copy.default,
    aten.take.default,
    aten.take_along_dim.default,
    aten.tile.default,
    aten.transpose_copy.int,
    aten.unbind_copy.int,
    aten.unfold.default,
    aten.unfold_copy.default,
    aten.unsafe_split.Tensor,
    aten.unsqueeze_copy.default,
    aten.view_copy.default,
    aten.vsplit.array,
    aten.vsplit.int,
    aten.vstack.default,
}


def numbers(draft: Draft, node: Node, constant: torch.Tensor) -> torch.Tensor:
    """Contents of a constant, if all values have one row; Unsupported otherwise, and unless it holds finite
    floats."""
    if draft.elements.stride != 1:
        raise Unsupported(CONSTANT_PART)
    if not constant.is_floating_point():
        raise Unsupported(f"a constant is {constant.dtype}")
    values, places = constant.double().unique(return_inverse=True)
    columns = torch.tensor([draft.number(value) for value in values.tolist()], dtype=torch.int64)
    return draft.elements.indices(columns, torch.zeros((), dtype=torch.int64))[places]


def filled(draft: Draft, contents: torch.Tensor, places: torch.Tensor, value: float) -> torch.Tensor:
    """Contents with a number in some places, each in the row of the element that was there."""
    column = torch.tensor(draft.number(value))
    return torch.where(places, draft.elements.indices(column, contents % draft.elements.stride), contents)


def read(draft: Draft, node: Node, value: Any) -> torch.Tensor:
    """Contents of a value or of a constant."""
    if draft.knows(value):
        contents: torch.Tensor = draft.form(node, value, lambda c: c)
        return contents
    constant = draft.constants.tensors.get(value)
    if not isinstance(constant, torch.Tensor):
        raise Unsupported(CONSTANT_PART)
    if not constant.numel():
        return torch.empty(constant.shape, dtype=torch.int64)
    return numbers(draft, node, constant)


def _plain(draft: Draft, node: Node) -> None:
    """Run the call on indices; constants that say which elements are meant stay as they are."""
    function: Any = node.target
    chosen = [value for name, value in arguments(node).items() if name in CHOOSE]
    if any(map(draft.knows, chosen)):
        raise Unsupported("the elements that it takes are chosen at run time")
    tensors = draft.constants.tensors

    def given(n: Node) -> Any:
        return tensors[n] if n in chosen else read(draft, node, n)

    args, keywords = torch.fx.node.map_arg((node.args, node.kwargs), given)
    moved = function(*args, **keywords)
    draft.keep(node, moved if isinstance(moved, torch.Tensor) else list(moved))


def _with_zeros(draft: Draft, node: Node) -> None:
    """Run the call on indices from 1 on; a 0 is then a zero that it puts in."""
    function: Any = node.target
    args, keywords = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: read(draft, node, n) + 1)
    moved = function(*args, **keywords) - 1
    if (moved < 0).any():
        zero = numbers(draft, node, torch.zeros(()))
        moved = torch.where(moved < 0, zero, moved)
    draft.keep(node, moved)


def _copied(draft: Draft, node: Node) -> None:
    """copy(x, y): y in the shape of x."""
    draft.keep(node, read(draft, node, node.args[1]).expand(shape(node)).clone())


def _strided(draft: Draft, node: Node) -> None:
    """as_strided of a tensor that is all of its memory, in order."""
    value = node.args[0].meta["val"]
    if not value.is_contiguous() or value.untyped_storage().nbytes() != value.nbytes:
        raise Unsupported("it reads the memory of a tensor that is a part of another one")
    given = arguments(node)
    contents = draft.form(node, node.args[0], lambda c: c).contiguous()
    draft.keep(node, contents.as_strided(given["size"], given["stride"], given["storage_offset"] or 0))


def _replaced(draft: Draft, node: Node) -> None:
    """fill(x, number) and zero(x): the number in the rows of all elements of x."""
    value = (*node.args, 0.0)[1]
    if isinstance(value, Node):
        if draft.knows(value):
            contents = read(draft, node, value).expand(shape(node))
            return draft.keep(node, contents)
        value = float(draft.constants.tensors[value])
    contents = draft.form(node, node.args[0], lambda c: c)
    everywhere = torch.ones(contents.shape, dtype=torch.bool)
    return draft.keep(node, filled(draft, contents, everywhere, float(value)))


def _triangle(draft: Draft, node: Node) -> None:
    function: Any = node.target
    contents = draft.form(node, node.args[0], lambda c: c)
    kept = function(torch.ones(contents.shape), *node.args[1:], **node.kwargs) != 0
    draft.keep(node, filled(draft, contents, ~kept, 0.0))


def _pad(draft: Draft, node: Node) -> None:
    given = arguments(node)
    mode, value = given.get("mode", "constant"), given.get("value") or 0.0
    contents = draft.form(node, node.args[0], lambda c: c)
    if isinstance(value, Node):
        raise Unsupported("its value is computed at run time")
    fills = torch.zeros(contents.shape, dtype=torch.bool)
    pads = list(given["pad"])
    if min(pads) < 0 and mode in ("reflect", "circular"):
        raise Unsupported(f"it cuts elements off with the mode {mode}")
    for index in range(len(pads) // 2):
        d = contents.ndim - 1 - index
        n = contents.shape[d]
        places = torch.arange(-pads[2 * index], n + pads[2 * index + 1])
        outside = (places < 0) | (places >= n)
        if mode == "reflect":
            places = places.abs()
            places = (n - 1) - ((n - 1) - places).abs()
        elif mode == "circular":
            places = places % n
        places = places.clamp(0, n - 1)
        contents, fills = contents.index_select(d, places), fills.index_select(d, places)
        if mode == "constant":
            fills = fills | outside.reshape(-1, *(1,) * (contents.ndim - 1 - d))
    draft.keep(node, filled(draft, contents, fills, float(value)) if fills.any() else contents)


def masked(draft: Draft, node: Node) -> None:
    """masked_fill(x, mask, number), where(mask, a, b): the mask is constant."""
    extents = shape(node)
    if node.target in WHERES:
        mask, a, b = node.args[:3]
    else:
        a, mask, b = node.args[:3]
    if draft.knows(mask) or mask not in draft.constants.tensors:
        raise Unsupported(MASK)
    chosen = draft.constants.tensors[mask].broadcast_to(extents)
    if node.target not in WHERES:
        chosen = ~chosen

    def side(value: Any, other: Any, places: torch.Tensor) -> torch.Tensor:
        """Contents of an operand; a number is in the rows of the other one."""
        if draft.knows(value):
            return draft.form(node, value, lambda c: c).broadcast_to(extents)
        tensor = draft.constants.tensors[value] if isinstance(value, Node) else torch.tensor(float(value))
        if tensor.numel() == 1 and draft.knows(other):
            contents = draft.form(node, other, lambda c: c).broadcast_to(extents)
            return filled(draft, contents, places, float(tensor)) if places.any() else contents
        return numbers(draft, node, tensor).broadcast_to(extents)

    draft.keep(node, torch.where(chosen, side(a, b, chosen), side(b, a, ~chosen)))


WHERES = (aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
CALLS: dict[Any, Callable[[Draft, Node], None]] = {
    **dict.fromkeys(PLAIN, _plain),
    **dict.fromkeys(FILLED, _with_zeros),
    **dict.fromkeys(
        [f for name in ("fill", "fill_") for f in (getattr(aten, name).Scalar, getattr(aten, name).Tensor)]
        + [aten.zero.default, aten.zero_.default],
        _replaced,
    ),
    **dict.fromkeys([aten.as_strided.default, aten.as_strided_copy.default], _strided),
    **dict.fromkeys([aten.copy.default, aten.copy_.default], _copied),
    **dict.fromkeys([aten.tril.default, aten.triu.default], _triangle),
    **dict.fromkeys([aten.constant_pad_nd.default, aten.pad.default], _pad),
}
