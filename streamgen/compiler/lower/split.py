"""Split a logical graph or a graph of kernels into parts that exchange values through memory.

A graph of kernels is cut at streams that memory can hold. mx groups never leave the chip, so kernels that are
joined by a stream of mx groups stay together, with everything between them. A cut stream lies in memory in
the order in which its producer sends it, so its readers need the same converters as without the cut.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from graphlib import CycleError, TopologicalSorter
from itertools import chain, count
from typing import Any

from streamgen.artifact.manifest import SCALARS
from streamgen.artifact.packing import BEAT_BITS, MemoryLayout
from streamgen.contract import Bounds, KernelParams, only_loads, only_stores
from streamgen.itensor import ITensor, same_stream
from streamgen.model.graph import Edge, Graph, Node, Port, Tensor
from streamgen.model.graph.logical import Input, LogicalGraph
from streamgen.numbers import formats
from streamgen.platform.boards import Channel
from streamgen.platform.dma import LoadParams, StoreParams


def sub_network(network: LogicalGraph, members: Collection[str]) -> LogicalGraph:
    """The graph of the named operations, in their order, with the constants that they read.

    Its inputs are the values that these operations read but do not compute; inputs of the whole graph come
    first. Its outputs are the results of the whole graph that they compute, then the values that other
    operations read.
    """
    operations = [operation for operation in network.operations if operation.name in members]
    read = {name for operation in operations for name in operation.inputs}
    constants = {o.name for o in network.operations if o.op.is_constant and o.name in read}
    elsewhere = {name for o in network.operations if o.name not in members for name in o.inputs}
    computed = [o.name for o in network.operations if o.name in read - constants]
    outside = [Input(name, network.features(name)) for name in computed]
    own = [operation.name for operation in operations]
    results = [name for name in network.outputs if name in own]
    return LogicalGraph(
        inputs=(
            *(value for value in network.inputs if value.name in read),
            *(value for value in outside if value.name not in own),
        ),
        operations=tuple(o for o in network.operations if o.name in members or o.name in constants),
        outputs=(*results, *(name for name in own if name in elsewhere and name not in results)),
    )


@dataclass(frozen=True)
class _Value:
    """A cut stream in memory. stored: the graph already stores it as an output."""

    tensor: str
    channel: int
    stored: bool


def on_memory(graph: Graph, memory: Channel) -> Graph:
    """The graph with the rate and latency of this channel in all loads and stores. A builder may have used
    those of another board."""

    def placed(node: Node) -> Node:
        params: Any = node.params
        if not {"rate", "latency"} <= {field.name for field in fields(params)}:
            return node
        return replace(node, params=replace(params, **memory._asdict()))

    return replace(graph, nodes=tuple(placed(node) for node in graph.nodes))


class GraphParts:
    """Parts of an unfinished graph of kernels (no forks, no converters).

    units: groups of kernels and stores that must stay together, in topological order. memory: memory channel
    of the board, for the loads and stores that are added.
    """

    def __init__(self, graph: Graph, memory: Channel) -> None:
        self._graph, self._memory = graph, memory
        self._loads = {node.name for node in graph.nodes if only_loads(node.params)}
        self.units = _clusters(graph, [n.name for n in graph.nodes if n.name not in self._loads])
        self._values = self._in_memory()

    def reads(self, unit: Collection[str]) -> tuple[str, ...]:
        """Values that a unit reads from other units or from memory, as names of ports."""
        sources = [edge.source for name in unit for edge in self._graph.inputs_of(name)]
        return tuple(dict.fromkeys(str(source) for source in sources if source.node not in unit))

    def writes(self, unit: Collection[str]) -> tuple[str, ...]:
        """Values that a unit computes, as names of ports."""
        return tuple(str(Port(name, port)) for name in unit for port in self._graph.node(name).output_ports)

    def sizes(self) -> dict[str, int]:
        """Bits in memory of every value that memory can hold."""
        streams = {edge.source: self._graph.itensor(edge, 0) for edge in self._graph.edges}
        return {
            str(port): MemoryLayout.of(it).beats(it.token_count) * BEAT_BITS
            for port, it in streams.items()
            if it is not None and not formats.is_mx(it.dtype)
        }

    def results(self) -> set[str]:
        """Values that are stored in the order in which they are sent, even without a cut."""
        return {str(port) for port, value in self._values.items() if value.stored}

    def part(self, name: str, members: Collection[str]) -> Graph:
        """The graph of these nodes, with the loads that they read and with loads and stores at the cuts."""
        graph = self._graph
        into = [edge for edge in graph.edges if edge.target.node in members]
        loads = {edge.source.node for edge in into} & self._loads
        cut = dict.fromkeys(e.source for e in into if e.source.node not in {*members, *loads})
        ends = [e.source for e in graph.edges if e.source.node in members and e.target.node not in members]
        fresh = [port for port in dict.fromkeys(ends) if not self._values[port].stored]
        kept = [node for node in graph.nodes if node.name in members or node.name in loads]
        names = {port: self._values[port].tensor for port in (*cut, *fresh)}
        return Graph(
            name,
            (
                *(Node(f"load_{names[port]}", *self._load(port)) for port in cut),
                *kept,
                *(Node(f"store_{names[port]}", *self._store(port)) for port in fresh),
            ),
            (
                *(
                    replace(e, source=Port(f"load_{names[e.source]}", "o")) if e.source in cut else e
                    for e in into
                ),
                *(Edge(port, Port(f"store_{names[port]}", "i")) for port in fresh),
            ),
            (
                *(tensor for tensor in graph.tensors if tensor.node in {node.name for node in kept}),
                *(self._tensor(port, "input") for port in cut),
                *(self._tensor(port, "output") for port in fresh),
            ),
        )

    def _load(self, port: Port) -> tuple[KernelParams, tuple[Bounds]]:
        it = self._itensor(port)
        params = LoadParams(
            layout=MemoryLayout.of(it),
            prefetch=128,
            burst=64,
            max_tokens=it.token_count,
            **self._memory._asdict(),
        )
        return params, ({"itensor": it, "offset": 0},)

    def _store(self, port: Port) -> tuple[KernelParams, tuple[Bounds]]:
        it = self._itensor(port)
        layout = MemoryLayout.of(it)
        params = StoreParams(layout=layout, max_tokens=it.token_count, **self._memory._asdict())
        return params, ({"itensor": it, "offset": 0},)

    def _tensor(self, port: Port, role: str) -> Tensor:
        value = self._values[port]
        node = f"{'load' if role == 'input' else 'store'}_{value.tensor}"
        return Tensor(value.tensor, role, node, self._itensor(port).shape, value.channel)

    def _itensor(self, port: Port) -> ITensor:
        return self._graph.node(port.node).outputs(0)[port.name]

    def _in_memory(self) -> dict[Port, _Value]:
        """For each output port of a kernel, the place of its stream in memory if it is cut."""
        graph = self._graph
        tensors = {tensor.node: tensor for tensor in graph.tensors}
        channel = next((t.channel for t in graph.tensors if t.role != "constant"), 0)
        taken = {*SCALARS, "table", "status", *graph.by_name, *(t.name for t in graph.tensors)}
        taken |= {f"weights_{tensor.channel}" for tensor in graph.tensors}
        values: dict[Port, _Value] = {}
        for edge in graph.edges:
            port, target = edge.source, graph.node(edge.target.node)
            if port.node in self._loads or (it := graph.itensor(edge, 0)) is None:
                continue
            if only_stores(target.params) and same_stream(it, target.inputs(0)["i"]):
                tensor = tensors[target.name]
                values[port] = _Value(tensor.name, tensor.channel, True)
            elif port not in values:
                names = (f"{port.node}_{port.name}{end}" for end in chain([""], (f"_{i}" for i in count(1))))
                name = next(n for n in names if not taken & {n, f"load_{n}", f"store_{n}"})
                taken |= {name, f"load_{name}", f"store_{name}"}
                values[port] = _Value(name, channel, False)
        return values


def _clusters(graph: Graph, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Groups of nodes that must share an accelerator: nodes joined by mx streams, nodes joined to a store,
    and all nodes between them. A graph of several phases is one group."""
    cluster = {name: name for name in names}

    def merge(several: Iterable[str]) -> None:
        merged = {cluster[name] for name in several}
        for name, other in cluster.items():
            if other in merged:
                cluster[name] = min(merged, key=names.index)

    inside = [edge for edge in graph.edges if edge.source.node in cluster]
    for edge in inside:
        it = graph.itensor(edge, 0)
        store = only_stores(graph.node(edge.target.node).params)
        if graph.phases > 1 or store or (it is not None and formats.is_mx(it.dtype)):
            merge((edge.source.node, edge.target.node))
    while True:
        before: dict[str, dict[str, None]] = {cluster[name]: {} for name in names}
        for edge in inside:
            source, target = cluster[edge.source.node], cluster[edge.target.node]
            if source != target:
                before[target][source] = None
        try:
            order = list(TopologicalSorter(before).static_order())
        except CycleError as error:
            merge(error.args[1])
            continue
        return [tuple(name for name in names if cluster[name] == first) for first in order]
