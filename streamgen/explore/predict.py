"""The cycles of one pass of a finished graph, predicted token by token (`tokens`)."""

import numpy as np

from streamgen.buffers.packing import BEAT_BYTES
from streamgen.control.descriptor_bus import DescriptorBusParams, Target
from streamgen.errors import GraphError
from streamgen.explore.tokens import Descriptors, Fifo, TokenRun
from streamgen.fifo.clocks import clocks_of
from streamgen.fifo.crossing import fifo, way_of
from streamgen.graph import Edge, Graph
from streamgen.manifest import TABLE_CHUNK, MemoryTiming, PhaseTable

__all__ = ["phase_cycles", "predict"]

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
    return _run(graph, table, memory, control_channel).cycles + _END


def phase_cycles(
    graph: Graph, table: PhaseTable, memory: MemoryTiming, control_channel: int
) -> tuple[int, ...]:
    """The cycles of `predict` by phase, over all of its walks: in each a phase lasts until its last token
    has passed the last stream, as in a profile. The end of the run belongs to the last."""
    run = _run(graph, table, memory, control_channel, times=True)
    steps = [phase for phase, _ in graph.steps()]
    ends = np.zeros(len(steps), np.int64)
    fifos = [edge for edge in graph.edges if _fifo(graph, edge) is not None]
    for number, edge in enumerate(fifos):
        source, target = graph.node(edge.source.node), graph.node(edge.target.node)
        sides = (
            (run.sent(number), [source.outputs(p).get(edge.source.name) for p in range(graph.phases)]),
            (run.taken(number), [target.inputs(p).get(edge.target.name) for p in range(graph.phases)]),
        )
        for moved, orders in sides:
            counts = np.array([0 if it is None else it.token_count for it in orders])[steps]
            some = counts > 0
            ends[some] = np.maximum(ends[some], moved[np.cumsum(counts)[some] - 1])
    ends = np.maximum.accumulate(ends)
    ends[-1] = run.cycles + _END
    of_phase = np.zeros(graph.phases, np.int64)
    np.add.at(of_phase, steps, np.diff(ends, prepend=0))
    return tuple(map(int, of_phase))


def _run(
    graph: Graph, table: PhaseTable, memory: MemoryTiming, control_channel: int, *, times: bool = False
) -> TokenRun:
    executions = {
        node.name: {
            phase: clocks_of(node.params, bounds)
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
            [fifo for edge in graph.edges if (fifo := _fifo(graph, edge)) is not None],
            memory,
            channels,
            _descriptors(graph, table, control_channel),
            times=times,
        )
    except RuntimeError as error:
        raise GraphError(f"graph {graph.name!r} never ends: {error}") from error


def _fifo(graph: Graph, edge: Edge) -> Fifo | None:
    """None for an edge that rests in all phases."""
    bits = [it.token_bits for p in range(graph.phases) if (it := graph.itensor(edge, p)) is not None]
    if not bits:
        return None
    depth = edge.depth or 1
    ends = (edge.source.node, edge.source.name), (edge.target.node, edge.target.name)
    latency = fifo(max(bits), depth, edge.boundaries).latency
    return Fifo(*ends, latency, depth, way_of(edge.boundaries))


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
