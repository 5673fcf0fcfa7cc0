"""The laws of a graph, checked after every pass.

1. Names are unique; edges and tensors name nodes and ports that exist.
2. Every input port has exactly one edge, every output port exactly one (several readers need a fork).
3. Nodes stand in topological order, so there are no cycles.
4. All nodes have the same number of phases; an edge rests on both sides or on none.
5. On every edge, in every phase, producer and consumer agree on the stream (`same_stream`), unless the
   graph is still to get its converters.
6. Descriptors can be made: `describe` accepts every node's bounds, and its values fit the fields.
"""

from collections import Counter

from streamgen.contract import descriptor_values, missing_methods
from streamgen.errors import GraphError
from streamgen.graph.ir import Edge, Graph
from streamgen.itensor import same_stream

__all__ = ["verify"]


def verify(graph: Graph, *, converters_pending: bool = False) -> Graph:
    """Return the graph itself; GraphError names the first law broken and where."""

    def fail(text: str) -> None:
        raise GraphError(f"graph {graph.name!r}: {text}")

    if not graph.nodes:
        fail("has no nodes")
    for name, count in Counter(node.name for node in graph.nodes).items():
        if count > 1:
            fail(f"{count} nodes are called {name!r}")
    for name, count in Counter(tensor.name for tensor in graph.tensors).items():
        if count > 1:
            fail(f"{count} tensors are called {name!r}")
    position = {node.name: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if missing := missing_methods(node.params):
            fail(f"node {node.name!r}: {type(node.params).__name__} has no {', '.join(missing)}")
        if len(node.bounds) != graph.phases:
            fail(f"node {node.name!r} has {len(node.bounds)} phases, the graph {graph.phases}")
        for phase, bounds in enumerate(node.bounds):
            if bounds is not None:
                try:
                    descriptor_values(node.params, bounds)
                except ValueError as error:
                    fail(f"node {node.name!r} cannot run phase {phase}: {error}")
    for tensor in graph.tensors:
        if tensor.node not in position:
            fail(f"tensor {tensor.name!r} names no node: {tensor.node!r}")
    driven: Counter[tuple[str, str]] = Counter()
    for edge in graph.edges:
        _verify_edge(graph, edge, position, fail, converters_pending)
        driven[edge.source.node, edge.source.name] += 1
        driven[edge.target.node, edge.target.name] += 1
    for node in graph.nodes:
        for port in (*node.input_ports, *node.output_ports):
            count = driven[node.name, port]
            if count != 1:
                fail(f"port {node.name}.{port} has {count} edges; exactly one is allowed")
    return graph


def _verify_edge(graph: Graph, edge: Edge, position, fail, converters_pending: bool) -> None:  # type: ignore[no-untyped-def]
    for end, ports in ((edge.source, "output_ports"), (edge.target, "input_ports")):
        if end.node not in position:
            fail(f"edge {edge.name} names no node: {end.node!r}")
        known = getattr(graph.node(end.node), ports)
        if end.name not in known:
            names = ", ".join(known)
            fail(f"edge {edge.name}: {end.node!r} has no {ports[:-6]} port {end.name!r}, only {names}")
    if position[edge.source.node] >= position[edge.target.node]:
        fail(f"edge {edge.name} runs against the order of the nodes: a cycle or a node out of order")
    if edge.depth is not None and edge.depth < 1:
        fail(f"edge {edge.name} has depth {edge.depth}; at least 1 is needed")
    for phase in range(graph.phases):
        sent = graph.itensor(edge, phase)
        wanted = graph.node(edge.target.node).inputs(phase).get(edge.target.name)
        if (sent is None) != (wanted is None):
            fail(f"edge {edge.name}: one side rests in phase {phase}, the other does not")
        if sent is None or wanted is None or converters_pending:
            continue
        if not same_stream(sent, wanted):
            fail(f"edge {edge.name}, phase {phase}: the producer sends {sent}, the consumer wants {wanted}")
