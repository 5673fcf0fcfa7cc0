"""Calls that compute element by element, in any layout of their tensors.

    a - b    a + (-1 · b)        a / c    a · (1 / c), c a constant       x ** 2    x · x

Each product and each sum is rounded to f24, so a quotient has the rounding errors of 1 / c and of the
product.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from streamgen.model.frontend.cube import Cube
from streamgen.model.frontend.draft import MOST_COUNTED, Draft, Scaled
from streamgen.model.frontend.elements import ElementOrder
from streamgen.model.frontend.partial import Partial
from streamgen.model.frontend.rotary import Product
from streamgen.model.frontend.trace import SPELLINGS, Unsupported, aten, function_of, is_ids, shape
from streamgen.model.graph.logical import Operator
from streamgen.model.operations import Binary, Constant, Scalar, Unary

SUMS = {
    aten.add.Tensor: 1,
    aten.add_.Tensor: 1,
    aten.sub.Tensor: -1,
    aten.sub_.Tensor: -1,
    aten.rsub.Scalar: -1,
}
QUOTIENTS = {getattr(aten, name).Tensor for name in ("div", "div_", "true_divide", "true_divide_")}
PRODUCTS = {aten.mul.Tensor, aten.mul_.Tensor}
OF_TWO = SUMS.keys() | QUOTIENTS | PRODUCTS

Change = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Operand:
    """One operand: columns of values times a factor, or the features of a constant and its name."""

    features: torch.Tensor | np.ndarray
    name: str = ""
    factor: float = 1.0

    def piece(self, draft: Draft, node: Node, piece: slice | torch.Tensor) -> str:
        """Add what is needed to read some of the features; return the name of the value."""
        if isinstance(self.features, np.ndarray):
            places = piece if isinstance(piece, slice) else piece.numpy()
            return draft.add(node, self.name, Constant(self.features[places].copy()))
        name = draft.value(node, self.features[piece])
        if self.factor == 1:
            return name
        return draft.add(node, f"{node.name}_scaled", Scalar("scale", self.factor), name)


def _apply(draft: Draft, node: Node, op: Operator) -> None:
    """Add an operation on one value."""
    order, columns = draft.form(node, node.args[0], draft.elements.spread)
    compute(draft, node, op, order, Operand(columns))


def compute(draft: Draft, node: Node, op: Operator, order: ElementOrder, *operands: Operand) -> None:
    """Add an operation, in pieces where an operand is joined from several values."""
    results = []
    for piece in draft.pieces(*(o.features for o in operands if isinstance(o.features, torch.Tensor))):
        name = draft.add(node, node.name, op, *(operand.piece(draft, node, piece) for operand in operands))
        results.append((name, piece.stop - piece.start))
        places = torch.arange(piece.start, piece.stop)
        draft.cuts[name] = partial(_cut, draft, node, op, places, operands)
    draft.spread(node, results, order)


def _cut(
    draft: Draft,
    node: Node,
    op: Operator,
    places: torch.Tensor,
    operands: Sequence[Operand],
    part: torch.Tensor,
) -> str:
    """Compute only some features of a result; return the name of the value."""
    names = [operand.piece(draft, node, places[part]) for operand in operands]
    return draft.add(node, f"{node.name}_part", op, *names)


def _unary(draft: Draft, node: Node) -> None:
    x: Any = node.args[0]
    function = function_of(node)
    if x in draft.partial and function == "tanh":
        return draft.half(node, draft.partial[x].tanh())
    if x in draft.partial and function in ("sqrt", "rsqrt"):
        return draft.half(node, draft.partial[x].root(inverse=function == "rsqrt"))
    _apply(draft, node, Unary(function))


def _negation(draft: Draft, node: Node) -> None:
    _scaled(draft, node, node.args[0], -1.0)


def _scaled(draft: Draft, node: Node, x: Any, factor: float) -> None:
    """Register factor · x, a value that is computed only where it is read."""
    order, columns = draft.form(node, x, draft.elements.spread)
    draft.late(node, Scaled(node, columns, factor), len(columns), order)


def _power(draft: Draft, node: Node) -> None:
    x: Any = node.args[0]
    power = (*node.args, 2)[1]
    if x in draft.partial and power in (0.5, -0.5):
        return draft.half(node, draft.partial[x].root(inverse=power < 0))
    if power == 3:
        return draft.half(node, Cube(draft.form(node, node.args[0], lambda c: c)))
    if power != 2:
        raise Unsupported(f"its power is {power}; only 2 can be compiled")
    _product_of(draft, node, node.args[0], node.args[0])


def _binary(draft: Draft, node: Node) -> None:
    a, b = node.args[:2]
    target: Any = node.target
    alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
    if target == aten.rsub.Scalar:
        a, b = b, a
    if a in draft.partial or b in draft.partial:
        return _half(draft, node, a, b, alpha)
    if target in PRODUCTS and draft.knows(a) and draft.knows(b):
        return _product_of(draft, node, a, b)
    if a in draft.tables or b in draft.tables:
        value, table = (b, a) if a in draft.tables else (a, b)
        if target in PRODUCTS and not (draft.tables.counts and node in draft.plainly):
            return draft.half(node, Product.of(draft, node, value, table))
        draft.rows_for_positions(table)
    if draft.knows(a) != draft.knows(b) and _of_constant(draft, node, a, b):
        return None
    if (factor := _factor(draft, target, a, b)) is not None:
        return _scaled(draft, node, a if draft.knows(a) else b, factor)
    lead, order, columns = leading(draft, node, [x for x in (a, b) if draft.knows(x)])

    def operand(value: Any, change: Change | None = None, factor: float = 1.0) -> Operand:
        if value is lead:
            return Operand(columns, factor=factor)
        return operand_of(draft, node, value, order, change, factor)

    if target in QUOTIENTS and draft.knows(b):
        if is_softsign(draft, a, b):
            return compute(draft, node, Unary("softsign"), order, Operand(columns))
        raise AssertionError("quotients of two values are expressions (`pointwise`)")
    if target in SUMS and alpha == 1 and _is_tanhshrink(draft, node, a, b):
        return compute(draft, node, Unary("tanhshrink"), order, Operand(columns))
    factor = SUMS.get(target, 1) * alpha
    if target in QUOTIENTS:
        operands = operand(a), operand(b, _inverse)
    elif draft.knows(b) or factor == 1:
        operands = operand(a), operand(b, factor=float(factor))
    else:
        operands = operand(a), operand(b, lambda c: c * np.float32(factor))
    compute(draft, node, Binary("add" if target in SUMS else "mul"), order, *operands)


def is_softsign(draft: Draft, a: Any, b: Any) -> bool:
    """Whether a / b is x / (|x| + 1), as torch spells softsign."""
    source = _called(b, aten.add.Tensor)
    if source is None or source.kwargs or 1 not in source.args or not draft.knows(a):
        return False
    size = _called(source.args[0] if source.args[1] == 1 else source.args[1], aten.abs.default)
    return size is not None and torch.equal(draft.contents[size.args[0]], draft.contents[a])


def _is_tanhshrink(draft: Draft, node: Node, a: Any, b: Any) -> bool:
    """Whether a - b is x - tanh(x)."""
    source = _called(b, aten.tanh.default) if node.target == aten.sub.Tensor else None
    if source is None or not draft.knows(a) or source.args[0] not in draft.contents:
        return False
    return torch.equal(draft.contents[source.args[0]], draft.contents[a])


def _called(value: Any, target: Any) -> Node | None:
    """The call that computes a value, if it is this one."""
    return value if isinstance(value, Node) and value.target == target else None


def _factor(draft: Draft, target: Any, a: Any, b: Any) -> float | None:
    """The one number that a value is multiplied or divided by; None if there is no such number."""
    if target not in PRODUCTS | QUOTIENTS or (draft.knows(a) and draft.knows(b)):
        return None
    other = b if draft.knows(a) else a
    if (target in QUOTIENTS and other is a) or (isinstance(other, Node) and shape(other).numel() != 1):
        return None
    number = float(draft.constants.tensors[other] if isinstance(other, Node) else other)
    if target in QUOTIENTS and not number:
        raise Unsupported("it divides by 0")
    if not math.isfinite(number):
        raise Unsupported(f"it multiplies by {number}")
    return 1 / number if target in QUOTIENTS else number


def _product_of(draft: Draft, node: Node, a: Any, b: Any) -> None:
    """Add a · b of two values; remember squares, because norms begin with them."""
    if a in draft.partial and a is b:
        return draft.half(node, draft.partial[a].square())
    lead, order, columns = leading(draft, node, [a, b])
    other = b if lead is a else a
    compute(draft, node, Binary("mul"), order, Operand(columns), operand_of(draft, node, other, order))
    if torch.equal(draft.contents[a], draft.contents[b]):
        draft.squares[node] = draft.contents[a]


def leading(draft: Draft, node: Node, sources: Sequence[Node]) -> tuple[Node, ElementOrder, torch.Tensor]:
    """The source whose rows are those of a call's result, their order, and its columns: the first one, unless
    it has one row for all tokens of a sequence and another one has a row for each of them."""
    found = []
    for source in sources:
        contents = draft.form(node, source, lambda c: broadcast(c, node))
        order, columns = draft.form(node, source, partial(_spread, draft, contents))
        if not order.single:
            return source, order, columns
        found.append((source, order, columns))
    return found[0]


def _spread(draft: Draft, contents: torch.Tensor, _: torch.Tensor) -> tuple[ElementOrder, torch.Tensor]:
    return draft.elements.spread(contents)


def broadcast(contents: torch.Tensor, node: Node) -> torch.Tensor:
    """Contents in the shape of a call's result."""
    extents = shape(node)
    return contents.broadcast_to(extents)


