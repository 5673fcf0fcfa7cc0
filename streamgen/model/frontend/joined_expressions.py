"""Joins adjacent operations that compute element by element to one expression, if one of them is one.

An operation is taken into the operation that reads it if nothing else reads it. Operations with kernels of
their own stay as they are among themselves. No expression has more values than MOST_VALUES, since each is a
stream into one kernel.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from streamgen.gateware.pointwise import Formula, FormulaBuilder
from streamgen.kernels.moves.rearrange import LONGEST
from streamgen.model.graph.logical import Operation, Operator
from streamgen.model.operations import Binary, Constant, Expression, Rearrange, Scalar, Unary

MOST_VALUES = 8
MOST_STEPS = 64

_SCALARS: dict[str, Callable[[FormulaBuilder, int, int], int]] = {
    "scale": lambda f, x, c: f.apply("negate", x) if f.number(c) == -1 else f.apply("multiply", x, c),
    "maximum": lambda f, x, c: f.apply("maximum", x, c),
    "minimum": lambda f, x, c: f.apply("minimum", x, c),
    "leaky": lambda f, x, c: f.apply(
        "where", f.apply("gt", x, f.constant(0.0)), x, f.apply("multiply", x, c)
    ),
}


def joined(operations: Sequence[Operation], outputs: Sequence[str]) -> tuple[Operation, ...]:
    """The operations, adjacent ones joined. Constants of one number are part of an expression."""
    numbers = {o.name: number for o in operations if (number := _number(o.op)) is not None}
    constants = {o.name: o.op.value for o in operations if isinstance(o.op, Constant)}
    found = []
    for operation in operations:
        found.append(changed := _with_numbers(operation, numbers, constants))
        if isinstance(changed.op, Constant) and (number := _number(changed.op)) is not None:
            numbers[changed.name], constants[changed.name] = number, changed.op.value
    while any(isinstance(operation.op, Expression) for operation in found):
        known = {operation.name: operation for operation in found}
        readers: dict[str, set[str]] = {name: {""} for name in outputs}
        for operation in found:
            for name in operation.inputs:
                readers.setdefault(name, set()).add(operation.name)
        pair = _adjacent(found, known, readers)
        if pair is None:
            break
        first, second, merged = pair
        merged = _with_numbers(merged, numbers, constants)
        found = [merged if o is second else o for o in found if o is not first]
    read = {*outputs, *(name for operation in found for name in operation.inputs)}
    return tuple(o for o in found if not read.isdisjoint(o.values))


def _number(op: Operator) -> float | None:
    """The number of a constant whose features are all alike."""
    if not isinstance(op, Constant) or (op.value != op.value[0]).any():
        return None
    number = float(op.value[0])
    return None if number == 0 and math.copysign(1, number) < 0 else number


def _with_numbers(
    operation: Operation, numbers: Mapping[str, float], constants: Mapping[str, np.ndarray]
) -> Operation:
    """An expression with these values as numbers; that number in every row if it then reads no value; any
    other operation as it is."""
    if not isinstance(operation.op, Expression) or numbers.keys().isdisjoint(operation.inputs):
        return operation
    f = FormulaBuilder()
    taken = [f.constant(numbers[n]) if n in numbers else f.value(n) for n in operation.inputs]
    result = f.formula(f.insert(operation.op.formula, taken))
    if isinstance(result, float):
        features = next(len(constants[name]) for name in operation.inputs if name in constants)
        if not math.isfinite(result) or features > LONGEST:
            return operation
        rows = [name for name in operation.inputs if name not in constants]  # which give the rows
        if not rows:
            return replace(operation, op=Constant(np.full(features, result, np.float32)), inputs=())
        return replace(operation, op=Rearrange((-1,) * features, (result,)), inputs=(rows[0],))
    formula, names = result
    return replace(operation, op=Expression(formula), inputs=tuple(map(str, names)))


def _adjacent(
    operations: Sequence[Operation], known: dict[str, Operation], readers: dict[str, set[str]]
) -> tuple[Operation, Operation, Operation] | None:
    """Two operations that can be one, and that one."""
    for second in operations:
        outer = _formula(second.op)
        for name in second.inputs if outer is not None else ():
            first = known.get(name)
            inner = None if first is None else _formula(first.op)
            if first is None or inner is None or outer is None or readers[name] != {second.name}:
                continue
            if not isinstance(first.op, Expression) and not isinstance(second.op, Expression):
                continue
            merged = _merged(first, inner, second, outer)
            if merged is not None:
                return first, second, merged
    return None


def _merged(first: Operation, inner: Formula, second: Operation, outer: Formula) -> Operation | None:
    f = FormulaBuilder()
    before = f.insert(inner, [f.value(name) for name in first.inputs])
    taken = [before if name == first.name else f.value(name) for name in second.inputs]
    result = f.formula(f.insert(outer, taken))
    if isinstance(result, float):
        return None
    formula, names = result
    if formula.values > MOST_VALUES or len(formula.steps) > MOST_STEPS:
        return None
    return Operation(second.name, Expression(formula), tuple(map(str, names)), second.where)


def _formula(op: Operator) -> Formula | None:
    """What an operation computes, if that is an expression."""
    if isinstance(op, Expression):
        return op.formula
    if isinstance(op, Unary):
        return Formula(values=1, steps=((op.function, (0,)),))
    if isinstance(op, Binary) and op.gate is None:
        return Formula(values=2, steps=((op.kernel, (0, 1)),))
    if isinstance(op, Scalar) and op.function in _SCALARS and repr(op.constant) != "-0.0":
        f = FormulaBuilder()
        found = f.formula(_SCALARS[op.function](f, f.value(0), f.constant(op.constant)))
        return None if isinstance(found, float) else found[0]
    return None
