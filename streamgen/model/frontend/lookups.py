"""Lookups: rows of a table by ids, elements of a tensor by constant indices.

A comparison of ids with 0, 1, 2, ... along a dimension of their own, as `one_hot` has it, looks up rows of
zeros and a one. A place that the module computes is no id: `chosen` compares it with all places.

A module may tell padding from other ids by comparing them with the padding index of the table in which it
looks them up (`torch.nn.Embedding(padding_idx=...)`), for example to count positions. The host gives the
accelerator sequences without padding, so such a comparison is a constant: no id is padding.
"""

from math import prod
from typing import Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from streamgen.model.frontend.draft import MOST_COUNTED, Draft
from streamgen.model.frontend.moves import MOVES, RENAMES
from streamgen.model.frontend.trace import Unsupported, arguments, aten, is_ids, shape
from streamgen.model.operations import Embedding


def embedding(draft: Draft, node: Node) -> None:
    """A row of a table for each id; rows of a value by constant places."""
    table, ids = node.args[:2]
    if draft.knows(table) and ids in draft.constants.tensors:
        return draft.keep(node, draft.form(node, table, lambda c: c)[draft.constants.tensors[ids]])
    return _looked_up(draft, node, table, ids)


def _looked_up(draft: Draft, node: Node, table: Any, ids: Any) -> None:
    if draft.knows(table) or table in draft.tables:
        raise Unsupported("its table is computed at run time")
    if _are_computed(draft, ids):
        raise Unsupported("its places are computed at run time")
    order, columns = draft.form(node, ids, draft.elements.spread)
    rows, *extents = shape(table)
    features = prod(extents)
    array = draft.constants.array(node, table)
    op = Embedding(array if array.ndim == 2 else array.reshape(rows, features))  # a tied head is this array
    names = [draft.add(node, "embedding", op, draft.value(node, column)) for column in columns.split(1)]
    places = order.places[:, :, None] * features + torch.arange(features)
    draft.spread(node, [(name, features) for name in names], order.moved(places.flatten(1)))


def are_ids(draft: Draft, source: Any) -> bool:
    """Whether a tensor holds ids of an input."""
    contents = draft.contents.get(source) if isinstance(source, Node) else None
    if not isinstance(contents, torch.Tensor) or not contents.numel() or not is_ids(source.meta.get("val")):
        return False
    columns = (contents // draft.elements.stride).reshape(-1).unique()
    return all(name in draft.sequences.ids for name, _ in draft.elements.parts(columns))


def _are_computed(draft: Draft, places: Node) -> bool:
    """Whether integers are no ids of an input, but made of other values."""
    contents = draft.contents.get(places)
    known = draft.sequences.padding is not None and contents is not None
    return draft.is_whole(contents) or (known and not are_ids(draft, places))


def _rows(draft: Draft, node: Node) -> None:
    """table[ids], or table.index_select(0, ids)."""
    table: Any = node.args[0]
    if node.target == aten.index_select.default:
        _, other, ids = node.args
    else:
        ids, *other = node.args[1]
    if ids is None or other:
        raise Unsupported("ids can choose whole rows of a table, by its first dimension")
    _looked_up(draft, node, table, ids)


def _indexed(draft: Draft, node: Node) -> None:
    """x[:, indices], or x.index_select(dim, indices)."""
    source: Any = node.args[0]
    if source in draft.constants.tensors:
        return _rows(draft, node)
    others = [n for n in node.all_input_nodes if n is not source]
    if not draft.knows(source) or any(draft.knows(n) for n in others):
        raise Unsupported("its indices are computed at run time")
    contents = draft.form(node, source, lambda c: c)

    def constant(n: Node) -> torch.Tensor:
        return contents if n is source else draft.constants.tensors[n]

    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), constant)
    function: Any = node.target
    draft.keep(node, function(*args, **kwargs))


def require_lookup(draft: Draft, node: Node) -> None:
    """Raise Unsupported for a call that computes with ids, instead of looking them up or moving them."""
    known = [source for source in node.all_input_nodes if draft.knows(source) and not _is_truth(source)]
    exact = node.target in COMPARED | CLAMPS or getattr(node.meta.get("val"), "is_floating_point", bool)()
    integers = [source for source in known if is_ids(source.meta.get("val"))]
    allowed = draft.is_whole if exact else draft.are_counted
    if node.target not in OF_IDS and not all(allowed(draft.contents.get(source)) for source in integers):
        if any(_are_computed(draft, source) for source in integers):
            raise Unsupported("it computes with integers that may be below 0 or above 65535")
        raise Unsupported("ids can be looked up in an embedding, and nothing else")
    whole = any(not source.meta["val"].is_floating_point() for source in known)
    numbers = [number for number in node.args if isinstance(number, int | float)]
    if whole and node.target in COMPARED and any(abs(number) > MOST_COUNTED + 1 for number in numbers):
        raise Unsupported(f"it compares integers with a number above {MOST_COUNTED + 1}")


