"""Calls that take or write elements at places of run time, as formulas of other calls, in torch.

Each place is compared with all places of its line: a *choice* holds a truth value for each of these. A place
outside of its line, for which torch raises an error, chooses nothing: what the hardware then takes is 0.
Places are never negative: those that a module computes are places of elements, and ids begin with 0.

take         sum over places of (choice, x, else 0)
scatter_add  x + sum over writes of (choice, source, else 0)
scatter      the source of the last write, as torch on a CPU; x where nothing is written
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from streamgen.model.frontend.trace import Unsupported, aten

MOST_CHOSEN = 512  # elements of a line, each of which is compared with every place that is chosen
MOST_OF_TABLE = 1 << 12  # numbers of a table of which rows are taken as they are, without products
NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "amax": -torch.inf, "amin": torch.inf}
"""By reduction: the number that changes nothing."""


def _choice(places: Tensor, count: int) -> Tensor:
    """Truth values [.., count]."""
    if count > MOST_CHOSEN:
        raise Unsupported(
            f"it chooses among {count} elements at run time; at most {MOST_CHOSEN} can be compiled"
        )
    return places.unsqueeze(-1) == torch.arange(count)


def _chosen(choice: Tensor, lines: Tensor) -> Tensor:
    """The elements [.., m] of lines [.., n] by a choice [.., m, n]."""
    return torch.where(choice, lines.unsqueeze(-2), 0.0).sum(-1)


def _gathered(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    if not x.ndim:
        return x.expand(index.shape).clone()
    if not index.ndim:
        return _gathered(x, dim, index.reshape(1)).reshape(())
    lines, places = _block(x, dim, index).movedim(dim, -1), index.movedim(dim, -1)
    return _chosen(_choice(places, lines.shape[-1]), lines).movedim(-1, dim)


def _block(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """The lines along a dimension that places are given for: the first of all."""
    for d, extent in enumerate(index.shape):
        if d != dim % x.ndim and extent != x.shape[d]:
            x = x.narrow(d, 0, extent)
    return x


def _taken(x: Tensor, index: Tensor) -> Tensor:
    return _chosen(_choice(index.reshape(-1), x.numel()), x.reshape(-1)).reshape(index.shape)


def _taken_along(x: Tensor, index: Tensor, dim: int | None = None) -> Tensor:
    if dim is None:
        return _gathered(x.reshape(-1), 0, index.reshape(-1))
    extents = torch.broadcast_shapes(
        *((*t.shape[: dim % t.ndim], 1, *t.shape[dim % t.ndim + 1 :]) for t in (x, index))
    )
    both = [
        t.expand((*extents[: dim % t.ndim], t.shape[dim], *extents[dim % t.ndim + 1 :])) for t in (x, index)
    ]
    return _gathered(both[0], dim, both[1])


def _selected(x: Tensor, dim: int, index: Tensor) -> Tensor:
    if not x.ndim:
        return x.clone()
    lines = x.movedim(dim, -1)
    taken = _chosen(_choice(index.reshape(-1), lines.shape[-1]), lines)
    return taken.movedim(-1, dim)


def _indexed(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """x[.., places, .., places, ..]: the dimensions with places are joined, and chosen from together."""
    dims = [d for d, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    if any(index.dtype in (torch.bool, torch.uint8) for index in given):
        raise Unsupported("the elements that it takes are chosen by truth values")
    choice, extents = _choice_of_several(x, dims, given)
    lines = x.movedim(dims, list(range(-len(dims), 0))).flatten(-len(dims))
    taken = _chosen(choice, lines).unflatten(-1, extents or (1,))
    taken = taken if extents else taken.squeeze(-1)
    in_a_row = dims == list(range(dims[0], dims[0] + len(dims)))
    first = dims[0] if in_a_row else 0
    rank = len(extents)
    return taken.movedim(list(range(-rank, 0)), list(range(first, first + rank))) if rank else taken


def _choice_of_several(x: Tensor, dims: Sequence[int], given: Sequence[Tensor]) -> tuple[Tensor, torch.Size]:
    """A choice [m, n] of elements of some dimensions together, and the extents of the m places."""
    places = torch.broadcast_tensors(*given)
    choice = _choice(places[0], x.shape[dims[0]])
    for d, others in zip(dims[1:], places[1:], strict=True):
        both = torch.logical_and(choice.unsqueeze(-1), _choice(others, x.shape[d]).unsqueeze(-2))
        choice = both.flatten(-2)
    return choice.reshape(-1, choice.shape[-1]), places[0].shape


def _looked_up(weight: Tensor, indices: Tensor, *_: Any) -> Tensor:
    """Rows of a table. Of a large one as products with its numbers, which are then weights."""
    choice = _choice(indices, len(weight))
    if weight.numel() <= MOST_OF_TABLE:
        return torch.where(choice.unsqueeze(-1), weight, 0.0).sum(-2)
    return torch.where(choice, 1.0, 0.0) @ weight


def _one_hot(index: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 1:
        raise Unsupported("the number of its classes depends on values; give num_classes")
    return torch.where(_choice(index, num_classes), 1.0, 0.0)


def _written(choice: Tensor, lines: Tensor, source: Tensor | float) -> Tensor:
    """lines [.., n] with the source [.., m], or a number, at the places of a choice [.., m, n]."""
    if not isinstance(source, Tensor):
        return torch.where(torch.where(choice, 1.0, 0.0).amax(-2) != 0, source, lines)
    order = torch.arange(1.0, choice.shape[-2] + 1).unsqueeze(-1)
    last = torch.where(choice, order, 0.0).amax(-2, True)
    written = torch.logical_and(choice, order == last)
    sums = torch.where(written, source.unsqueeze(-1), 0.0).sum(-2)
    return torch.where(last.squeeze(-2) != 0, sums, lines)


def _reduced(kind: str, include: bool, choice: Tensor, lines: Tensor, source: Tensor) -> Tensor:
    """lines [.., n] with the source [.., m] reduced at the places of a choice [.., m, n]. include: the
    elements of the lines, too."""
    parts = torch.where(choice, source.unsqueeze(-1), NEUTRAL[kind])
    counts = torch.where(choice, 1.0, 0.0).sum(-2)
    if kind in ("sum", "mean"):
        sums = parts.sum(-2)
        reduced = lines + sums if include else sums
        if kind == "mean":
            reduced = reduced / torch.maximum(counts + float(include), torch.ones(()))
    elif kind == "prod":
        reduced = lines * parts.prod(-2) if include else parts.prod(-2)
    else:
        extreme, both = (parts.amax(-2), torch.maximum) if kind == "amax" else (parts.amin(-2), torch.minimum)
        reduced = both(lines, extreme) if include else extreme
    return reduced if include else torch.where(counts != 0, reduced, lines)


def _scattered(
    change: Callable[[Tensor, Tensor, Any], Tensor], x: Tensor, dim: int, index: Tensor, source: Any
) -> Tensor:
    """x with a change of its lines along a dimension; index, source: [.., m, ..]."""
    if not x.ndim:
        return _scattered(change, x.reshape(1), 0, index.reshape(1), _of_rank_1(source)).reshape(())
    if not index.ndim:
        index, source = index.reshape(1), _of_rank_1(source)
    for d, extent in enumerate(index.shape):
        if d != dim % x.ndim and extent != x.shape[d]:
            some, rest = x.split([extent, x.shape[d] - extent], d)
            return torch.cat([_scattered(change, some, dim, index, source), rest], d)
    if isinstance(source, Tensor):
        for d, extent in enumerate(index.shape):
            source = source.narrow(d, 0, extent) if source.shape[d] != extent else source
        source = source.movedim(dim, -1)
    lines = x.movedim(dim, -1)
    choice = _choice(index.movedim(dim, -1), lines.shape[-1])
    return change(choice, lines, source).movedim(-1, dim)


def _of_rank_1(source: Any) -> Any:
    return source.reshape(1) if isinstance(source, Tensor) else source


def _scatter(x: Tensor, dim: int, index: Tensor, source: Any) -> Tensor:
    return _scattered(_written, x, dim, index, source)


def _scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scattered(partial(_reduced, "sum", True), x, dim, index, src)


def _scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    return _scattered(partial(_reduced, reduce, include_self), x, dim, index, src)


def _scatter_number(x: Tensor, dim: int, index: Tensor, value: float, *, reduce: str) -> Tensor:
    return _scatter_reduced(x, dim, index, torch.full(index.shape, float(value)), reduce=reduce)


def _scatter_reduced(x: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str) -> Tensor:
    return _scatter_reduce(x, dim, index, src, {"add": "sum", "multiply": "prod"}[reduce])


def _by_index(
    change: Callable[[Tensor, Tensor, Any], Tensor], x: Tensor, dim: int, index: Tensor, source: Any
) -> Tensor:
    """x with a change of slices of a dimension, at places [m]."""
    if not x.ndim:
        return _by_index(change, x.reshape(1), 0, index.reshape(1), _of_rank_1(source)).reshape(())
    lines = x.movedim(dim, -1)
    choice = _choice(index.reshape(-1), lines.shape[-1])
    if isinstance(source, Tensor):
        source = source.movedim(dim, -1)
    choice = choice.expand(*lines.shape[:-1], *choice.shape)
    return change(choice, lines, source).movedim(-1, dim)


def _index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    return _by_index(partial(_reduced, "sum", True), x, dim, index, source * alpha)


def _index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _by_index(_written, x, dim, index, source)


def _index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    return _by_index(_written, x, dim, index, value)


def _put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """x[places, ..] = values, or += ; or x[truth values] = a number."""
    dims = [d for d, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    if given[0].dtype == torch.bool:
        if len(indices) > 1 or values.numel() > 1 or accumulate:
            raise Unsupported("where truth values choose the elements, one number can be written to all")
        mask = given[0].reshape(*given[0].shape, *(1,) * (x.ndim - given[0].ndim))
        return torch.where(mask, values.reshape(()), x)
    if dims != list(range(dims[0], dims[0] + len(dims))):
        raise Unsupported("it writes at places of dimensions that are apart")
    choice, extents = _choice_of_several(x, dims, given)
    wanted = torch.Size([*x.shape[: dims[0]], *extents, *x.shape[dims[-1] + 1 :]])
    last = list(range(-len(dims), 0))
    lines = x.movedim(dims, last)
    source = values.expand(wanted)
    if extents:
        source = source.movedim(
            list(range(dims[0], dims[0] + len(extents))), list(range(-len(extents), 0))
        ).flatten(-len(extents))
    else:
        source = source.unsqueeze(-1)
    change = partial(_reduced, "sum", True) if accumulate else _written
    rest = lines.shape[: -len(dims)]
    changed = change(choice.expand(*rest, *choice.shape), lines.flatten(-len(dims)), source)
    return changed.reshape(lines.shape).movedim(last, dims)


def _bucket(x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The number of boundaries below each element, or also at it."""
    mine = x.unsqueeze(-1)
    below = boundaries <= mine if right else boundaries < mine
    return torch.where(below, 1.0, 0.0).sum(-1)