def operand_of(
    draft: Draft,
    node: Node,
    value: Any,
    order: ElementOrder,
    change: Change | None = None,
    factor: float = 1.0,
) -> Operand:
    """The other operand in the given order; scalars and parameters become constants, changed by `change`."""
    if draft.knows(value):
        read = draft.form(node, value, lambda c: _columns(draft, broadcast(c, node), order))
        return Operand(read, factor=factor)
    if isinstance(value, Node):
        array = _array(draft, node, value)
        name = draft.constants.paths.get(value, value.name)
    else:
        if not math.isfinite(value):
            raise Unsupported(f"its other operand is {value}; a finite number is needed")
        array, name = np.asarray(value, np.float32), f"{node.name}_constant"
    rows = order.taken(np.broadcast_to(array, shape(node)))
    if (rows != rows[:1]).any():
        columns = draft.sequences.by_place(node, rows if change is None else change(rows), order.rows)
        if columns is None:
            raise Unsupported(differs(array))
        return Operand(columns, factor=factor)
    return Operand(rows[0] if change is None else change(rows[0]), name)


def _array(draft: Draft, node: Node, value: Node) -> np.ndarray:
    """A constant of floats, or of whole numbers and truth values that f24 holds."""
    tensor = draft.constants.tensors[value]
    if tensor.is_floating_point() or tensor.is_complex():
        return draft.constants.array(node, value)
    array: np.ndarray = tensor.cpu().to(torch.float32).numpy()
    whole = all(is_ids(source.meta["val"]) for source in node.all_input_nodes)
    if whole and array.size and np.abs(array).max() > MOST_COUNTED + 1:
        raise Unsupported(f"a constant of integers holds numbers above {MOST_COUNTED + 1}")
    return array


