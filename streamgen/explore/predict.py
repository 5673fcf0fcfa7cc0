"""The cycles of one pass of a finished graph, predicted token by token (`tokens`).

Layers do the same one after the other, so only some walks of a section are looked at, until two in a row take
about the same cycles.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, count

import numpy as np

from streamgen.buffers.packing import BEAT_BYTES
from streamgen.control.descriptor_bus import DescriptorBusParams, Target
from streamgen.errors import GraphError
from streamgen.explore.tokens import Descriptors, Fifo, Known, TokenRun
from streamgen.fifo.crossing import fifo, way_of
from streamgen.graph import Graph
from streamgen.manifest import MemoryTiming
from streamgen.phase_table import TABLE_CHUNK, PhaseTable

__all__ = ["phase_cycles", "predict"]

WALKS = 3, 5, 8  # of a section, looked at, until the others take as many cycles; then twice as many
STEADY = 0.002  # of a walk, by which the next one may differ
_CHUNK = TABLE_CHUNK // BEAT_BYTES
_SLOTS = 4  # of a beat of the table
_TABLE_DEPTH, _TABLE_BURST = 64, 16
_TABLE_READ = 2  # cycles from a beat of the table in its FIFO to the sequencer: FIFO, register slice
_WORD = 7  # cycles from a slot to the node's collector and out of it, beside the levels of the bus
_END = 5  # cycles from a store's response to the end of the run


def predict(graph: Graph, table: PhaseTable, memory: MemoryTiming, control_channel: int) -> int:
    """Cycles of a pass, as the status block counts them.

    graph: finished, with the bounds of the pass. table: what the sequencer walks. control_channel: where the
    table lies. GraphError when the FIFOs are such that the pass would never end.
    """
    return sum(phase_cycles(graph, table, memory, control_channel))


def phase_cycles(
    graph: Graph, table: PhaseTable, memory: MemoryTiming, control_channel: int, known: Known | None = None
) -> tuple[int, ...]:
    """The cycles of `predict` by phase, over all of its walks: in each a phase lasts until its last token
    has passed the last stream, as in a profile. The end of the run belongs to the last.

    Of a section the first walks and the last are looked at, WALKS in all, until two in a row differ by no
    more than STEADY: those that are left out take as many cycles as the second of them. The last walk has
    nobody behind it whose weights are read meanwhile, so it is none of the two.

    known: what passes that are predicted one after the other have in common.
    """
    known = known or Known()
    walks = [walks for _, walks in graph.walked()]
    for seen in chain(WALKS, (WALKS[-1] << k for k in count(1))):
        few = [min(seen, most) for most in walks]
        steps = _steps(*_cut(graph, table, few), memory, control_channel, known)
        of_phase = [0] * graph.phases
        steady, step = True, 0
        for (phases, _), looked_at, most in zip(graph.walked(), few, walks, strict=True):
            by_walk = steps[step : step + looked_at * len(phases)].reshape(looked_at, len(phases))
            step += by_walk.size
            total = by_walk.sum(0)
            if looked_at < most:
                one = _steady(by_walk[:-1])
                steady &= one is not None
                total = total + (most - looked_at) * by_walk[one or 0]
            of_phase[phases.start : phases.stop] = map(int, total)
        if steady:
            break
    return tuple(of_phase)


def _steady(by_walk: np.ndarray) -> int | None:
    """The first walk that takes about the cycles of the one before it, phase by phase."""
    differ = np.abs(np.diff(by_walk, axis=0)).sum(1) <= STEADY * by_walk[1:].sum(1)
    return 1 + int(differ.argmax()) if differ.any() else None


def _cut(graph: Graph, table: PhaseTable, few: Sequence[int]) -> tuple[Graph, PhaseTable]:
    """A pass with so many walks of each section."""
    sections, told = [], iter(table.sections)
    for (phases, _), walks in zip(graph.walked(), few, strict=True):
        if any(node.bounds[phase] is not None for node in graph.nodes for phase in phases):
            sections.append(replace(next(told), repeats=walks))
    each = tuple((len(phases), walks) for (phases, _), walks in zip(graph.walked(), few, strict=True))
    return replace(graph, sections=each), PhaseTable(sections=tuple(sections))


def _steps(
    graph: Graph, table: PhaseTable, memory: MemoryTiming, control_channel: int, known: Known
) -> np.ndarray:
    """The cycles of each phase in each walk, in their order."""
    run = _run(graph, table, memory, control_channel, known)
    ends = np.maximum.accumulate(run.ends)
    ends[-1] = run.cycles + _END
    return np.diff(ends, prepend=0)


def _run(
    graph: Graph, table: PhaseTable, memory: MemoryTiming, control_channel: int, known: Known
) -> TokenRun:
    with known.turn:
        executions = {
            node.name: {
                phase: known.clocks(node.params, bounds)
                for phase, bounds in enumerate(node.bounds)
                if bounds is not None
            }
            for node in graph.nodes
        }
    channels = {(tensor.node, tensor.port): tensor.channel for tensor in graph.tensors}
    try:
        return TokenRun(
            [phase for phase, _ in graph.steps()],
            {name: by_phase for name, by_phase in executions.items() if by_phase},
            _fifos(graph),
            memory,
            channels,
            _descriptors(graph, table, control_channel),
            known=known,
        )
    except RuntimeError as error:
        raise GraphError(f"graph {graph.name!r} never ends: {error}") from error


def _fifos(graph: Graph) -> list[Fifo]:
    """Of all edges but those that rest in all phases."""
    fifos = []
    for edge in graph.edges:
        bits = [it.token_bits for p in range(graph.phases) if (it := graph.itensor(edge, p)) is not None]
        if bits:
            depth = edge.depth or 1
            ends = (edge.source.node, edge.source.name), (edge.target.node, edge.target.name)
            latency = fifo(max(bits), depth, edge.boundaries).latency
            fifos.append(Fifo(*ends, latency, depth, way_of(edge.boundaries)))
    return fifos


def _descriptors(graph: Graph, table: PhaseTable, channel: int) -> Descriptors:
    """What the sequencer does with the table."""
    targets = tuple(Target(fields=node.params.descriptor_fields()) for node in graph.nodes)
    bodies = [(section, len(section.pack()) // _SLOTS) for section in table.sections]
    walks = [
        [(graph.nodes[one.target].name, 1 + len(one.words)) for one in section.descriptors]
        for section, _ in bodies
        for _ in range(section.repeats)
    ]
    beats = [beats for section, beats in bodies for _ in range(section.repeats)]
    ahead = _CHUNK - 1
    return Descriptors(
        walks=walks,
        beats=[_CHUNK, max(0, beats[0] - ahead), *beats[1:]],
        dropped=max(0, ahead - beats[0]),
        channel=channel,
        burst=_TABLE_BURST,
        depth=_TABLE_DEPTH,
        latency=_TABLE_READ,
        waiting=1 if graph.phases == 1 else 4,
        way=_WORD + DescriptorBusParams(targets=targets).levels,
    )