def compared_with_places(draft: Draft, node: Node) -> bool:
    """Read `ids.unsqueeze(-1) == torch.arange(n)` as rows of a table of zeros and ones, for ids below n.
    False for any other call."""
    if node.target not in (aten.eq.Tensor, aten.eq_.Tensor):
        return False
    ids, other = node.args[:2]
    places = draft.constants.tensors.get(other) if isinstance(other, Node) else None
    if not isinstance(ids, Node) or not is_ids(ids.meta.get("val")) or ids not in draft.contents:
        return False
    if _are_computed(draft, ids) or _is_truth(ids) or not isinstance(places, torch.Tensor):
        return False
    count = places.numel()
    extents = (*shape(ids)[:-1], count)
    if shape(ids)[-1:] != (1,) or shape(node) != extents or not is_ids(places):
        return False
    if not torch.equal(places.reshape(-1), torch.arange(count)) or places.shape[-1] != count:
        return False
    order, columns = draft.form(node, ids, draft.elements.spread)
    table = Embedding(torch.eye(count).numpy())
    names = [draft.add(node, "one_hot", table, draft.value(node, column)) for column in columns.split(1)]
    each = order.places[:, :, None] * count + torch.arange(count)
    draft.spread(node, [(name, count) for name in names], order.moved(each.flatten(1)))
    return True


def told_from_padding(draft: Draft, node: Node) -> bool:
    """Make a constant of a comparison of ids with the padding index of their table, and note that the ids of
    this input must not be padding. False for any other call, and where nothing keeps padding out."""
    if node.target not in COMPARISONS or draft.sequences.padding is None:
        return False
    ids, other = node.args[:2]
    if isinstance(other, Node):
        constant = draft.constants.tensors.get(other)
        other = constant.item() if isinstance(constant, torch.Tensor) and constant.numel() == 1 else None
    if not isinstance(ids, Node) or type(other) is not int or not is_ids(ids.meta.get("val")):
        return False
    origins = _origins(draft, ids)
    tables = (
        call
        for call in node.graph.find_nodes(op="call_function", target=aten.embedding.default)
        if isinstance(call.args[1], Node) and arguments(call)["padding_idx"] == other >= 0
    )
    if len(origins) != 1 or not any(_origins(draft, call.args[1]) == origins for call in tables):
        return False
    columns = draft.contents[next(iter(origins))] // draft.elements.stride
    (name,) = {name for name, _ in draft.elements.parts(columns.reshape(-1))}
    draft.sequences.padding.setdefault(name, set()).add(other)
    draft.constants.tensors[node] = torch.full(shape(node), COMPARISONS[node.target])
    draft.masked = True
    return True


def _origins(draft: Draft, node: Node) -> set[Node]:
    """The inputs of the module whose elements a call moves; itself for any other call."""
    if node.op == "call_function" and node.target in MOVES | RENAMES:
        return {origin for source in node.all_input_nodes for origin in _origins(draft, source)}
    return {node}


def require_in_order(draft: Draft, node: Node) -> None:
    """Raise Unsupported for a search in an input, or in a constant that is not in order: torch does not say
    what it then finds."""
    value = node.args[BOUNDARIES[node.target]]
    if not isinstance(value, Node):
        return
    constant = draft.constants.tensors.get(value)
    ordered = constant is None or bool((constant.diff(dim=-1) >= 0).all())
    if not ordered or (constant is None and any(n.op == "placeholder" for n in _origins(draft, value))):
        raise Unsupported("it searches in numbers that may not be in order; sort them first")


def require_equal_bags(draft: Draft, node: Node) -> None:
    """Raise Unsupported for bags of ids of different sizes, and for bags that are known at run time only."""
    ids, offsets = node.args[1:3]
    first = draft.constants.tensors.get(offsets)
    count, ends = shape(ids)[0], bool(arguments(node).get("include_last_offset"))
    bags = shape(offsets)[0] - ends
    wanted = torch.arange(bags + ends) * (count // max(bags, 1))
    if first is None or count % max(bags, 1) or not torch.equal(first.long(), wanted):
        raise Unsupported("its bags must hold as many ids each, such as the rows of ids [bags, size]")


def require_counted(draft: Draft, node: Node) -> None:
    """Raise Unsupported for indices of run time that may be below 0, from where torch counts back."""
    for index in pytree.tree_leaves(node.args[1]):
        contents = draft.contents.get(index)
        if draft.is_whole(contents) and not draft.are_counted(contents):
            raise Unsupported(
                "its places may be below 0 or above 65535; a clamp to the places that are meant, in front of "
                "the cast to integers, says that they are not"
            )


def _is_truth(source: Node) -> bool:
    """Whether it is truth values that the module computes."""
    if getattr(source.meta.get("val"), "dtype", None) != torch.bool:
        return False
    while source.op == "call_function" and source.target in MOVES | RENAMES:
        source = source.all_input_nodes[0]
        if source.meta["val"].is_floating_point():
            return True  # a cast of floats compares them with 0
    return source.op == "call_function"


CALLS = {
    aten.embedding.default: embedding,
    **dict.fromkeys([aten.index.Tensor, aten.index_select.default], _indexed),
}
WRITES = {aten.index_put_.default, aten.index_copy_.default, aten.copy_.default}  # ids over ids
OF_IDS = CALLS.keys() | WRITES
FROM_BEHIND = {aten.index.Tensor, aten.index_put.default, aten.take.default}
"""Calls that take places below 0."""
BAGS = (aten.embedding_bag.default, aten.embedding_bag.padding_idx)
BOUNDARIES = {aten.bucketize.Tensor: 1, aten.searchsorted.Tensor: 0}
"""Calls that search in sorted numbers: the place of that argument."""
CLAMPS = {aten.clamp.default, aten.clip.default, aten.clamp_.default}
COMPARED = {
    getattr(packet, overload)
    for packet in (aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge)
    for overload in ("Scalar", "Tensor")
}
COMPARISONS = {aten.ne.Scalar: True, aten.ne.Tensor: True, aten.eq.Scalar: False, aten.eq.Tensor: False}
"""The calls that tell ids from padding: their result for ids that are none."""
