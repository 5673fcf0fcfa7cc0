"""Whether the graphs of two traces of a module, with other numbers of tokens, compute the same function."""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from streamgen.model.graph.logical import LogicalGraph, Operation, Operator
from streamgen.model.operations import Attention, PlaceRows


def alike_for(tokens: int, longer: LogicalGraph, shorter: LogicalGraph) -> bool:
    """Whether the graph of longer sequences equals the graph found for `tokens` tokens, apart from masks and
    windows that so few tokens do not show."""

    def seen(path: str, operation: Operation) -> Operator:
        op = operation.op
        if not isinstance(op, Attention) or (op.window is not None and op.window < tokens):
            return op
        return replace(op, causal=op.causal and tokens > 1, window=None)

    return alike(longer, shorter) or alike(longer.map(seen), shorter)


def alike(a: LogicalGraph, b: LogicalGraph) -> bool:
    """Whether two graphs compute the same function, constants included."""
    return a.form() == b.form() and all(
        _same(x.op, y.op) for x, y in zip(a.operations, b.operations, strict=True)
    )


def _same(a: Any, b: Any) -> bool:
    """Whether the constants of two operations of one form are the same, as far as both have rows by place."""
    if isinstance(a, PlaceRows):
        tables = [np.asarray(op.table) for op in (a, b)]
        least = min(map(len, tables))
        close = 2.0**-20 * max(float(np.abs(table[:least]).max(initial=0)) for table in tables)
        # The last bits of a constant may depend on the size of its batch.
        return np.allclose(tables[0][:least], tables[1][:least], rtol=0, atol=close)
    pairs = ((getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
    return all(x is y or not isinstance(x, np.ndarray) or np.array_equal(x, y) for x, y in pairs)
