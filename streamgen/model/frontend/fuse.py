"""Combines operations that one unit computes together, although the module computes them apart.

    norm(x) · w + b                  a norm with that weight and bias
    (x @ W + b) · s + t              a Linear with other weights, as of a batch norm behind it
    c · tanh(1 / c · x)              soft_cap
    an expression, and what is computed element by element before or behind it: one expression
    function(a) · b                  one gated product, in language models

An operation is only combined if nothing else reads its result. Operations without effect are left out.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streamgen.model.frontend.joined_expressions import joined
from streamgen.model.graph.logical import Operation
from streamgen.model.operations import Binary, Constant, Linear, Norm, Scalar, Unary

Found = dict[str, Operation]


def fused(
    operations: Sequence[Operation], outputs: Sequence[str], gates: bool = False
) -> tuple[Operation, ...]:
    """The operations that the outputs need, combined. gates: combine gated products too."""
    for rule in (_scaled_norm, _scaled_linear, _soft_cap, *([_gated] if gates else [])):
        operations = alive(operations, outputs)
        readers = Counter([*outputs, *(name for operation in operations for name in operation.inputs)])
        known: Found = {}
        for operation in operations:
            known[operation.name] = rule(operation, known, readers) or operation
        operations = list(known.values())
    return joined(alive(operations, outputs), outputs)


def alive(operations: Sequence[Operation], outputs: Sequence[str]) -> tuple[Operation, ...]:
    """The operations that some output depends on."""
    needed = set(outputs)
    kept = []
    for operation in reversed(operations):
        if not needed.isdisjoint(operation.values):
            needed.update(operation.inputs)
            kept.append(operation)
    return tuple(reversed(kept))


def _scaled_norm(operation: Operation, known: Found, readers: Counter[str]) -> Operation | None:
    if not isinstance(operation.op, Binary) or operation.op.operation not in ("add", "mul"):
        return None
    given = {type(known[name].op): known[name] for name in operation.inputs if name in known}
    norm, constant = given.get(Norm), given.get(Constant)
    if norm is None or constant is None or readers[norm.name] > 1:
        return None
    op: Any = norm.op
    value: Any = constant.op
    by_head = value.value.reshape(op.heads, -1)
    if (by_head != by_head[:1]).any():
        return None
    changed = _with_constant(op, operation.op.operation, by_head[0].copy())
    return None if changed is None else Operation(operation.name, changed, norm.inputs, norm.where)


def _scaled_linear(operation: Operation, known: Found, readers: Counter[str]) -> Operation | None:
    """A sum of a constant and a product of a constant and a Linear of floats. Computed in float64."""
    product, shift = _with_a_constant(operation, "add", known, readers)
    if product is None:
        return None
    linear, scale = _with_a_constant(product, "mul", known, readers)
    if linear is None or not isinstance(linear.op, Linear) or linear.op.wanted is not None:
        return None
    op = linear.op
    bias = 0.0 if op.bias is None else op.bias.astype(np.float64)
    weight = (op.floats * scale[:, None].astype(np.float64)).astype(np.float32)
    changed = replace(op, weight=weight, bias=(bias * scale + shift).astype(np.float32))
    return Operation(operation.name, changed, linear.inputs, linear.where)


def _with_a_constant(
    operation: Operation, kind: str, known: Found, readers: Counter[str]
) -> tuple[Operation | None, np.ndarray]:
    """The operation that makes the other operand of a sum or a product with a constant, if nothing else reads
    it, and the constant."""
    nothing = None, np.empty(0)
    if operation.op != Binary(kind):
        return nothing
    given = [known.get(name) for name in operation.inputs]
    constants = [o.op.value for o in given if o is not None and isinstance(o.op, Constant)]
    others = [o for o in given if o is not None and not isinstance(o.op, Constant)]
    if len(constants) != 1 or len(others) != 1 or readers[others[0].name] > 1:
        return nothing
    return others[0], constants[0]


def _with_constant(norm: Norm, operation: str, constant: np.ndarray) -> Norm | None:
    """A norm times a constant or plus a constant, if it has no such weight or bias yet."""
    if norm.bias is not None:
        return None
    if operation == "add":
        return replace(norm, bias=constant)
    return replace(norm, weight=constant) if (norm.weight == 1).all() else None


def _soft_cap(operation: Operation, known: Found, readers: Counter[str]) -> Operation | None:
    outer = operation.op
    if not isinstance(outer, Scalar) or outer.function != "scale":
        return None
    middle = _only(operation, known, readers)
    if middle is None or middle.op != Unary("tanh"):
        return None
    inner = _only(middle, known, readers)
    if inner is None or not isinstance(inner.op, Scalar) or inner.op.function != "scale":
        return None
    if outer.constant <= 0 or abs(outer.constant * inner.op.constant - 1) > 1e-6:
        return None
    return replace(operation, op=Scalar("soft_cap", outer.constant), inputs=inner.inputs)


def _gated(operation: Operation, known: Found, readers: Counter[str]) -> Operation | None:
    if operation.op != Binary("mul"):
        return None
    for a, b in (operation.inputs, operation.inputs[::-1]):
        gate = known.get(a)
        if gate is not None and isinstance(gate.op, Unary) and readers[a] == 1:
            return replace(operation, op=Binary(f"{gate.op.function}_mul"), inputs=(*gate.inputs, b))
    return None


def _only(operation: Operation, known: Found, readers: Counter[str]) -> Operation | None:
    """The operation that makes the input of an operation, if nothing else reads that input."""
    (name,) = operation.inputs
    return known.get(name) if readers[name] == 1 else None
