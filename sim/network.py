"""Network: the kernels of a graph and the FIFOs between them as one component with plain stream ports.

Every port of a kernel without an edge becomes the port `<node>_<port>` of the network, the descriptor of
a kernel `<node>_i_descriptor`. Kernels that touch memory have no place here. What the FIFOs do can be seen
from outside: bit k of `i_valid`, `i_ready` (of what enters) and `o_valid`, `o_ready` (of what leaves) belongs
to edge k of the graph. With `adjustable`, `limits` sets how many tokens of its depth each FIFO may hold, from
1 on; it behaves in every cycle as a queue of that depth.

An `Edge` without depth is a GraphError here. Nodes need not have all their ports joined, so such graphs are
built as values and not with GraphBuilder.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Module, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.errors import GraphError
from streamgen.fifo.queue import QueueParams
from streamgen.graph import Graph
from streamgen.rtl import Shared

__all__ = ["LIMIT_BITS", "Link", "Network"]

LIMIT_BITS = 16


@dataclass(frozen=True)
class Link:
    """An edge for who watches it: its name, the nodes at its ends, its depth, the streams in and out."""

    name: str
    source: str
    target: str
    depth: int
    into: Any
    out_of: Any


class Network(wiring.Component):
    """`links`: the edges of the graph, in order."""

    def __init__(self, graph: Graph, *, adjustable: bool = False) -> None:
        self._graph = graph
        self._adjustable = adjustable
        self._kernels = {node.name: Shared(node.params) for node in graph.nodes}
        self._queues = []
        self.links: list[Link] = []
        joined = set()
        for edge in graph.edges:
            if edge.depth is None:
                raise GraphError(f"edge {edge.name} of graph {graph.name!r} has no depth")
            source = getattr(self._kernels[edge.source.node], edge.source.name)
            queue = Shared(QueueParams(bits=len(source.payload), depth=edge.depth))
            self._queues.append(queue)
            self.links.append(
                Link(edge.name, edge.source.node, edge.target.node, edge.depth, queue.i, queue.o)
            )
            joined |= {edge.source, edge.target}
        self._boundary = {
            f"{node.name}_{name}": (
                node.name,
                name,
                member.flow(stream.Signature(self._bits(node.name, name))),
            )
            for node in graph.nodes
            for name, member in self._kernels[node.name].signature.members.items()
            if (node.name, name) not in {(port.node, port.name) for port in joined}
        }
        count = max(1, len(graph.edges))
        probes = {name: Out(count) for name in ("i_valid", "i_ready", "o_valid", "o_ready")}
        limits = {"limits": In(data.ArrayLayout(LIMIT_BITS, count))} if adjustable else {}
        super().__init__({name: member for name, (_, _, member) in self._boundary.items()} | probes | limits)

    def _bits(self, node: str, port: str) -> int:
        return len(Value.cast(getattr(self._kernels[node], port).payload))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        for name, kernel in self._kernels.items():
            m.submodules[name] = kernel
        for name, (node, port, _) in self._boundary.items():
            ends = getattr(self, name), getattr(self._kernels[node], port)
            source, target = ends if self.signature.members[name].flow == In else reversed(ends)
            m.d.comb += [
                Value.cast(target.payload).eq(Value.cast(source.payload)),
                target.valid.eq(source.valid),
                source.ready.eq(target.ready),
            ]
        for k, (edge, queue) in enumerate(zip(self._graph.edges, self._queues, strict=True)):
            m.submodules[f"queue_{k}"] = queue
            source = getattr(self._kernels[edge.source.node], edge.source.name)
            target = getattr(self._kernels[edge.target.node], edge.target.name)
            allowed = self._allowed(k, queue) if self._adjustable else 1
            m.d.comb += [
                queue.i.payload.eq(source.payload),
                queue.i.valid.eq(source.valid & allowed),
                source.ready.eq(queue.i.ready & allowed),
                target.payload.eq(queue.o.payload),
                target.valid.eq(queue.o.valid),
                queue.o.ready.eq(target.ready),
                self.i_valid[k].eq(source.valid),
                self.i_ready[k].eq(source.ready),
                self.o_valid[k].eq(target.valid),
                self.o_ready[k].eq(target.ready),
            ]
        return m

    def _allowed(self, k: int, queue: Any) -> Any:
        """Whether a queue of the depth `limits[k]` would be ready; one of depth 1 is as it is emptied."""
        limit = self.limits[k]
        emptied = (limit == 1) & queue.o.valid & queue.o.ready
        return (queue.level < limit) | emptied