def _searched(
    sorted_sequence: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    if sorter is not None:
        raise Unsupported("its sequence is put in order by another tensor")
    behind = right or side == "right"
    lines = sorted_sequence if sorted_sequence.ndim == 1 else sorted_sequence.unsqueeze(-2)
    return _bucket(x, lines, right=behind)


FORMULAS: dict[Any, Callable[..., Any]] = {
    aten.gather.default: _gathered,
    aten.take.default: _taken,
    aten.take_along_dim.default: _taken_along,
    aten.index_select.default: _selected,
    aten.index.Tensor: _indexed,
    aten.embedding.default: _looked_up,
    aten.one_hot.default: _one_hot,
    **dict.fromkeys([aten.scatter.src, aten.scatter.value], _scatter),
    aten.scatter_add.default: _scatter_add,
    aten.scatter_reduce.two: _scatter_reduce,
    aten.scatter.reduce: _scatter_reduced,
    aten.scatter.value_reduce: _scatter_number,
    aten.index_add.default: _index_add,
    aten.index_copy.default: _index_copy,
    aten.index_fill.int_Scalar: _index_fill,
    aten.index_put.default: _put,
    aten.bucketize.Tensor: _bucket,
    aten.searchsorted.Tensor: _searched,
}
"""By call: a function with its parameters."""
