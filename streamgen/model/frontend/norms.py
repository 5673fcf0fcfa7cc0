"""Norms of a row, as one call or as separate operations.

rms      x * rsqrt(mean(x ** 2) + epsilon)              or x / sqrt(...)
layer    (x - mean(x)) * rsqrt(var(x) + epsilon)        var(x, unbiased=False) or mean((x - mean(x)) ** 2)

The weight of a layer norm may stand before its division: weight * (x - mean(x)) / sqrt(...).

GroupNorm is the layer norm of each group of a token's features, times one weight per feature, plus one bias
per feature.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch.fx import Node

from streamgen.model.frontend.draft import Draft
from streamgen.model.frontend.elements import ElementOrder
from streamgen.model.frontend.moves import renamed
from streamgen.model.frontend.partial import Partial
from streamgen.model.frontend.trace import Unsupported, aten, shape
from streamgen.model.operations import Binary, Constant, Norm
from streamgen.numbers.quantisation import require_finite

WRITTEN_OUT = (
    "a mean over features must be part of a norm: x * rsqrt(mean(x ** 2, -1, keepdim=True) + epsilon), or "
    "(x - mean(x)) * rsqrt(var(x) + epsilon)"
)


@dataclass(frozen=True, eq=False)
class Mean(Partial):
    """mean(x); x: contents."""

    x: torch.Tensor
    needed = WRITTEN_OUT

    def taken(self, draft: Draft, node: Node, other: Node) -> None:
        if not torch.equal(draft.contents[other], self.x):
            raise Unsupported(WRITTEN_OUT)
        draft.half(node, Centred(self.x))


@dataclass(frozen=True, eq=False)
class Centred(Partial):
    """x - mean(x), times a weight for each feature, or its square."""

    x: torch.Tensor
    squared: bool = False
    weight: torch.Tensor | None = None
    needed = WRITTEN_OUT

    def weighed(self, factors: torch.Tensor) -> "Centred":
        features = self.x.shape[-1]
        if self.squared or self.weight is not None or not factors.numel() == factors.shape[-1] == features:
            raise Unsupported(WRITTEN_OUT)
        return replace(self, weight=factors.reshape(-1))

    def square(self) -> "Centred":
        if self.squared or self.weight is not None:
            raise Unsupported(WRITTEN_OUT)
        return replace(self, squared=True)


@dataclass(frozen=True, eq=False)
class Spread(Partial):
    """mean(x ** 2) or the variance, plus epsilon; or the root of this, inverted or not."""

    kind: Literal["rms", "layer"]
    x: torch.Tensor
    epsilon: float = 0.0
    form: Literal["square", "root", "inverse"] = "square"
    needed = WRITTEN_OUT

    def plus(self, constant: torch.Tensor) -> "Spread":
        if constant.numel() != 1 or self.form != "square":
            raise Unsupported(WRITTEN_OUT)
        return replace(self, epsilon=self.epsilon + float(constant))

    def root(self, *, inverse: bool) -> "Spread":
        return replace(self, form="inverse" if inverse else "root")

    def multiplied(self, draft: Draft, node: Node, other: Node, *, divides: bool = False) -> None:
        centred, weight = draft.partial.get(other), None
        if self.kind == "layer":
            fits = isinstance(centred, Centred) and not centred.squared and torch.equal(centred.x, self.x)
            weight = centred.weight if isinstance(centred, Centred) else None
        else:
            fits = other in draft.contents and torch.equal(draft.contents[other], self.x)
        if not fits or self.form != ("root" if divides else "inverse"):
            raise Unsupported(WRITTEN_OUT)
        _norm(draft, node, self.x, self.kind, weight, None, self.epsilon)


def _norm(
    draft: Draft, node: Node, x: Any, kind: Literal["rms", "layer"], weight: Any, bias: Any, epsilon: float
) -> None:
    """Add a norm. x: a call or contents."""
    read = draft.elements.spread
    order, columns = read(x) if isinstance(x, torch.Tensor) else draft.form(node, x, read)
    heads = _heads(order, shape(node)[-1])
    given = [_parameter(draft, node, parameter) for parameter in (weight, bias)]
    factor = np.ones(len(columns) // heads, np.float32) if given[0] is None else given[0]
    op = Norm(kind, factor, epsilon, given[1], heads=heads)
    name = draft.add(node, draft.named(node), op, draft.value(node, columns))
    draft.spread(node, [(name, len(columns))], order)


def _parameter(draft: Draft, node: Node, parameter: Any) -> np.ndarray | None:
    """A weight or bias, a call or its value, float32 [features]."""
    if parameter is None:
        return None
    if isinstance(parameter, torch.Tensor):
        values: np.ndarray = parameter.cpu().to(torch.float32).numpy()
        require_finite(f"a constant of {draft.where(node)} ", values)
        return values
    if draft.knows(parameter):
        raise Unsupported("its weight or bias is computed at run time")
    return draft.constants.array(node, parameter).reshape(-1)


def _heads(order: ElementOrder, features: int) -> int:
    """The number of separately normalised pieces of a row: lines of a tensor in the layout `order`."""
    places = order.places
    whole = places.shape[1] % features == 0
    lines = places.reshape(len(places), -1, features) if whole else places[:, :0, None]
    first = lines[..., :1]
    if not lines.numel() or (first % features).any() or (lines != first + torch.arange(features)).any():
        raise Unsupported("it must normalise features of one token: whole rows, or whole heads of them")
    return lines.shape[1]


def _layer_norm(draft: Draft, node: Node) -> None:
    x, extents, weight, bias, epsilon = (*node.args, *(None, None, 1e-5)[len(node.args) - 2 :])[:5]
    _last(node, extents)
    _norm(draft, node, x, "layer", weight, bias, float(epsilon))


def _rms_norm(draft: Draft, node: Node) -> None:
    x, extents, weight, epsilon = (*node.args, None, None)[:4]
    _last(node, extents)
    if epsilon is None:
        epsilon = torch.finfo(node.meta["val"].dtype).eps
    _norm(draft, node, x, "rms", weight, None, float(epsilon))


def _group_norm(draft: Draft, node: Node) -> None:
    x, groups, weight, bias, epsilon = (*node.args, *(None, None, 1e-5)[len(node.args) - 2 :])[:5]
    order, columns = draft.form(node, x, draft.elements.spread)
    extents = shape(node)
    if (features := extents[1:].numel() // groups) == 1:
        raise Unsupported("its groups hold one feature each, so its result is only its bias")
    try:
        heads = _heads(order, features)
    except Unsupported:
        raise Unsupported(
            f"its input {list(extents)} has several tokens in a group; a group must hold features of one "
            "token, as in [tokens, channels]"
        ) from None
    op = Norm("layer", np.ones(len(columns) // heads, np.float32), float(epsilon), heads=heads)
    name = draft.add(node, draft.named(node), op, draft.value(node, columns))
    for operation, parameter in (("mul", weight), ("add", bias)):
        if parameter is None:
            continue
        if draft.knows(parameter):
            raise Unsupported("its weight or bias is computed at run time")
        channels = draft.constants.array(node, parameter).reshape(1, -1, *(1,) * (len(extents) - 2))
        rows = order.taken(np.broadcast_to(channels, extents))
        if (rows != rows[:1]).any():
            raise Unsupported("its channels are tokens; channels must be features of one token")
        constant = draft.add(node, draft.constants.paths.get(parameter, node.name), Constant(rows[0].copy()))
        name = draft.add(node, node.name, Binary(operation), name, constant)
    draft.spread(node, [(name, len(columns))], order)


def _last(node: Node, extents: Any) -> None:
    if list(extents) != [shape(node)[-1]]:
        raise Unsupported(f"it normalises over {list(extents)}; only the last dimension is supported")


def _over_features(node: Node, dims: Any, keeps: bool) -> None:
    (source,) = node.all_input_nodes
    rank = len(shape(source))
    if dims is None or [d % rank for d in dims] != [rank - 1] or not keeps:
        raise Unsupported(WRITTEN_OUT)


def _mean(draft: Draft, node: Node) -> None:
    x, dims, keeps = (*node.args, False)[:3]
    _over_features(node, dims, bool(keeps))
    centred = draft.partial.get(x)
    source = renamed(x)
    if isinstance(centred, Centred) and centred.squared:
        draft.half(node, Spread("layer", centred.x))
    elif source in draft.squares:
        draft.half(node, Spread("rms", draft.squares[source]))
    else:
        draft.half(node, Mean(draft.form(node, x, lambda c: c)))


def _variance(draft: Draft, node: Node) -> None:
    """var(x, dims, correction)."""
    x, dims = (*node.args, None)[:2]
    correction = node.kwargs.get("correction", 1)
    if node.target == aten.var.dim:
        correction = int((*node.args, True, False)[2])
        keeps = (*node.args, True, False)[3] if len(node.args) > 3 else node.kwargs.get("keepdim", False)
    else:
        keeps = node.kwargs.get("keepdim", False)
    _over_features(node, dims, bool(keeps))
    if correction != 0:
        raise Unsupported("the variance of a norm needs unbiased=False")
    draft.half(node, Spread("layer", draft.form(node, x, lambda c: c)))


CALLS = {
    aten.group_norm.default: _group_norm,
    aten.layer_norm.default: _layer_norm,
    aten.rms_norm.default: _rms_norm,
    aten.mean.dim: _mean,
    **dict.fromkeys([aten.var.correction, aten.var.dim], _variance),
}
