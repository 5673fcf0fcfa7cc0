"""Calls that multiply by parameters: Linear, `x @ W`, and products of two matrices in an attention."""

from typing import Any

import numpy as np
import torch
from torch.fx import Node

from streamgen.model.frontend.by_line import by_line
from streamgen.model.frontend.draft import Draft
from streamgen.model.frontend.frames import CONVOLUTIONS, window_of, windows
from streamgen.model.frontend.self_attention import Scores
from streamgen.model.frontend.trace import Unsupported, arguments, aten, shape
from streamgen.model.operations import Binary, Linear

COMPUTED = "its weight or bias is computed at run time"


def _linear(draft: Draft, node: Node) -> None:
    x, weight, bias = (*node.args, None)[:3]
    _product(draft, node, x, weight, bias)


def _product(draft: Draft, node: Node, x: Any, weight: Any, bias: Any, *, transposed: bool = False) -> None:
    """x @ weight.T + bias, or x @ weight + bias."""
    if not draft.knows(x) or any(draft.knows(p) for p in (weight, bias)):
        raise Unsupported(COMPUTED)
    try:
        rows, columns = draft.form(node, x, draft.elements.lines)
    except Unsupported:
        if not draft.may_multiply_within():
            raise
        return _within_rows(draft, node, x, weight, bias, transposed=transposed)
    columns = draft.settled(columns)
    array = draft.constants.array(node, weight)
    if transposed:
        array = array.reshape(len(columns), -1).T
    offset = None if bias is None else draft.constants.array(node, bias).reshape(-1)
    grid = draft.constants.grid(weight, transposed)
    whole = Linear(array, offset, grid, draft.constants.asked(weight))
    if draft.is_simple(columns):
        name = draft.linear(node, draft.named(node), whole, draft.value(node, columns))
    else:
        name = _of_parts(draft, node, columns, whole)
    draft.lines(node, name, rows, len(array))


def _within_rows(
    draft: Draft, node: Node, x: Any, weight: Any, bias: Any, *, transposed: bool = False
) -> None:
    """`_product` of several lines of each row."""
    contents = draft.form(node, x, lambda c: c)
    array = draft.constants.array(node, weight)
    array = array.reshape(shape(weight)[-2:]).T if transposed and array.ndim > 1 else array
    array = array.reshape(-1, contents.shape[-1])
    offset = None if bias is None else draft.constants.array(node, bias).reshape(-1)
    said = draft.constants.asked(weight), draft.constants.grid(weight, transposed)
    found = by_line(draft, node, contents, lambda _: array, offset, *said)
    draft.keep(node, found.reshape(shape(node)))


def _of_several(draft: Draft, node: Node, x: Any, weights: Any) -> None:
    """x @ weights [.., in, out], with weights of their own for each leading index, within rows."""
    contents = draft.form(node, x, lambda c: c)
    lead = shape(node)[:-1]
    contents = contents.expand(*lead, contents.shape[-1])
    array = draft.constants.array(node, weights)
    each = [np.ascontiguousarray(some.T) for some in array.reshape(-1, *array.shape[-2:])]
    which = torch.arange(len(each)).reshape(array.shape[:-2]).expand(lead[:-1])[..., None].expand(lead)
    of_line = which.reshape(-1).tolist()
    draft.keep(node, by_line(draft, node, contents, lambda line: each[of_line[line]], None))


def _of_constant(draft: Draft, node: Node, constant: Any, x: Any) -> None:
    """constant [out, in] @ x [.., in, features], within rows."""
    contents = draft.form(node, x, lambda c: c)
    array = draft.constants.array(node, constant)
    array = array.reshape(-1, array.shape[-1])
    columns = contents[:, None] if contents.ndim == 1 else contents
    found = by_line(draft, node, columns.mT.contiguous(), lambda _: array, None).mT
    draft.keep(node, found.reshape(shape(node)))


