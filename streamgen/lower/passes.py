"""Passes over graphs of kernels; each returns a new graph."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from streamgen.converters import choose_converter
from streamgen.errors import GraphError
from streamgen.fifo.curves import ENOUGH, Parts, parts_of
from streamgen.fifo.queue import QueueParams
from streamgen.fifo.sizing import Schedule, Strategy, Stream, size
from streamgen.graph import Edge, Graph, Node, Port, verify
from streamgen.graph.curves import curves_of
from streamgen.itensor import ITensor, same_stream
from streamgen.kernels.fork import ForkParams
from streamgen.packing import MemoryLayout

__all__ = ["insert_converters", "insert_forks", "place_constants", "run_nodes", "run_streams", "size_fifos"]

LINK_DEPTH = 2  # of a stream whose depth no schedule decides


def insert_forks(graph: Graph, largest: Graph | None = None) -> Graph:
    """Give every output with several readers a fork. `largest`: the finished graph of the largest run."""
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


def insert_converters(graph: Graph, largest: Graph | None = None, smallest: Graph | None = None) -> Graph:
    """Give every edge whose two ends disagree about the order of tiles a layout converter, of the kind
    that needs the least memory.

    GraphError when the consumer reads what the producer does not send. Whether an edge needs one is
    decided on `largest`, the finished graph of the largest run, where it is given: the structure is that
    of the hardware. smallest: the graph of the smallest run, forks inserted, which the kind must serve too.
    """
    before: dict[str, list[Node]] = {}
    edges: list[Edge] = []
    for edge in graph.edges:
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
            try:
                params = choose_converter(*max(known, key=lambda st: st[1].token_count), tuple(others))
            except ValueError as error:
                raise GraphError(
                    f"edge {edge.name} of graph {graph.name!r} needs a converter: {error}"
                ) from error
        bounds = tuple(None if pair is None else {"source": pair[0], "target": pair[1]} for pair in pairs)
        before.setdefault(edge.target.node, []).append(Node(name, params, bounds))
        edges += [Edge(edge.source, Port(name, "i")), Edge(Port(name, "o"), edge.target)]
    nodes = tuple(n for node in graph.nodes for n in (*before.get(node.name, ()), node))
    return verify(replace(graph, nodes=nodes, edges=tuple(edges)))


def _pairs(graph: Graph, edge: Edge) -> list[tuple[ITensor, ITensor] | None]:
    """What an edge's producer sends and its consumer reads, by phase; None where either is idle."""
    pairs: list[tuple[ITensor, ITensor] | None] = []
    for phase in range(graph.phases):
        source = graph.itensor(edge, phase)
        target = graph.node(edge.target.node).inputs(phase).get(edge.target.name)
        pairs.append(None if source is None or target is None else (source, target))
    return pairs


def place_constants(graph: Graph) -> Graph:
    """Lay the constants of each memory channel one after the other into one buffer; set the offsets."""
    free: dict[int, int] = {}
    offsets: dict[str, int] = {}
    for tensor in graph.tensors:
        if tensor.role == "constant":
            itensor = graph.tensor_itensor(tensor)
            offsets[tensor.node] = free.get(tensor.channel, 0)
            layout = MemoryLayout.of(itensor)
            free[tensor.channel] = offsets[tensor.node] + layout.beats(itensor.token_count)
    nodes = tuple(
        replace(n, bounds=tuple(None if b is None else {**b, "offset": offsets[n.name]} for b in n.bounds))
        if n.name in offsets
        else n
        for n in graph.nodes
    )
    return verify(replace(graph, nodes=nodes))


def size_fifos(corners: Sequence[Graph], strategy: Strategy) -> tuple[Graph, list[Schedule]]:
    """The first graph with the depth of every FIFO, such that all phases of all corner graphs keep their
    schedules. Also these, phase by phase of each corner.

    Constants run ahead into the prefetch FIFOs of their loads, whose depth is a choice of the user; the
    links behind them have the least depth. Back edges keep the depth that they have.
    """
    runs = [run_streams(graph, phase) for graph in corners for phase in range(graph.phases)]
    sizing = size(run_nodes(corners[0]), runs, strategy, LINK_DEPTH)
    ahead = _running_ahead(corners[0])
    depths = {
        (edge.source, edge.target): LINK_DEPTH if edge.source.node in ahead else max(LINK_DEPTH, depth)
        for edge, depth in zip(corners[0].edges, sizing.depths, strict=False)
        if not edge.back
    }
    return verify(corners[0].with_depths(depths)), list(sizing.schedules)


def run_nodes(graph: Graph) -> list[str]:
    """Names of the nodes of a run: kernels, or their parts."""
    return [name for node in graph.nodes for name in _parts(node).names]


def run_streams(graph: Graph, phase: int) -> list[Stream | None]:
    """What passes through each FIFO in a phase; then what passes between the parts of kernels."""
    ahead = _running_ahead(graph)
    curves: dict[Port, np.ndarray] = {}
    part: dict[Port, tuple[str, np.ndarray | None]] = {}
    inner: list[Stream | None] = []
    for node in graph.nodes:
        if node.bounds[phase] is None:
            inner += [None] * len(_parts(node).streams)
            continue
        parts = parts_of(node.name, node.params, node.bounds[phase])
        inner += parts.streams
        for name, curve in curves_of(node, phase).items():
            curves[Port(node.name, name)] = curve.cycles()
            part[Port(node.name, name)] = parts.at(name)
    streams: list[Stream | None] = []
    for edge in graph.edges:
        itensor = graph.itensor(edge, phase)
        if itensor is None or graph.read_in(edge, phase) != phase:
            streams.append(None)
            continue
        depth, latency = edge.depth if edge.back else None, None
        if edge.source.node in ahead:
            depth, latency = ENOUGH, QueueParams(bits=itensor.token_bits, depth=LINK_DEPTH).latency
        (source, sends), (target, takes) = part[edge.source], part[edge.target]
        ends, moves = (source, target), (curves[edge.source], curves[edge.target])
        streams.append(Stream(*ends, itensor.token_bits, *moves, depth, latency, sends, takes))
    return streams + inner


def _parts(node: Node) -> Parts:
    """The parts of a node, as in any phase."""
    bounds = next(bounds for bounds in node.bounds if bounds is not None)
    return parts_of(node.name, node.params, bounds)


def _running_ahead(graph: Graph) -> set[str]:
    """Loads of constants, and nodes fed by nothing else: what they hold back delays nobody but themselves.

    Not so a node with several readers, of which one can hold back the others.
    """
    ahead = {tensor.node for tensor in graph.tensors if tensor.role == "constant"}
    for node in graph.nodes:
        sources = [edge.source.node for edge in graph.inputs_of(node.name)]
        if sources and ahead.issuperset(sources):
            ahead.add(node.name)
        if len(list(graph.outputs_of(node.name))) > 1:
            ahead.discard(node.name)
    return ahead
