"""Calls that reduce features: sums, means, extremes, variances, norms, products, running sums.

mean               sum · (1 / n)                      amin               -max(-x)
var                squares(x - mean(x)) / (n - c)     logsumexp          log(sum(exp(x - max))) + max
norm of order 1    sum(|x|);   2    root(squares(x));   infinite    max(|x|)
prod               halves times halves                cumsum             log2(n) sums of shifted features

A mean, a variance or a root that is part of a norm stays half of that norm (`norms`); `Draft.plainly` says
when it is not. Products of two values are sums of products of their elements, features of one token.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from streamgen.model.frontend.draft import Draft
from streamgen.model.frontend.linears import CALLS as LINEARS
from streamgen.model.frontend.norms import CALLS as NORMS
from streamgen.model.frontend.on_contents import OnContents
from streamgen.model.frontend.trace import Unsupported, arguments, aten, is_ids, shape
from streamgen.model.operations import Binary

INTEGERS = "it returns places of elements, which are integers; values and results are floats"
MOST_PRODUCTS = 1 << 12  # of elements, in a product of two values that are one row
MOST_WITHIN = 1 << 15  # of elements of each row, in a product of lines within rows
Lines = Callable[[OnContents, torch.Tensor], torch.Tensor]


def _dims(given: Any, rank: int) -> list[int]:
    """The dimensions of an argument, in order; all of them if there is none."""
    if given is None or given == []:
        return list(range(rank))
    listed = [given] if isinstance(given, int) else list(given)
    return sorted({d % rank for d in listed}) if rank else []


def _read(draft: Draft, node: Node, source: Any) -> torch.Tensor:
    contents: torch.Tensor = draft.form(node, source, lambda c: c)
    if not contents.numel():
        raise Unsupported("it reduces no elements")
    return contents


def _lines(draft: Draft, node: Node) -> tuple[OnContents, torch.Tensor]:
    """The elements of the first argument that are reduced together."""
    contents = _read(draft, node, node.args[0])
    on = OnContents(draft, node)
    return on, on.lines(contents, _dims(arguments(node).get("dim"), contents.ndim))


def _reduction(reduce: Lines, draft: Draft, node: Node) -> None:
    on, lines = _lines(draft, node)
    truths = node.args[0].meta["val"].dtype == torch.bool
    most = 1 if truths else draft.counted(lines)
    draft.keep(node, reduce(on, lines).reshape(shape(node)))
    if is_ids(node.meta["val"]) and most is not None and (truths or node.target in COUNTING):
        draft.count(draft.contents[node], most * lines.shape[1])


def _pair(
    reduce: Callable[[OnContents, torch.Tensor], Sequence[torch.Tensor | None]], draft: Draft, node: Node
) -> None:
    """Several results; None for one that cannot be computed."""
    shapes = [value.shape for value in node.meta["val"]]
    results = reduce(*_lines(draft, node))
    draft.contents[node] = [
        None if result is None else result.reshape(extents)
        for result, extents in zip(results, shapes, strict=True)
    ]


def _extreme(reduce: Lines, draft: Draft, node: Node) -> None:
    """The values of max or min of a dimension, if nothing reads their places."""
    if any(user.args[1] == 1 and user.users for user in node.users):
        raise Unsupported(INTEGERS)
    _pair(lambda on, lines: (reduce(on, lines), None), draft, node)


def _correction(node: Node) -> float:
    given = arguments(node)
    if "unbiased" in given:
        return float(given["unbiased"])
    correction = given.get("correction")
    return 1.0 if correction is None else float(correction)


def _root(on: OnContents, x: torch.Tensor) -> torch.Tensor:
    return on.function("sqrt", x)


def _variance(draft: Draft, node: Node) -> None:
    _reduction(lambda on, lines: on.variance(lines, _correction(node)), draft, node)


def _deviation(draft: Draft, node: Node) -> None:
    _reduction(lambda on, lines: _root(on, on.variance(lines, _correction(node))), draft, node)


def _variance_mean(draft: Draft, node: Node) -> None:
    _pair(lambda on, lines: (on.variance(lines, _correction(node)), on.mean(lines)), draft, node)


def _deviation_mean(draft: Draft, node: Node) -> None:
    _pair(lambda on, lines: (_root(on, on.variance(lines, _correction(node))), on.mean(lines)), draft, node)


def _of_order(order: Any, on: OnContents, lines: torch.Tensor) -> torch.Tensor:
    """A norm of vectors."""
    order = 2.0 if order is None or order == "fro" else order
    if order == 2:
        return _root(on, on.reduced("squares", lines))
    if order == 1:
        return on.reduced("sum", on.size(lines))
    if order == math.inf:
        return on.greatest(on.size(lines))
    if order == -math.inf:
        return on.least(on.size(lines))
    raise Unsupported(f"it is a norm of order {order}; 1, 2 and infinite ones can be compiled")


def _norm(draft: Draft, node: Node) -> None:
    given = arguments(node)
    order = given.get("ord", given.get("p", 2))
    dims, rank = given.get("dim"), len(shape(node.args[0]))
    matrix = (dims is None and rank == 2) or (isinstance(dims, Sequence) and len(dims) == 2)
    if node.target == aten.linalg_norm.default and order is not None and matrix:
        raise Unsupported("it is a norm of matrices")
    _reduction(partial(_of_order, order), draft, node)


def _log_sum_exp(on: OnContents, lines: torch.Tensor) -> torch.Tensor:
    greatest = on.greatest(lines)
    terms = on.function("exp", on.add(lines, on.negated(greatest)[:, None]))
    return on.add(on.function("log", on.reduced("sum", terms)), greatest)


def _running(operation: str, draft: Draft, node: Node) -> None:
    contents = _read(draft, node, node.args[0])
    if not contents.ndim:
        return draft.keep(node, contents.clone())
    moved = contents.movedim(arguments(node)["dim"], -1)
    lines = OnContents(draft, node).running(Binary(operation), moved.reshape(-1, moved.shape[-1]))
    draft.keep(node, lines.reshape(moved.shape).movedim(-1, arguments(node)["dim"]))


def _trace(draft: Draft, node: Node) -> None:
    on = OnContents(draft, node)
    draft.keep(node, on.reduced("sum", _read(draft, node, node.args[0]).diagonal()[None]).reshape(()))


def _sum_to_size(draft: Draft, node: Node) -> None:
    contents, extents = _read(draft, node, node.args[0]), shape(node)
    lead = contents.ndim - len(extents)
    dims = [d for d in range(contents.ndim) if d < lead or extents[d - lead] != contents.shape[d]]
    on = OnContents(draft, node)
    draft.keep(node, on.reduced("sum", on.lines(contents, dims)).reshape(extents))


def _difference(draft: Draft, node: Node) -> None:
    """mse_loss and l1_loss."""
    a, b = (_read(draft, node, source) for source in node.args[:2])
    on = OnContents(draft, node)
    apart = on.add(a, on.negated(b))
    squared = node.target == aten.mse_loss.default
    kind = arguments(node)["reduction"]
    if kind == 0:
        return draft.keep(node, on.multiply(apart, apart) if squared else on.size(apart))
    lines = (apart if squared else on.size(apart)).reshape(1, -1)
    total = on.reduced("squares" if squared else "sum", lines)
    draft.keep(node, on.scaled(total, 1 / lines.shape[1] if kind == 1 else 1.0).reshape(()))


def _product(draft: Draft, node: Node) -> None:
    """A product of two values that are one row, or of lines within rows."""
    before = LINEARS.get(node.target)
    a, b = node.args[:2]
    values = a in draft.contents and b in draft.contents
    values = values and (draft.elements.stride == 1 or draft.may_multiply_within())
    if before is not None and (node not in draft.plainly or not values):
        try:
            return before(draft, node)
        except Unsupported:
            if not values:
                raise
    if not values:
        raise Unsupported("a product of two values must be of features of one token, or of one row")
    x, y = (_read(draft, node, source) for source in (a, b))
    y = y[:, None] if y.ndim == 1 else y
    left, right = (
        torch.broadcast_tensors(x.unsqueeze(-2), y.mT.unsqueeze(-3))
        if x.ndim > 1
        else (torch.broadcast_tensors(x, y.mT))
    )
    most = MOST_WITHIN if draft.may_multiply_within() else MOST_PRODUCTS
    if (count := left.numel() // draft.elements.rows) > most:
        raise Unsupported(f"it is {count} products of elements; at most {most} can be compiled")
    on = OnContents(draft, node)
    products = on.multiply(left, right)
    draft.keep(node, on.reduced("sum", products.reshape(-1, products.shape[-1])).reshape(shape(node)))


def _outer(draft: Draft, node: Node) -> None:
    a, b = (_read(draft, node, source) for source in node.args[:2])
    draft.keep(node, OnContents(draft, node).multiply(a[:, None], b[None]))


def _half_first(reduce: Callable[[Draft, Node], None], draft: Draft, node: Node) -> None:
    """Half of a norm if it can be one, and unless it is known that it is not."""
    if node in draft.plainly:
        return reduce(draft, node)
    try:
        NORMS[node.target](draft, node)
    except Unsupported as reason:
        try:
            reduce(draft, node)
        except Unsupported as other:
            raise (reason if reason.args and node.args[0] in draft.partial else other) from None


COUNTING = {
    aten.amax.default,
    aten.amin.default,
    aten.max.default,
    aten.min.default,
    aten.sum.default,
    aten.sum.dim_IntList,
}
"""Calls whose results are no greater than the sum of their elements, if these are whole numbers."""
MEAN = partial(_reduction, OnContents.mean)
CALLS: dict[Any, Callable[[Draft, Node], None]] = {
    **dict.fromkeys(
        [aten.sum.default, aten.sum.dim_IntList],
        partial(_reduction, lambda on, lines: on.reduced("sum", lines)),
    ),
    aten.mean.default: MEAN,
    aten.mean.dim: partial(_half_first, MEAN),
    **dict.fromkeys([aten.var.correction, aten.var.dim], partial(_half_first, _variance)),
    aten.var.default: _variance,
    **dict.fromkeys([aten.std.default, aten.std.dim, aten.std.correction], _deviation),
    **dict.fromkeys([aten.var_mean.default, aten.var_mean.dim, aten.var_mean.correction], _variance_mean),
    **dict.fromkeys([aten.std_mean.default, aten.std_mean.dim, aten.std_mean.correction], _deviation_mean),
    **dict.fromkeys([aten.amax.default, aten.max.default], partial(_reduction, OnContents.greatest)),
    **dict.fromkeys([aten.amin.default, aten.min.default], partial(_reduction, OnContents.least)),
    aten.max.dim: partial(_extreme, OnContents.greatest),
    aten.min.dim: partial(_extreme, OnContents.least),
    aten.aminmax.default: partial(_pair, lambda on, lines: (on.least(lines), on.greatest(lines))),
    **dict.fromkeys([aten.prod.default, aten.prod.dim_int], partial(_reduction, OnContents.folded)),
    aten.logsumexp.default: partial(_reduction, _log_sum_exp),
    **dict.fromkeys(
        [
            aten.linalg_norm.default,
            aten.linalg_vector_norm.default,
            aten.norm.Scalar,
            aten.norm.ScalarOpt_dim,
        ],
        _norm,
    ),
    aten.cumsum.default: partial(_running, "add"),
    aten.cumprod.default: partial(_running, "mul"),
    aten.trace.default: _trace,
    aten.sum_to_size.default: _sum_to_size,
    **dict.fromkeys([aten.mse_loss.default, aten.l1_loss.default], _difference),
    **dict.fromkeys(
        [aten.matmul.default, aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default], _product
    ),
    **dict.fromkeys([aten.outer.default, aten.ger.default], _outer),
}
