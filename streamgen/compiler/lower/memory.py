"""What intermediate tensors cost on the chip, and what they would cost whole.

An intermediate tensor is what a kernel computes in a phase and another one reads. Unfused, each of them is
stored whole, as if every kernel read and wrote memory; phases in which the same kernels make tensors, as
those of layers, use the same memory. Fused, there are FIFOs and layout converters in their place. Loads,
stores, forks, switches, concatenations and converters move tensors and make none. What converters hold of
constants, as rows of weights that meet several tokens, is no intermediate tensor.
"""

from collections.abc import Collection

from streamgen.contract import held_bits, moves, only_loads
from streamgen.model.graph import Graph, Port
from streamgen.numbers import formats


def converter_bits(graph: Graph) -> int:
    """Bits that the layout converters of a graph hold."""
    return sum(held_bits(node.params) for node in graph.nodes)


def constant_bits(graph: Graph) -> int:
    """Of these, the bits of what comes from constants alone."""
    constant = {tensor.node for tensor in graph.tensors if tensor.role == "constant"}
    constant = {name for name in constant if only_loads(graph.node(name).params)}
    for node in graph.nodes:  # in topological order
        sources = {edge.source.node for edge in graph.inputs_of(node.name)}
        if moves(node.params) and sources and sources <= constant:
            constant.add(node.name)
    return sum(held_bits(graph.node(name).params) for name in constant)


def fifo_bits(graph: Graph) -> int:
    """Bits of all FIFOs of a graph whose depths are known."""
    return sum(
        max(it.token_bits for p in range(graph.phases) if (it := graph.itensor(edge, p)) is not None)
        * (edge.depth or 0)
        for edge in graph.edges
    )


def unfused_bits(graph: Graph, kept: Collection[str] = ()) -> int:
    """Bits of all intermediate tensors, whole. kept: names of outputs that another group reads."""
    makers = [node for node in graph.nodes if not moves(node.params)]
    stored = {tensor.node for tensor in graph.tensors if tensor.role == "output" and tensor.name not in kept}
    ports = [
        (node, name)
        for node in makers
        for name in node.output_ports
        if _readers(graph, Port(node.name, name)) - stored
    ]
    by_makers: dict[frozenset[tuple[str, str]], list[int]] = {}
    for phase in range(graph.phases):
        made = {
            (node.name, name): formats.token_bits(it.dtype, it.shape)
            for node, name in ports
            if (it := node.outputs(phase).get(name)) is not None
        }
        most = by_makers.setdefault(frozenset(made), [0] * len(made))
        most[:] = map(max, most, (made[key] for key in sorted(made)))
    return sum(map(sum, by_makers.values()))


def _readers(graph: Graph, port: Port) -> set[str]:
    """Nodes that read a port, through those that only move tensors."""
    found: set[str] = set()
    for edge in graph.outputs_of(port.node):
        if edge.source == port:
            reader = graph.node(edge.target.node)
            if moves(reader.params) and reader.output_ports:
                for name in reader.output_ports:
                    found |= _readers(graph, Port(reader.name, name))
            else:
                found.add(reader.name)
    return found
