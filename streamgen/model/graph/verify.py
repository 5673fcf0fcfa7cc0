"""The laws of a graph, checked after every pass.

1. Names are unique; edges and tensors name existing nodes and ports.
2. Every input port has exactly one edge, and so has every output port (several readers need a fork).
3. Nodes are in topological order. The only cycles are those that a back edge closes; it has a depth of its
own and is read in the walk in which it is sent, or later.
4. All nodes have the same number of phases. An edge rests on both sides or on none (a back edge: in equally
many walks).
5. On every edge, in every phase, producer and consumer agree on the stream (`same_stream`), unless the graph
does not have its converters yet.
6. Descriptors can be made: `describe` accepts every node's bounds, and its values fit the fields.
"""

from collections import Counter

from streamgen.base.errors import GraphError
from streamgen.contract import memory_ports, missing_methods
from streamgen.itensor import same_stream
from streamgen.model.graph.ir import Edge, Graph


def verify(graph: Graph, *, converters_pending: bool = False) -> Graph:
    """Return the graph; GraphError names the first broken law and the place."""

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
    counts = [count for section in graph.sections for count in section]
    if graph.sections and (sum(counts[::2]) != graph.phases or min(counts) < 1):
        fail(f"sections {graph.sections} must hold {graph.phases} phases; each needs a phase and a walk")
    position = {node.name: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if missing := missing_methods(node.params):
            fail(f"node {node.name!r}: {type(node.params).__name__} has no {', '.join(missing)}")
        if len(node.bounds) != graph.phases:
            fail(f"node {node.name!r} has {len(node.bounds)} phases, the graph {graph.phases}")
        for phase, walk in _ends(graph):
            if node.bounds[phase] is not None:
                try:
                    node.described(phase, walk)
                except ValueError as error:
                    fail(
                        f"node {node.name!r} cannot run phase {phase}{f', walk {walk}' * (walk > 0)}: {error}"
                    )
    for tensor in graph.tensors:
        if tensor.node not in position:
            fail(f"tensor {tensor.name!r} names no node: {tensor.node!r}")
        ports = memory_ports(graph.node(tensor.node).params)
        if tensor.port not in ports:
            fail(
                f"tensor {tensor.name!r}: {tensor.node!r} has memory ports {list(ports)}, not {tensor.port!r}"
            )
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
    if edge.back and edge.depth is None:
        fail(f"back edge {edge.name} has no depth; it must be given, as no pass computes it")
    if not edge.back and position[edge.source.node] >= position[edge.target.node]:
        if cycle := _cycle(graph, edge):
            fail(
                f"the nodes {' -> '.join(cycle)} are a cycle; one edge of it must be a back edge with a depth"
            )
        fail(f"edge {edge.name} runs against the order of the nodes")
    if edge.depth is not None and edge.depth < 1:
        fail(f"edge {edge.name} has depth {edge.depth}; at least 1 is needed")
    source, target = graph.node(edge.source.node), graph.node(edge.target.node)
    if edge.back:
        _verify_back(graph, edge, fail)
    else:
        for phase in range(graph.phases):
            if (edge.source.name in source.outputs(phase)) != (edge.target.name in target.inputs(phase)):
                fail(f"edge {edge.name}: one side rests in phase {phase}, the other does not")
    if converters_pending:
        return
    for phase, read in graph.pairs(edge):
        sends, wants = source.outputs(phase)[edge.source.name], target.inputs(read)[edge.target.name]
        if not same_stream(sends, wants):
            fail(f"edge {edge.name}, phase {phase}: the producer sends {sends}, the consumer wants {wants}")


def _verify_back(graph: Graph, edge: Edge, fail) -> None:  # type: ignore[no-untyped-def]
    source, target = graph.node(edge.source.node), graph.node(edge.target.node)
    sends = sum(edge.source.name in source.outputs(phase) for phase, _ in graph.steps())
    reads = sum(edge.target.name in target.inputs(phase) for phase, _ in graph.steps())
    if sends != reads:
        fail(f"back edge {edge.name}: its source sends in {sends} walks, its target reads in {reads}")
    order = {step: place for place, step in enumerate(graph.steps())}
    for sent, read in graph.deliveries(edge):
        if order[read] < order[sent]:
            fail(f"back edge {edge.name}: what is sent in phase {sent[0]} is read in phase {read[0]} already")


def _ends(graph: Graph) -> list[tuple[int, int]]:
    """Each phase with its first and its last walk, between which bounds grow evenly."""
    return [
        (phase, walk)
        for phases, walks in graph.walked()
        for phase in phases
        for walk in sorted({0, walks - 1})
    ]


def _cycle(graph: Graph, edge: Edge) -> list[str]:
    """Nodes of a cycle through this edge whose other edges are not back edges; empty if there is none."""
    paths = {edge.target.node: [edge.source.node, edge.target.node]}
    todo = [edge.target.node]
    while todo:
        name = todo.pop()
        if name == edge.source.node:
            return paths[name]
        for following in graph.outputs_of(name):
            if not following.back and following.target.node not in paths:
                paths[following.target.node] = [*paths[name], following.target.node]
                todo.append(following.target.node)
    return []
