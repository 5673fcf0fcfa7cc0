"""Passes over graphs of kernels; each returns a new graph."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from streamgen.artifact.packing import MemoryLayout
from streamgen.base.errors import BudgetError, GraphError
from streamgen.base.progress import Counted
from streamgen.contract import link_depth, patient
from streamgen.contract.cost import Curve
from streamgen.converters import choose_converter
from streamgen.fifo.clocks import Clocks, sides_of
from streamgen.fifo.crossing import way_of
from streamgen.fifo.curves import ENOUGH, NodeStream
from streamgen.fifo.queue import QueueParams
from streamgen.fifo.sizing import Strategy, size
from streamgen.itensor import ITensor, counted_as, same_stream
from streamgen.kernels.moves.fork import ForkParams
from streamgen.model.graph import Edge, Graph, Node, Port, Tensor, verify
from streamgen.model.graph.curves import curves_of
from streamgen.platform.control.counters import DEEPEST

LINK_DEPTH = 2  # least depth of a stream whose depth a schedule decides
_WIDEST = 2048  # behind patient nodes, a schedule decides the depth only for tokens of at most so many bits


def insert_forks(graph: Graph, largest: Graph | None = None) -> Graph:
    """Insert a fork behind every output with several readers. largest: finished graph of the largest run,
    whose Params the forks get."""
    nodes: list[Node] = []
    edges: list[Edge] = []
    readers: dict[Port, list[Edge]] = {}
    for edge in graph.edges:
        readers.setdefault(edge.source, []).append(edge)
    for node in graph.nodes:
        nodes.append(node)
        for port in node.output_ports:
            targets = readers.get(Port(node.name, port), [])
            if len(targets) <= 1:
                edges += targets
                continue
            name = f"fork_{node.name}_{port}"
            itensors = [node.outputs(phase).get(port) for phase in range(graph.phases)]
            if largest is not None:
                params = largest.node(name).params
            else:
                sent = [it for it in itensors if it is not None]
                params = ForkParams(
                    token_bits=sent[0].token_bits,
                    ways=len(targets),
                    max_tokens=max(it.token_count for it in sent),
                )
            bounds = tuple(None if it is None else {"itensor": it} for it in itensors)
            nodes.append(Node(name, params, bounds))
            edges.append(Edge(Port(node.name, port), Port(name, "i")))
            edges += [replace(e, source=Port(name, f"o_{i}")) for i, e in enumerate(targets)]
    return verify(replace(graph, nodes=tuple(nodes), edges=tuple(edges)), converters_pending=True)


def insert_converters(
    graph: Graph,
    largest: Graph | None = None,
    smallest: Graph | None = None,
    counted: Counted | None = None,
) -> Graph:
    """Insert a layout converter on every edge whose two ends have different orders of tiles. The converter is
    of the kind that needs the least memory.

    largest: finished graph of the largest run, which is the structure of the hardware. If it is given, it
    decides which edges have converters. smallest: graph of the smallest run with forks, which the converters
    must serve too. counted: called for each edge.

    Raises GraphError if a consumer reads tiles that its producer does not send.
    """
    before: dict[str, list[Node]] = {}
    edges: list[Edge] = []
    for number, edge in enumerate(graph.edges):
        if counted is not None:
            counted("converters", number, len(graph.edges))
        name = f"convert_{edge.target.node}_{edge.target.name}"
        pairs = _pairs(graph, edge)
        known = [pair for pair in pairs if pair is not None]
        if largest is not None:
            needed = name in largest.by_name
        else:
            needed = any(not same_stream(*pair) for pair in known)
        if not needed:
            edges.append(edge)
            continue
        if largest is not None:
            params = largest.node(name).params
        else:
            others = [] if smallest is None else [pair for pair in _pairs(smallest, edge) if pair is not None]
            if len(known) > 1:
                others += known
            try:
                params = choose_converter(
                    *(_envelope(side) for side in zip(*known, strict=True)), tuple(others)
                )
            except ValueError as error:
                raise GraphError(
                    f"edge {edge.name} of graph {graph.name!r} needs a converter: {error}"
                ) from error
        bounds = tuple(None if pair is None else {"source": pair[0], "target": pair[1]} for pair in pairs)
        before.setdefault(edge.target.node, []).append(Node(name, params, bounds))
        edges += [replace(edge, target=Port(name, "i")), Edge(Port(name, "o"), edge.target)]
    nodes = tuple(n for node in graph.nodes for n in (*before.get(node.name, ()), node))
    return verify(replace(graph, nodes=nodes, edges=tuple(edges)))


def _envelope(itensors: Sequence[ITensor]) -> ITensor:
    """The smallest stream of which every given stream is a prefix, loop by loop."""
    alike = [counted_as(itensor, itensors[0]) for itensor in itensors]
    trips = tuple(max(several) for several in zip(*(it.tripcounts for it in alike), strict=True))
    return replace(alike[0], tripcounts=trips)


def _pairs(graph: Graph, edge: Edge) -> list[tuple[ITensor, ITensor] | None]:
    """For each phase, the order that the producer of an edge sends and the order that its consumer reads;
    None if the edge is idle."""
    source, target = graph.node(edge.source.node), graph.node(edge.target.node)
    pairs: list[tuple[ITensor, ITensor] | None] = [None] * graph.phases
    for sent, read in graph.pairs(edge):
        if edge.target.name in target.inputs(read):
            pairs[read] = source.outputs(sent)[edge.source.name], target.inputs(read)[edge.target.name]
    return pairs


def place_constants(graph: Graph) -> Graph:
    """Place the constants of each memory channel in one buffer and set their offsets. Constants that all
    walks share come first. Then come the constants of each walk, section by section and walk by walk. All are
    in the order of the tensors.

    Raises GraphError if a constant is not read exactly once in every walk, or if the constants of a node do
    not advance by one distance from walk to walk.
    """
    free: Counter[int] = Counter()  # next free beat of each channel
    offsets: dict[tuple[str, int | None], int] = {}
    steps: dict[str, int] = {}
    constants = [tensor for tensor in graph.tensors if tensor.role == "constant"]
    walked = [t for t in constants if t.walks(graph.tensor_itensor(t)) > 1]
    for tensor in constants:
        if tensor not in walked:
            offsets[tensor.node, tensor.phase] = free[tensor.channel]
            free[tensor.channel] += _beats(graph, tensor)
    for phases, walks in graph.walked():
        here = [t for t in walked if any(graph.node(t.node).bounds[phase] for phase in _phases(t, phases))]
        size: Counter[int] = Counter()
        for tensor in here:
            offsets[tensor.node, tensor.phase] = free[tensor.channel] + size[tensor.channel]
            size[tensor.channel] += _beats(graph, tensor)
        for tensor in here:
            step = size[tensor.channel]
            if (
                steps.setdefault(tensor.node, step) != step
                or tensor.walks(graph.tensor_itensor(tensor)) != walks
            ):
                raise GraphError(
                    f"constant {tensor.name!r} of {tensor.node!r} is not read once in every walk"
                )
        for channel, beats in size.items():
            free[channel] += walks * beats
    nodes = []
    for node in graph.nodes:
        if any(name == node.name for name, _ in offsets):
            bounds = tuple(
                None
                if b is None
                else {**b, "offset": offsets.get((node.name, phase), offsets.get((node.name, None), 0))}
                for phase, b in enumerate(node.bounds)
            )
            more = {"offset": steps[node.name]} if node.name in steps else {}
            node = replace(node, bounds=bounds, steps={**node.steps, **more})
        nodes.append(node)
    return verify(replace(graph, nodes=tuple(nodes)))


def _beats(graph: Graph, tensor: Tensor) -> int:
    itensor = graph.tensor_itensor(tensor)
    return MemoryLayout.of(itensor).beats(itensor.token_count)


def _phases(tensor: Tensor, phases: range) -> Sequence[int]:
    """The phases in which a constant may be read."""
    return [phase for phase in phases if tensor.phase in (None, phase)]


def size_fifos(
    corners: Sequence[Graph], strategy: Strategy, counted: Counted | None = None
) -> tuple[Graph, list[int]]:
    """Choose the depth of every FIFO so that all phases of all corner graphs keep their schedules. Returns
    the first graph with these depths, and the cycles of each phase of each corner.

    Constants run ahead into the prefetch FIFOs of their loads, whose depth the user chooses. The links behind
    these FIFOs have the depth that their ends need. The same holds for streams of wide tokens that can wait
    at their source. Back edges keep their depth. counted: called for phases, then for FIFOs.

    Raises BudgetError for a FIFO of more tokens than its counter counts.
    """
    runs = {_run_key(graph, phase): (graph, phase) for graph, phase in _runs(corners)}
    streams: list[list[NodeStream | None]] = []
    known = Executions()
    for run in runs.values():
        if counted is not None:
            counted("timing of phases", len(streams), len(runs))
        streams.append(run_streams(*run, known))
    sizing = size(run_nodes(corners[0]), streams, strategy, LINK_DEPTH, counted=counted, times=False)
    ahead = _running_ahead(corners[0])
    depths = {
        (edge.source, edge.target): _link_depth(corners[0], edge)
        if edge.source.node in ahead or _waits_inside(corners[0], edge)
        else max(LINK_DEPTH, depth)
        for edge, depth in zip(corners[0].edges, sizing.depths, strict=False)
        if not edge.back
    }
    for (source, target), depth in depths.items():
        if depth > DEEPEST:
            raise BudgetError(
                f"the FIFO from {source} to {target} needs room for {depth:,} tokens; a FIFO of at most "
                f"{DEEPEST:,} can be counted. Lower CompileConfig.max_tokens"
            )
    cycles = {key: schedule.finish for key, schedule in zip(runs, sizing.schedules, strict=True)}
    return verify(corners[0].with_depths(depths)), [cycles[_run_key(*run)] for run in _runs(corners)]


def _waits_inside(graph: Graph, edge: Edge) -> bool:
    """Whether the tokens of an edge are wide and wait in their source instead of the FIFO."""
    if edge.back or not patient(graph.node(edge.source.node).params):
        return False
    sent = (graph.itensor(edge, phase) for phase in range(graph.phases))
    return any(itensor is not None and itensor.token_bits > _WIDEST for itensor in sent)


def _link_depth(graph: Graph, edge: Edge) -> int:
    """The depth with which a stream moves a token per cycle, if no schedule decides its depth."""
    if edge.boundaries:
        return 2 * way_of(edge.boundaries) + 2
    return min(link_depth(graph.node(name).params) for name in (edge.source.node, edge.target.node))


def _runs(corners: Sequence[Graph]) -> Iterator[tuple[Graph, int]]:
    return ((graph, phase) for graph in corners for phase in range(graph.phases))


def _run_key(graph: Graph, phase: int) -> Hashable:
    """A key that is equal for runs in which the nodes do the same, apart from bounds that change from walk to
    walk. The graphs must have equal params."""
    does = (
        None
        if (bounds := node.bounds[phase]) is None
        else tuple(sorted((name, value) for name, value in bounds.items() if name not in node.steps))
        for node in graph.nodes
    )
    return tuple(does), tuple(edge.name for edge in graph.edges if edge.back and _within(graph, edge, phase))


def _within(graph: Graph, edge: Edge, phase: int) -> bool:
    """Whether the tokens that a back edge delivers in a phase are computed in the same phase."""
    return ((phase, 0), (phase, 0)) in graph.deliveries(edge)


def run_nodes(graph: Graph) -> list[str]:
    """Names of the nodes of a run: kernels, or their parts."""
    return [name for node in graph.nodes for name in _parts(node).names]


def run_streams(graph: Graph, phase: int, known: "Executions | None" = None) -> list[NodeStream | None]:
    """The stream through each FIFO in a phase, then the streams between the parts of kernels. None for a
    stream that is idle. known: executions of other runs of the same nodes; equal streams are one object."""
    known = Executions() if known is None else known
    ahead = _running_ahead(graph)
    done: dict[str, _Execution] = {}
    inner: list[NodeStream | None] = []
    for node in graph.nodes:
        if node.bounds[phase] is None:
            inner += [None] * known.inner(node)
            continue
        done[node.name] = execution = known.of(node, phase)
        inner += execution.inner
    streams: list[NodeStream | None] = []
    for edge in graph.edges:
        itensor = graph.itensor(edge, phase)
        if itensor is None or (edge.back and not _within(graph, edge, phase)):
            streams.append(None)
            continue
        depth, latency, way = edge.depth if edge.back else None, None, way_of(edge.boundaries)
        if _waits_inside(graph, edge):
            depth = _link_depth(graph, edge)
        if edge.source.node in ahead:
            link = QueueParams(bits=itensor.token_bits, depth=_link_depth(graph, edge))
            depth, latency = ENOUGH, link.latency
        source, target = (done[port.node].sides[port.name] for port in (edge.source, edge.target))
        streams.append(known.stream(source, target, itensor.token_bits, depth, latency, way))
    return streams + inner


@dataclass(frozen=True, eq=False)
class _Side:
    """A port in an execution. part: part of the kernel to which it belongs. cycles: cycles of its tokens.
    clock: clock of the part in these cycles; None if the curves alone define it."""

    part: str
    cycles: np.ndarray
    clock: np.ndarray | None


@dataclass(frozen=True, eq=False)
class _Execution:
    """An execution of a node. sides: its ports by name. inner: streams between its parts."""

    sides: Mapping[str, _Side]
    inner: tuple[NodeStream, ...]


class Executions:
    """Executions of nodes, computed once for equal params and bounds, because equal layers do the same."""

    def __init__(self) -> None:
        self._executions: dict[Hashable, _Execution] = {}
        self._curves: dict[Hashable, Mapping[str, np.ndarray]] = {}
        self._cycles: dict[Curve, np.ndarray] = {}
        self._streams: dict[Hashable, NodeStream] = {}
        self._inner: dict[str, int] = {}

    def inner(self, node: Node) -> int:
        """Number of streams between the parts of a node."""
        if node.name not in self._inner:
            self._inner[node.name] = len(_parts(node).streams)
        return self._inner[node.name]

    def of(self, node: Node, phase: int) -> _Execution:
        """The execution of a node in a phase in which it does not rest."""
        bounds = node.bounds[phase]
        assert bounds is not None
        key = node.params, tuple(sorted(bounds.items()))
        if (node.name, key) not in self._executions:
            if key not in self._curves:
                curves = curves_of(node, phase)
                self._curves[key] = {port: self._moves(curve) for port, curve in curves.items()}
            parts = sides_of(node.name, node.params, bounds)
            sides = {}
            for port, cycles in self._curves[key].items():
                part, clock = parts.at(port)
                sides[port] = _Side(part, cycles, clock)
            self._executions[node.name, key] = _Execution(sides, parts.streams)
        return self._executions[node.name, key]

    def _moves(self, curve: Curve) -> np.ndarray:
        if curve not in self._cycles:
            self._cycles[curve] = curve.cycles()
        return self._cycles[curve]

    def stream(
        self, source: _Side, target: _Side, bits: int, depth: int | None, latency: int | None, way: int
    ) -> NodeStream:
        """The stream from one port to another. source, target: sides of executions from `of`."""
        key = id(source), id(target), bits, depth, latency, way
        if key not in self._streams:
            ends, moves = (source.part, target.part), (source.cycles, target.cycles)
            clocks = source.clock, target.clock
            self._streams[key] = NodeStream(*ends, bits, *moves, depth, latency, *clocks, way=way)
        return self._streams[key]


def _parts(node: Node) -> Clocks:
    """The parts of a node; they are the same in every phase."""
    bounds = next(bounds for bounds in node.bounds if bounds is not None)
    return sides_of(node.name, node.params, bounds)


def _running_ahead(graph: Graph) -> set[str]:
    """Names of the nodes that run ahead: loads of constants, and nodes that only such nodes feed. If they
    wait, no other node waits. A node with several readers does not count, because one reader can hold back
    the others; neither does a load whose rows may wait, because others read the same numbers."""
    ahead = {tensor.node for tensor in graph.tensors if tensor.role == "constant"}
    ahead = {name for name in ahead if not getattr(graph.node(name).params, "apart", False)}
    for node in graph.nodes:
        sources = [edge.source.node for edge in graph.inputs_of(node.name)]
        if sources and ahead.issuperset(sources):
            ahead.add(node.name)
        if len({edge.target.node for edge in graph.outputs_of(node.name)}) > 1:
            ahead.discard(node.name)
    return ahead
