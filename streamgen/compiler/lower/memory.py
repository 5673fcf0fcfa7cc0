"""The memory of intermediate tensors: on the chip, and if every tensor were stored whole.

An intermediate tensor is a value that a kernel computes in a phase and another kernel reads. Unfused, every
such tensor is stored whole, as if each kernel read and wrote memory. Phases in which the same kernels compute
tensors, such as the phases of layers, share this memory. Fused, FIFOs and layout converters take the place of
the tensors. Loads, stores, forks, switches, concatenations and converters only move tensors. Constants in
converters, such as rows of weights that meet several tokens, are not intermediate tensors.
"""

from collections.abc import Collection

from streamgen.contract import held_bits, moves, only_loads
from streamgen.model.graph import Graph, Port
from streamgen.numbers import formats


def converter_bits(graph: Graph) -> int:
    """Bits that the layout converters of a graph hold."""
    return sum(held_bits(node.params) for node in graph.nodes)


def constant_bits(graph: Graph) -> int:
    """Bits of constants that the layout converters of a graph hold."""
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
    """Bits of all intermediate tensors, stored whole. kept: names of outputs that another group reads."""
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
        bits = {
            (node.name, name): formats.token_bits(it.dtype, it.shape)
            for node, name in ports
            if (it := node.outputs(phase).get(name)) is not None
        }
        most = by_makers.setdefault(frozenset(bits), [0] * len(bits))
        most[:] = map(max, most, (bits[key] for key in sorted(bits)))
    return sum(map(sum, by_makers.values()))


def _readers(graph: Graph, port: Port) -> set[str]:
    """Names of the nodes that read a port, directly or through nodes that only move tensors."""
    readers: set[str] = set()
    for edge in graph.outputs_of(port.node):
        if edge.source == port:
            reader = graph.node(edge.target.node)
            if moves(reader.params) and reader.output_ports:
                for name in reader.output_ports:
                    readers |= _readers(graph, Port(reader.name, name))
            else:
                readers.add(reader.name)
    return readers