def differs(constant: np.ndarray | torch.Tensor) -> str:
    """The reason to refuse a constant that is added to tokens, or multiplied by them."""
    return f"a constant of shape {list(constant.shape)} differs from token to token"


def _columns(draft: Draft, contents: torch.Tensor, order: ElementOrder) -> torch.Tensor:
    elements = draft.elements
    reason = "an operation joins its result with one that has other tokens in its places"
    return elements.columns_in(contents, order, reason)


def _of_constant(draft: Draft, node: Node, a: Any, b: Any) -> bool:
    """Import a product or a quotient by a constant that needs no product: of ones, from a mask that hides no
    token or that the module makes itself, or the number of tokens, by which a sum over them is divided."""
    divides = node.target in QUOTIENTS
    if node.target not in PRODUCTS | QUOTIENTS or (divides and draft.knows(b)):
        return False
    value, other = (a, b) if draft.knows(a) else (b, a)
    if isinstance(other, Node) and (other in draft.constants.paths or other not in draft.constants.tensors):
        return False
    constant = draft.constants.tensors[other] if isinstance(other, Node) else torch.tensor(float(other))
    if constant.dtype.is_complex or not constant.numel() or not (constant == constant.reshape(-1)[0]).all():
        return False
    number = float(constant.reshape(-1)[0])
    if isinstance(other, Node) and number == 1 and (draft.masked or constant.dtype == torch.bool):
        draft.keep(node, draft.form(node, value, lambda c: broadcast(c, node)).clone())
        return True
    tokens = draft.elements.run
    if not tokens or (number != tokens if divides else np.float32(number) != np.float32(1 / tokens)):
        return False
    means = draft.form(node, value, lambda c: draft.sequences.means(node, broadcast(c, node)))
    if means is not None:
        draft.keep(node, means)
    return means is not None