def _of_parts(draft: Draft, node: Node, columns: torch.Tensor, whole: Linear) -> str:
    """Add a Linear of a joined value: the sum of one Linear for each part, with zeros for features that are
    not read."""
    first, weight = 0, whole.floats
    weights: dict[str, np.ndarray] = {}
    for name, features in draft.elements.parts(columns):
        own = weights.setdefault(name, np.zeros((len(weight), draft.elements.size(name)), np.float32))
        np.add.at(own.T, features.numpy(), weight[:, first : first + len(features)].T)
        first += len(features)
    total = ""
    for name, own in weights.items():
        op = Linear(own, None if total else whole.bias, asked=whole.asked)
        part = draft.linear(node, draft.named(node), op, name)
        total = draft.add(node, node.name, Binary("add"), total, part) if total else part
    return total


def _matmul(draft: Draft, node: Node) -> None:
    a, b = node.args[:2]
    if a in draft.partial:
        draft.partial[a].summed(draft, node, b)
    elif (draft.knows(a) and draft.knows(b)) or _of_queries(draft, node, a, b):
        draft.half(node, Scores.of(draft, node, a, b))
    elif draft.knows(a) and shape(b).numel() == shape(b)[-2:].numel():
        _product(draft, node, a, b, None, transposed=True)
    elif draft.knows(a) and len(shape(a)) > 1 and draft.may_multiply_within():
        _of_several(draft, node, a, b)
    elif draft.knows(b) and shape(a).numel() == shape(a)[-2:].numel() and draft.may_multiply_within():
        _of_constant(draft, node, a, b)
    else:
        raise Unsupported(
            "the left operand must be a value, the right one a parameter of shape [features, features]"
        )


def _of_queries(draft: Draft, node: Node, a: Any, b: Any) -> bool:
    """Whether a product of a constant and a value is scores of constant queries: a softmax reads it."""
    if not draft.elements.framed or draft.knows(a) or not draft.knows(b) or len(shape(a)) < 3:
        return False
    readers = [user.target for user in node.users]
    return bool(readers) and all("softmax" in str(target) or target in SCALED for target in readers)


def _addmm(draft: Draft, node: Node) -> None:
    bias, x, weight = node.args[:3]
    if node.kwargs.get("alpha", 1) != 1 or node.kwargs.get("beta", 1) != 1:
        raise Unsupported("its factors alpha and beta must be 1")
    if draft.knows(bias) or shape(bias).numel() != shape(node)[-1]:
        raise Unsupported(COMPUTED)
    _product(draft, node, x, weight, bias, transposed=True)


def _baddbmm(draft: Draft, node: Node) -> None:
    mask, a, b = node.args[:3]
    if draft.knows(mask) or node.kwargs.get("beta", 1) != 1:
        raise Unsupported("only a constant mask can be added to scores")
    scores = Scores.of(draft, node, a, b).times(float(node.kwargs.get("alpha", 1)))
    draft.half(node, scores.plus(draft.tables.shown(mask)))


def _convolution(draft: Draft, node: Node) -> None:
    """A convolution whose windows touch one another: each window is a row of a Linear."""
    given = arguments(node)
    x, weight, bias = given["input"], given["weight"], given["bias"]
    kernel = window_of(node)
    if not draft.knows(x) or draft.knows(weight) or draft.knows(bias):
        raise Unsupported(COMPUTED)
    contents = draft.form(node, x, lambda c: windows(c, kernel))
    rows, columns = draft.elements.lines(contents)
    array = draft.constants.array(node, weight)
    offset = None if bias is None else draft.constants.array(node, bias)
    op = Linear(array.reshape(len(array), -1), offset, asked=draft.constants.asked(weight))
    name = draft.linear(node, draft.named(node), op, draft.value(node, draft.settled(columns)))
    results = draft.elements.indices(draft.columns(name, len(array)), rows[:, None])
    results = results.reshape(*contents.shape[:-1], len(array)).movedim(-1, -1 - len(kernel))
    draft.keep(node, results.reshape(shape(node)))


SCALED = {aten.mul.Tensor, aten.div.Tensor, aten.add.Tensor}
CALLS = {
    aten.linear.default: _linear,
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    aten.addmm.default: _addmm,
    aten.baddbmm.default: _baddbmm,
    **dict.fromkeys([aten.matmul.default, aten.mm.default, aten.bmm.default], _matmul),
}
