"""The curves of a node, checked against its streams before a schedule uses them.

1. Every port that streams in the phase has a curve, and no other.
2. A curve has as many tokens as the stream.
3. Tokens move in rising cycles from 0 on: a port moves at most one token per cycle.
"""

from collections.abc import Mapping
from math import prod

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.contract.cost import Curve
from streamgen.model.graph.ir import Node


def curves_of(node: Node, phase: int) -> Mapping[str, Curve]:
    """The curve of each port in a phase in which the node does not rest. GraphError lists broken laws."""
    bounds = node.bounds[phase]
    assert bounds is not None
    curves = node.params.curves(bounds)
    streams = {**node.inputs(phase), **node.outputs(phase)}
    if problems := curve_problems(curves, {name: itensor.token_count for name, itensor in streams.items()}):
        kind = type(node.params).__name__
        raise GraphError(f"node {node.name!r}: the curves of {kind} break a law: {'; '.join(problems)}")
    return curves


def curve_problems(curves: Mapping[str, Curve], tokens: Mapping[str, int]) -> list[str]:
    """The laws that curves break, where `tokens` is the number of tokens of each port."""
    if set(curves) != set(tokens):
        return [f"there are curves for {sorted(curves)}; the ports are {sorted(tokens)}"]
    problems = []
    for port, curve in curves.items():
        count = sum(prod(trip for trip, _ in loops) for _, loops in curve.pieces)
        if count != tokens[port]:
            problems.append(f"{port}: the curve has {count} tokens; the stream has {tokens[port]}")
        elif not _monotone(curve):
            cycles = curve.cycles()
            k = int(np.argmax(np.diff(cycles, prepend=-1) <= 0))
            ahead = f"after token {k - 1} in cycle {cycles[k - 1]}" if k else "before cycle 0"
            problems.append(
                f"{port}: the curve is not monotone: token {k} moves in cycle {cycles[k]}, {ahead}"
            )
    return problems


def _monotone(curve: Curve) -> bool:
    """Whether cycles rise, checked piece by piece: a loop must step over everything that its inner loops
    take."""
    last = -1
    for first, loops in curve.pieces:
        if first <= last:
            return False
        inner = 0
        for trip, period in reversed(loops):
            if trip > 1 and period <= inner:
                return False
            inner += (trip - 1) * period
        last = first + inner
    return True