def _inverse(constant: np.ndarray) -> np.ndarray:
    if not constant.all():
        raise Unsupported("it divides by 0")
    return (1 / constant.astype(np.float64)).astype(np.float32)


def _half(draft: Draft, node: Node, a: Any, b: Any, alpha: float) -> None:
    """Combine half of an operation with another operand by +, -, * or /."""
    target: Any = node.target
    partial: Partial = draft.partial[b if b in draft.partial else a]
    other = a if b in draft.partial else b
    if a in draft.partial and b in draft.partial:
        if target in PRODUCTS and a is b:
            return draft.half(node, partial.square())
        if target in SUMS and alpha == 1 and target != aten.rsub.Scalar:
            return draft.partial[a].joined(draft, node, partial, SUMS[target])
        other = a
    if draft.knows(other):
        divides, takes = (
            target in QUOTIENTS and b in draft.partial,
            target in (aten.sub.Tensor, aten.sub_.Tensor),
        )
        if target in PRODUCTS or divides:
            return partial.multiplied(draft, node, other, divides=divides)
        if takes and b in draft.partial and alpha == 1:
            return partial.taken(draft, node, other)
        if target in SUMS and SUMS[target] == 1 and alpha == 1:
            return partial.added(draft, node, other)
        raise Unsupported(partial.needed)
    if target in PRODUCTS and other in draft.tables and other.meta["val"].is_complex():
        return draft.half(node, partial.turned(other))
    constant = draft.tables.shown(other) if isinstance(other, Node) else torch.tensor(float(other))
    if target in PRODUCTS or (target in QUOTIENTS and a in draft.partial):
        if constant.numel() != 1 and target in PRODUCTS:
            return draft.half(node, partial.weighed(constant))
        if constant.numel() != 1 or not float(constant):
            raise Unsupported(partial.needed)
        return draft.half(
            node, partial.times(1 / float(constant) if target in QUOTIENTS else float(constant))
        )
    if target in SUMS and alpha == 1 and (SUMS[target] == 1 or a in draft.partial):
        return draft.half(node, partial.plus(SUMS[target] * constant))
    raise Unsupported(partial.needed)


CALLS = {
    **dict.fromkeys(SPELLINGS, _unary),
    **dict.fromkeys([aten.neg.default, aten.neg_.default], _negation),
    **dict.fromkeys(
        [aten.pow.Tensor_Scalar, aten.pow_.Scalar, aten.square.default, aten.square_.default], _power
    ),
    **dict.fromkeys(OF_TWO, _binary),
}
