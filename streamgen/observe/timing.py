"""Predicted passes: cycles, work and limit of each phase."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from streamgen.artifact.manifest import MemoryTiming
from streamgen.compiler.explore.bound import phases
from streamgen.contract import memory_ports, moves, multipliers
from streamgen.fifo.clocks import Clocks, clocks_of
from streamgen.model.graph import Graph
from streamgen.observe.channels import moved_bytes
from streamgen.observe.estimate import PassEstimate, PhaseEstimate

WAITS = 0.5  # of a phase, below which neither memory nor products nor one operation accounts for it


def predicted_pass(
    group: str,
    names: Sequence[str],
    graph: Graph,
    cycles: Sequence[int],
    memory: MemoryTiming,
    *,
    tokens: int,
    position: int,
    clocks: Callable[[Any, Any], Clocks] = clocks_of,
) -> PassEstimate:
    """The prediction of a pass of `tokens` tokens from `position` on.

    names: names of the phases. graph: graph with the bounds of the pass. cycles: cycles of each phase, as
    `phase_cycles` predicts them. clocks: `clocks_of`, or a function that remembers its results.
    """
    rate = Fraction(memory.beats, memory.cycles)
    return PassEstimate(
        group=group,
        tokens=tokens,
        position=position,
        phases=tuple(
            PhaseEstimate(
                name=name,
                walks=walks,
                cycles=took,
                memory_cycles=walks * stage.memory_cycles(rate),
                product_cycles=walks * stage.compute_cycles,
                products=walks * stage.products,
                bytes=walks * stage.bytes,
                limit=_limit(
                    graph, phase, took / walks, stage.memory_cycles(rate), stage.compute_cycles, clocks
                ),
            )
            for phase, (name, (stage, walks), took) in enumerate(
                zip(names, phases(graph), cycles, strict=True)
            )
        ),
        moved=moved_bytes(graph),
    )


def _limit(
    graph: Graph,
    phase: int,
    cycles: float,
    memory: float,
    products: float,
    clocks: Callable[[Any, Any], Clocks],
) -> str:
    """What limits a walk of a phase: memory, products or the operation that works longest; latency if none of
    them takes half of the cycles."""
    takes: dict[str, float] = {"memory": memory, "products": products}
    for node in graph.nodes:
        bounds = node.bounds[phase]
        params = node.params
        if bounds is None or multipliers(params) or memory_ports(params) or moves(params):
            continue
        parts = [part.cycles for part in clocks(params, bounds).parts if len(part.cycles)]
        takes[node.name] = max((float(cycles[-1]) + 1 for cycles in parts), default=0.0)
    name = max(takes, key=takes.__getitem__)
    return name if takes[name] >= WAITS * cycles else "latency"
