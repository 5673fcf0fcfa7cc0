"""Calls of torch operators whose operation another package provides (`operations.registry`).

An argument of the operator is an input if it is computed at run time. Otherwise it is a field of the
operation: a number, a text, a tuple, or the float32 array of a parameter.
"""

import inspect
from typing import Any

import torch
from torch.fx import Node

from streamgen.base.errors import GraphError
from streamgen.model.frontend.draft import Draft
from streamgen.model.frontend.elements import ElementOrder
from streamgen.model.frontend.trace import Unsupported, shape
from streamgen.model.graph.logical import Operator, Shape
from streamgen.model.operations.registry import GROUP, find, is_offered


def is_outside(target: Any, *, built_in: bool) -> bool:
    """Whether a package provides the operation of a call. built_in: whether streamgen has one itself.

    Raises UnsupportedOperationError for a broken entry point.
    """
    return is_offered(str(target)) and find(str(target), built_in=built_in) is not None


def nobody_brings(target: Any) -> str:
    """The reason why an operator of another library is refused; empty for torch's own operators."""
    name = str(target)
    if name.startswith(("aten.", "prims.", "<")) or name.count(".") != 2:
        return ""
    return f"no package provides {name.rpartition('.')[0]!r} as an entry point of the group {GROUP!r}"


def add_outside(draft: Draft, node: Node) -> None:
    """Add the operation of a call for which `is_outside` holds."""
    kind = find(str(node.target))
    assert kind is not None
    inputs, fields = _arguments(draft, node)
    op = _made(kind, fields)
    if op.results:
        raise Unsupported(f"{_home(kind)} has several results; operations of packages have one")
    if len(inputs) != op.arity:
        raise Unsupported(f"{op} of {_home(kind)} takes {op.arity} values; it is given {len(inputs)}")
    if getattr(kind, "by_element", False):
        order, columns = draft.form(node, inputs[0], draft.elements.spread)
        operands = [columns, *(_in_order(draft, node, x, order) for x in inputs[1:])]
    else:
        lines = [draft.form(node, x, draft.elements.lines) for x in inputs]
        if any(not torch.equal(rows, lines[0][0]) for rows, _ in lines):
            raise Unsupported("its inputs have their tokens in different places")
        rows, operands = lines[0][0], [columns for _, columns in lines]
    features = _features(node, op, [len(columns) for columns in operands], inputs[0])
    name = draft.add(node, node.name, op, *(draft.value(node, columns) for columns in operands))
    if getattr(kind, "by_element", False):
        draft.spread(node, [(name, features)], order)
    else:
        draft.lines(node, name, rows, features)


def _arguments(draft: Draft, node: Node) -> tuple[list[Node], dict[str, Any]]:
    """Inputs in order, and fields by name."""
    target: Any = node.target
    if target._schema.is_mutable:
        raise Unsupported("it changes its arguments in place")
    inputs: list[Node] = []
    fields: dict[str, Any] = {}
    for position, argument in enumerate(target._schema.arguments):
        if argument.name in node.kwargs:
            value: Any = node.kwargs[argument.name]
        else:
            value = node.args[position] if position < len(node.args) else argument.default_value
        if not isinstance(value, Node):
            fields[argument.name] = tuple(value) if isinstance(value, (list, tuple)) else value
        elif draft.knows(value):
            inputs.append(value)
        elif value in draft.constants.tensors:
            fields[argument.name] = draft.constants.array(node, value)
        else:
            raise Unsupported(f"its argument {argument.name!r} is computed from positions")
    return inputs, fields


def _made(kind: type[Operator], fields: dict[str, Any]) -> Operator:
    try:
        inspect.signature(kind).bind(**fields)
    except TypeError as error:
        raise Unsupported(
            f"its arguments {', '.join(map(repr, fields))} are not the fields of {_home(kind)}: {error}"
        ) from error
    try:
        return kind(**fields)
    except (GraphError, TypeError, ValueError) as error:
        raise Unsupported(str(error)) from error


def _features(node: Node, op: Operator, given: list[int], first: Node) -> int:
    """The number of features of the result; Unsupported if torch says otherwise."""
    try:
        (result,) = op.shapes(*map(Shape, given))
    except GraphError as error:
        raise Unsupported(str(error)) from error
    value = node.meta["val"]
    by_element = getattr(op, "by_element", False)
    wanted = list(shape(first)) if by_element else [*shape(first)[:-1], result.features]
    given_shape = list(value.shape) if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
    if given_shape != wanted:
        raise Unsupported(
            f"torch says that the shape of its result is {given_shape}; {_home(type(op))} says {wanted}"
        )
    return result.features


def _in_order(draft: Draft, node: Node, x: Node, order: ElementOrder) -> torch.Tensor:
    """Columns of a further input, whose elements must have the layout of the first."""

    def read(contents: torch.Tensor) -> torch.Tensor:
        if contents.numel() != order.places.numel() or not draft.elements.matches(contents, order):
            raise Unsupported("it joins values that have different tokens in the same places")
        return order.taken(contents)[0] // draft.elements.stride

    columns: torch.Tensor = draft.form(node, x, read)
    return columns


def _home(kind: type[Operator]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
