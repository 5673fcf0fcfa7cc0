"""Predict the cycles of a pass of a finished graph, token by token (`tokens`).

Layers repeat one another, so the run is simulated without the loops that bring nothing new (`contexts`). The
contexts are made longer until this makes no difference.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import count, islice

import numpy as np

from streamgen.artifact.manifest import MemoryTiming
from streamgen.artifact.packing import BEAT_BYTES
from streamgen.artifact.phase_table import TABLE_CHUNK, Descriptor, PhaseTable
from streamgen.base.errors import GraphError
from streamgen.compiler.explore.contexts import contexts, spread, without_loops
from streamgen.compiler.explore.tokens import Descriptors, Fifo, Known, TokenRun
from streamgen.fifo.crossing import fifo, way_of
from streamgen.model.graph import Graph
from streamgen.platform.control.descriptor_bus import DescriptorBusParams, Target

BEFORE, BEHIND = 6, 2  # phases of a context at first; the numbers are doubled if that is too few
LONG = 1_000_000  # moves of a phase from which on its middle is left out; they take some milliseconds
STEADY = 0.002  # share of a run by which contexts of half the length may differ
_CHUNK = TABLE_CHUNK // BEAT_BYTES
_SLOTS = 4  # slots of a beat of the table
_TABLE_DEPTH, _TABLE_BURST = 64, 16
_TABLE_READ = 2  # cycles from a beat of the table in its FIFO to the sequencer: FIFO, register slice
_WORD = 7  # cycles from a slot to the node's collector and out of it, beside the levels of the bus
_END = 5  # cycles from a store's response to the end of the run


def predict(graph: Graph, table: PhaseTable, memory: MemoryTiming, control_channel: int) -> int:
    """Cycles of a pass, as the status block counts them.

    graph: finished graph with the bounds of the pass. table: the table that the sequencer walks.
    control_channel: channel of the table. Raises GraphError if the pass would never end with these FIFOs.
    """
    return sum(phase_cycles(graph, table, memory, control_channel))


def phase_cycles(
    graph: Graph, table: PhaseTable, memory: MemoryTiming, control_channel: int, known: Known | None = None
) -> tuple[int, ...]:
    """The cycles of `predict` by phase, summed over all walks of a phase. As in a profile, a walk of a phase
    lasts until its last token has passed the last stream. The end of the run belongs to the last phase.

    The phases that are simulated follow one another as in the run, in all contexts of BEFORE and BEHIND
    phases. Every other phase takes as long as a simulated phase with the same context. If contexts of half
    the length give a result that differs by more than STEADY of the run, the contexts are made longer.

    known: results that predictions share.
    """
    known = known or Known()
    phases = [phase for phase, _ in graph.steps()]
    does = _does(graph)
    run, often = _kinds(graph, does), Counter(does[phase] for phase in phases)
    for longer in count():
        before, behind = BEFORE << longer, BEHIND << longer
        run_contexts = contexts(run, before, behind)
        played = without_loops(run_contexts)
        few = [phases[step] for step in played]
        descriptors = _descriptors(graph, table, few, control_channel)
        cycles = _steps(graph, [does[phase] for phase in few], memory, descriptors, known, often)
        took = dict(zip(played, map(int, cycles), strict=True))
        of_step = spread(run_contexts, took)
        if len(played) == len(run):
            break
        shorter = spread(contexts(run, before // 2, behind // 2), took, first=True)
        if np.abs(np.subtract(of_step, shorter)).sum() <= STEADY * sum(of_step):
            break
    of_phase = Counter[int]()
    for phase, cycles_of in zip(phases, of_step, strict=True):
        of_phase[phase] += cycles_of
    return tuple(of_phase[phase] for phase in range(graph.phases))


def _does(graph: Graph) -> list[int]:
    """For each phase, the first phase in which all nodes do the same, apart from bounds that change from walk
    to walk."""
    first_of: dict[Hashable, int] = {}
    first = []
    for phase in range(graph.phases):
        doing = tuple(node.lasting(phase) for node in graph.nodes)
        first.append(first_of.setdefault(doing, phase))
    return first


def _kinds(graph: Graph, does: Sequence[int]) -> list[Hashable]:
    """For each step of a run: what it does, whether a walk begins with it, and the tokens held after it."""
    moved = [Counter[int]() for _ in does]  # tokens into back edges, less those out of them
    for number, edge in enumerate(graph.edges):
        if edge.back:
            ends = graph.node(edge.source.node).outputs, graph.node(edge.target.node).inputs
            for phase, into in enumerate(moved):
                sent, taken = ends[0](phase).get(edge.source.name), ends[1](phase).get(edge.target.name)
                into[number] += (sent.token_count if sent else 0) - (taken.token_count if taken else 0)
    first = {phases.start for phases, _ in graph.walked()}
    held = Counter[int]()
    kinds: list[Hashable] = []
    for phase, _ in graph.steps():
        held.update(moved[phase])
        kinds.append((does[phase], phase in first, tuple(sorted(held.items()))))
    return kinds


def _steps(
    graph: Graph,
    phases: Sequence[int],
    memory: MemoryTiming,
    descriptors: Descriptors,
    known: Known,
    often: Mapping[int, int],
) -> np.ndarray:
    """The cycles of each of these phases, which follow one another. often: number of times that each phase
    occurs in the whole run."""
    played = sorted(set(phases))
    with known.turn:
        executions = {
            node.name: {
                phase: known.clocks(node.params, bounds)
                for phase in played
                if (bounds := node.bounds[phase]) is not None
            }
            for node in graph.nodes
        }
    channels = {(tensor.node, tensor.port): tensor.channel for tensor in graph.tensors}
    try:
        run = TokenRun(
            phases,
            {name: by_phase for name, by_phase in executions.items() if by_phase},
            _fifos(graph),
            memory,
            channels,
            descriptors,
            known=known,
            long=LONG,
            often=often,
        )
    except RuntimeError as error:
        raise GraphError(f"graph {graph.name!r} never ends: {error}") from error
    ends = np.maximum.accumulate(run.ends)
    ends[-1] = run.cycles + _END
    return np.diff(ends, prepend=0)


def _fifos(graph: Graph) -> list[Fifo]:
    """The FIFOs of all edges, except edges that rest in all phases."""
    fifos = []
    for edge in graph.edges:
        bits = [it.token_bits for p in range(graph.phases) if (it := graph.itensor(edge, p)) is not None]
        if bits:
            depth = edge.depth or 1
            ends = (edge.source.node, edge.source.name), (edge.target.node, edge.target.name)
            latency = fifo(max(bits), depth, edge.boundaries).latency
            fifos.append(Fifo(*ends, latency, depth, way_of(edge.boundaries)))
    return fifos


def _descriptors(graph: Graph, table: PhaseTable, phases: Sequence[int], channel: int) -> Descriptors:
    """The descriptors of the parts of the table that belong to these phases."""
    targets = tuple(Target(fields=node.params.descriptor_fields()) for node in graph.nodes)
    told = _told(graph, table)
    first = {phases.start for phases, _ in graph.walked()}
    walks: list[list[tuple[str, int]]] = []
    for phase in phases:
        if phase in first or not walks:
            walks.append([])
        walks[-1] += [
            (graph.nodes[descriptor.target].name, 1 + len(descriptor.words)) for descriptor in told[phase]
        ]
    walks = [walk for walk in walks if walk]
    beats = [-(-sum(slots for _, slots in walk) // _SLOTS) for walk in walks]
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


def _told(graph: Graph, table: PhaseTable) -> list[Sequence[Descriptor]]:
    """The descriptors of each phase. In a section they come phase by phase, one for each node that works."""
    sections = iter(table.sections)
    by_phase: list[Sequence[Descriptor]] = []
    for phases, _ in graph.walked():
        counts = [sum(node.bounds[phase] is not None for node in graph.nodes) for phase in phases]
        rest: Iterator[Descriptor] = iter(next(sections).descriptors if any(counts) else ())
        by_phase += [list(islice(rest, count)) for count in counts]
    return by_phase
