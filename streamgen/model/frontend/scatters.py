"""Calls that join elements at places that a constant says: scatter_add, index_add, index_put and the like.

Each place that is meant becomes one line of elements, which are reduced together. Lines of fewer elements are
filled with elements that change nothing.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from streamgen.model.frontend.draft import Draft
from streamgen.model.frontend.index_moves import filled, read
from streamgen.model.frontend.on_contents import OnContents
from streamgen.model.frontend.trace import Unsupported, arguments, aten

NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0}
"""By reduction: the number that changes nothing; an extreme is filled with one of its own elements."""
AT_RUN_TIME = "the places that it writes are chosen at run time"


def _constant(draft: Draft, value: Any) -> torch.Tensor:
    if value not in draft.constants.tensors:
        raise Unsupported(AT_RUN_TIME)
    places: torch.Tensor = draft.constants.tensors[value]
    return places


def _scattered(draft: Draft, node: Node, kind: str) -> None:
    """scatter_add and scatter_reduce: element by element."""
    given = arguments(node)
    index, source = _constant(draft, given["index"]), read(draft, node, given["src"])
    x = read(draft, node, given["self"])
    places = torch.arange(x.numel()).reshape(x.shape)
    if x.ndim:
        places = places.gather(given["dim"], index)
    parts = source[tuple(map(slice, index.shape))] if x.ndim else source
    include = bool(given.get("include_self", True))
    _joined(draft, node, given.get("reduce") or kind, x, places, parts, include)


def _indexed(draft: Draft, node: Node, kind: str) -> None:
    """index_add and index_reduce: slices of a dimension."""
    given = arguments(node)
    index, x = _constant(draft, given["index"]), read(draft, node, given["self"])
    places = torch.arange(x.numel()).reshape(x.shape)
    if x.ndim:
        places = places.index_select(given["dim"], index)
    include = bool(given.get("include_self", True))
    parts = OnContents(draft, node).scaled(read(draft, node, given["source"]), float(given.get("alpha", 1)))
    _joined(draft, node, given.get("reduce") or kind, x, places, parts, include)


def _copied(draft: Draft, node: Node) -> None:
    """index_copy in place."""
    given = arguments(node)
    x = read(draft, node, given["self"])
    index = _constant(draft, given["index"])
    draft.keep(node, x.index_copy(given["dim"], index, read(draft, node, given["source"])))


def _put(draft: Draft, node: Node) -> None:
    """index_put, and put, which counts elements of all dimensions."""
    given = arguments(node)
    x = read(draft, node, given["self"])
    places = torch.arange(x.numel()).reshape(x.shape)
    if "indices" in given:
        indices = [None if index is None else _constant(draft, index) for index in given["indices"]]
        places = aten.index.Tensor(places, indices)
        parts = read(draft, node, given["values"]).expand(places.shape)
    else:
        places = places.reshape(-1)[_constant(draft, given["index"])]
        parts = read(draft, node, given["source"]).reshape(places.shape)
    if given.get("accumulate"):
        return _joined(draft, node, "sum", x, places, parts, True)
    contents = x.reshape(-1).clone()
    contents[places.reshape(-1)] = parts.reshape(-1)
    draft.keep(node, contents.reshape(x.shape))
    return None


def _joined(
    draft: Draft,
    node: Node,
    kind: str,
    x: torch.Tensor,
    places: torch.Tensor,
    parts: torch.Tensor,
    include: bool,
) -> None:
    """Set the result: x, with the parts at each place reduced, with the element of x there if it is
    included."""
    on, kind = OnContents(draft, node), {"add": "sum", "amax": "max", "amin": "min"}.get(kind, kind)
    flat = x.reshape(-1)
    wanted, owners = places.reshape(-1).unique(return_inverse=True)
    lines = [[int(flat[place])] if include else [] for place in wanted.tolist()]
    for owner, part in zip(owners.tolist(), parts.reshape(-1).tolist(), strict=True):
        lines[owner].append(part)
    if not lines:
        return draft.keep(node, x)
    counts = torch.tensor([len(line) for line in lines])
    most = int(counts.max())
    table = torch.tensor([line + line[:1] * (most - len(line)) for line in lines])
    if kind in NEUTRAL:
        table = filled(draft, table, torch.arange(most) >= counts[:, None], NEUTRAL[kind])
    reduce: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "max": on.greatest,
        "min": on.least,
        "prod": on.folded,
    }
    reduced = reduce.get(kind, lambda some: on.reduced("sum", some))(table)
    if kind == "mean":
        for count in counts.unique().tolist():
            chosen = counts == count
            reduced[chosen] = on.scaled(reduced[chosen], 1 / count)
    contents = flat.clone()
    contents[wanted] = reduced
    draft.keep(node, contents.reshape(x.shape))
    return None


def _of(handle: Callable[[Draft, Node, str], None], kind: str) -> Callable[[Draft, Node], None]:
    return lambda draft, node: handle(draft, node, kind)


CALLS: dict[Any, Callable[[Draft, Node], None]] = {
    aten.index_copy_.default: _copied,
    **dict.fromkeys([aten.scatter_add.default, aten.scatter_add_.default], _of(_scattered, "sum")),
    **dict.fromkeys([aten.scatter_reduce.two, aten.scatter_reduce_.two], _of(_scattered, "sum")),
    **dict.fromkeys([aten.index_add.default, aten.index_add_.default], _of(_indexed, "sum")),
    **dict.fromkeys([aten.index_reduce.default, aten.index_reduce_.default], _of(_indexed, "sum")),
    **dict.fromkeys(
        [
            aten.index_put.default,
            aten.index_put_.default,
            aten._unsafe_index_put.default,
            aten.put.default,
            aten.put_.default,
        ],
        _put,
    ),
}
