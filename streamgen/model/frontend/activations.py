"""Activations with numbers or weights, as operations that are exact or round once or twice.

clamp, Hardtanh, ReLU6     min(max(x, a), b)
LeakyReLU, RReLU           x, or slope · x, rounded once
PReLU                      the same; a slope for each feature: relu(x) + slope · (-relu(-x)), one term is 0
ELU, CELU                  elu(x), times alpha below 0;   relu(x) + alpha · elu(min(x, 0) / alpha)
Softplus                   softplus(beta · x) / beta
Threshold, Hardshrink      x where it, or |x|, is above a number, else 0
Softshrink                 x - min(max(x, -lambda), lambda)
GLU                        a · sigmoid(b) of the two halves of a dimension
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from streamgen.model.frontend.draft import Draft
from streamgen.model.frontend.trace import Unsupported, arguments, aten, shape
from streamgen.model.graph.logical import Operator
from streamgen.model.operations import Binary, Constant, Scalar, Unary

LEAST_THRESHOLD = 12  # of a softplus: beyond it torch gives x, which is less than 2^-20 of x away


def number(node: Node, name: str, value: Any) -> float:
    """An argument that must be a finite number."""
    if isinstance(value, Node) or not math.isfinite(value):
        raise Unsupported(f"its {name} is {value}; a finite number is needed")
    return float(value)


def add_steps(draft: Draft, node: Node, steps: Callable[[str, slice], str]) -> None:
    """Add operations on one value; steps: given its name and which features of `node` it holds, adds
    operations and returns the name of their result."""
    order, columns = draft.form(node, node.args[0], draft.elements.spread)
    results = []
    for piece in draft.pieces(columns):
        name = steps(draft.value(node, columns[piece]), piece)
        results.append((name, piece.stop - piece.start))
    draft.spread(node, results, order)


def placed(draft: Draft, node: Node, channels: np.ndarray) -> np.ndarray:
    """[features]: numbers of the channels, dimension 1, for the features of `node`'s argument.

    Raises Unsupported if tokens have different channels in the same place.
    """
    order, _ = draft.form(node, node.args[0], draft.elements.spread)
    extents = shape(node)
    numbers = channels.reshape(1, -1, *(1,) * (len(extents) - 2)) if len(extents) > 1 else channels
    rows = order.taken(np.broadcast_to(numbers, extents))
    if (rows != rows[:1]).any():
        raise Unsupported(
            f"the channels of its input {list(extents)}, dimension 1, are tokens; channels must be features "
            "of one token, as in [tokens, channels]"
        )
    return rows[0].copy()


def _each(draft: Draft, node: Node, *ops: Operator) -> None:
    """Add these operations, one after the other."""

    def steps(name: str, piece: slice) -> str:
        for op in ops:
            name = draft.add(node, node.name, op, name)
        return name

    add_steps(draft, node, steps)


def _bounded(draft: Draft, node: Node, least: Any, most: Any) -> None:
    """max(x, least), then min of it and most; a bound may be None or infinite."""
    ops: list[Operator] = []
    for function, name, bound, free in (
        ("maximum", "min", least, -math.inf),
        ("minimum", "max", most, math.inf),
    ):
        if bound is None or bound == free:
            continue
        value = number(node, name, bound)
        relu = function == "maximum" and value == 0
        ops.append(Unary("relu") if relu else Scalar(function, value))
    _each(draft, node, *(ops or [Scalar("scale", 1.0)]))


def _clamp(draft: Draft, node: Node) -> None:
    given = arguments(node)
    bounds = []
    for name in ("min", "max"):
        bound = given.get(name)
        if isinstance(bound, Node):
            tensor = draft.constants.tensors.get(bound)
            if tensor is None or tensor.numel() != 1:
                raise Unsupported(f"its {name} is a tensor; one number is needed")
            bound = float(tensor)
        bounds.append(bound)
    _bounded(draft, node, *bounds)


def _greater_or_lesser(draft: Draft, node: Node) -> None:
    """maximum(x, c) and minimum(x, c) for a constant c of one element."""
    x, other = node.args[:2]
    if not draft.knows(x):
        x, other = other, x
    tensor = draft.constants.tensors.get(other)
    if x is not node.args[0] or tensor is None or tensor.numel() != 1:
        raise Unsupported("it compares two tensors; the second one must be a number")
    least = node.target == aten.maximum.default
    _bounded(draft, node, *((float(tensor), None) if least else (None, float(tensor))))


def _hardtanh(draft: Draft, node: Node) -> None:
    given = arguments(node)
    _bounded(draft, node, given["min_val"], given["max_val"])


def _relu6(draft: Draft, node: Node) -> None:
    _bounded(draft, node, 0.0, 6.0)


def _leaky_relu(draft: Draft, node: Node) -> None:
    _each(draft, node, Scalar("leaky", number(node, "negative_slope", arguments(node)["negative_slope"])))


def _abs(draft: Draft, node: Node) -> None:
    _each(draft, node, Scalar("leaky", -1.0))


def _rrelu(draft: Draft, node: Node) -> None:
    given = arguments(node)
    _require_eval(given["training"])
    slope = (number(node, "lower", given["lower"]) + number(node, "upper", given["upper"])) / 2
    _each(draft, node, Scalar("leaky", slope))


def _prelu(draft: Draft, node: Node) -> None:
    weight: Any = node.args[1]
    if draft.knows(weight):
        raise Unsupported("its weight is computed at run time")
    if shape(weight).numel() == 1:
        return _each(draft, node, Scalar("leaky", float(draft.constants.array(node, weight).reshape(()))))
    slopes = placed(draft, node, draft.constants.array(node, weight).reshape(-1))

    def steps(name: str, piece: slice) -> str:
        above = draft.add(node, f"{node.name}_above", Unary("relu"), name)
        negated = draft.add(node, f"{node.name}_negated", Scalar("scale", -1.0), name)
        below = draft.add(node, f"{node.name}_below", Unary("relu"), negated)
        path = draft.constants.paths.get(weight, weight.name)
        factors = draft.add(node, path, Constant(-slopes[piece]))
        product = draft.add(node, f"{node.name}_sloped", Binary("mul"), below, factors)
        return draft.add(node, node.name, Binary("add"), above, product)

    add_steps(draft, node, steps)


def _elu(draft: Draft, node: Node) -> None:
    """scale · (x above 0, alpha · (exp(input_scale · x) - 1) below)."""
    given = arguments(node)
    alpha, scale, inner = (number(node, name, given[name]) for name in ("alpha", "scale", "input_scale"))
    if inner != 1:
        raise Unsupported(f"its input_scale is {inner}; only 1 can be compiled")
    _each(
        draft,
        node,
        Unary("elu"),
        *([] if alpha == 1 else [Scalar("leaky", alpha)]),
        *([] if scale == 1 else [Scalar("scale", scale)]),
    )


def _celu(draft: Draft, node: Node) -> None:
    alpha = number(node, "alpha", arguments(node)["alpha"])
    if alpha == 1:
        return _each(draft, node, Unary("elu"))

    def steps(name: str, piece: slice) -> str:
        above = draft.add(node, f"{node.name}_above", Unary("relu"), name)
        below = name
        for op in (
            Scalar("minimum", 0.0),
            Scalar("scale", 1 / alpha),
            Unary("elu"),
            Scalar("scale", alpha),
        ):
            below = draft.add(node, f"{node.name}_below", op, below)
        return draft.add(node, node.name, Binary("add"), above, below)

    if alpha < 0:
        raise Unsupported(f"its alpha is {alpha}; a number above 0 is needed")
    add_steps(draft, node, steps)


def _softplus(draft: Draft, node: Node) -> None:
    given = arguments(node)
    beta, threshold = number(node, "beta", given["beta"]), given["threshold"]
    if beta <= 0:
        raise Unsupported(f"its beta is {beta}; a number above 0 is needed")
    if threshold < LEAST_THRESHOLD:
        raise Unsupported(
            f"its threshold is {threshold}; {LEAST_THRESHOLD} or more can be compiled, where softplus(x) is x"
        )
    scaled = beta != 1
    _each(
        draft,
        node,
        *([Scalar("scale", beta)] if scaled else []),
        Unary("softplus"),
        *([Scalar("scale", 1 / beta)] if scaled else []),
    )


def _threshold(draft: Draft, node: Node) -> None:
    given = arguments(node)
    threshold, value = (number(node, name, given[name]) for name in ("threshold", "value"))
    if value == threshold:
        return _bounded(draft, node, threshold, None)
    if value:
        raise Unsupported(f"its value is {value}; only 0, or its threshold {threshold}, can be compiled")
    _each(draft, node, Scalar("threshold", threshold))


def _hardshrink(draft: Draft, node: Node) -> None:
    _each(draft, node, Scalar("hardshrink", number(node, "lambd", arguments(node)["lambd"])))


def _softshrink(draft: Draft, node: Node) -> None:
    limit = number(node, "lambd", arguments(node)["lambd"])

    def steps(name: str, piece: slice) -> str:
        bounded = name
        for op in (Scalar("minimum", limit), Scalar("maximum", -limit), Scalar("scale", -1.0)):
            bounded = draft.add(node, f"{node.name}_bounded", op, bounded)
        return draft.add(node, node.name, Binary("add"), name, bounded)

    add_steps(draft, node, steps)


def _glu(draft: Draft, node: Node) -> None:
    dim = arguments(node)["dim"]
    order, columns = draft.form(node, node.args[0], lambda c: draft.elements.spread(_half(c, dim, 0)))
    contents = draft.form(node, node.args[0], lambda c: _half(c, dim, 1))
    if not draft.elements.matches(contents, order):
        raise Unsupported("its halves hold other tokens; both must be features of one token")
    gates = order.taken(contents)[0] // draft.elements.stride
    results = []
    for piece in draft.pieces(columns, gates):
        gate = draft.add(node, f"{node.name}_gate", Unary("sigmoid"), draft.value(node, gates[piece]))
        name = draft.add(node, node.name, Binary("mul"), draft.value(node, columns[piece]), gate)
        results.append((name, piece.stop - piece.start))
    draft.spread(node, results, order)


def _half(contents: torch.Tensor, dim: int, which: int) -> torch.Tensor:
    return contents.chunk(2, dim)[which].contiguous()


def _require_eval(training: Any) -> None:
    if training:
        raise Unsupported("it is in training mode; call module.eval() first")


CALLS = {
    **dict.fromkeys([aten.abs.default, aten.abs_.default], _abs),
    **dict.fromkeys([aten.celu.default, aten.celu_.default], _celu),
    **dict.fromkeys(
        [
            aten.clamp.default,
            aten.clamp.Tensor,
            aten.clamp_.default,
            aten.clamp_min.default,
            aten.clamp_min_.default,
            aten.clamp_max.default,
            aten.clamp_max_.default,
        ],
        _clamp,
    ),
    **dict.fromkeys([aten.elu.default, aten.elu_.default], _elu),
    aten.glu.default: _glu,
    aten.hardshrink.default: _hardshrink,
    **dict.fromkeys([aten.hardtanh.default, aten.hardtanh_.default], _hardtanh),
    **dict.fromkeys([aten.leaky_relu.default, aten.leaky_relu_.default], _leaky_relu),
    **dict.fromkeys([aten.maximum.default, aten.minimum.default], _greater_or_lesser),
    aten.prelu.default: _prelu,
    **dict.fromkeys([aten.relu6.default, aten.relu6_.default], _relu6),
    **dict.fromkeys([aten.rrelu.default, aten.rrelu_.default], _rrelu),
    aten.softplus.default: _softplus,
    aten.softshrink.default: _softshrink,
    **dict.fromkeys([aten.threshold.default, aten.threshold_.default], _threshold),
}
