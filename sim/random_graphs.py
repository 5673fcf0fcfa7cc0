"""Random graphs of dummies, forks and converters, to try FIFO sizing and whatever else works on graphs.

    graph = random_graph(Random(1), nodes=20, phases=2)

Nodes read one to three of the six nodes before them, so there are chains, diamonds and paths of unequal
length. A node is a `Dummy` with random bursty curves, a real fork, or a real converter of any kind between
dummies. Ports without an edge are the boundary. Every phase has other curves and token counts; each is meant
to run alone. Edges have no depths yet.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import numpy as np

from sim.dummy import DummyParams, Piece
from streamgen.compiler.lower.passes import run_streams
from streamgen.contract import Bounds
from streamgen.converters import InPlaceParams, LayoutParams, PingPongParams
from streamgen.fifo.clocks import sides_of
from streamgen.fifo.curves import NodeStream
from streamgen.itensor import ITensor
from streamgen.kernels.moves.fork import ForkParams
from streamgen.model.graph import Edge, Graph, Node, Port
from streamgen.numbers import formats

__all__ = ["boundary", "boundary_tokens", "golden_tokens", "random_graph", "streams", "with_depths"]

_PIECES = 3


def random_graph(
    random: Random,
    nodes: int,
    phases: int = 1,
    most_tokens: int = 64,
    widths: Sequence[int] = (1, 8, 13, 32, 48, 64),
) -> Graph:
    """A graph of so many nodes, joined in one piece or several. widths: of tokens between dummies.

    The fewer widths, the fewer kinds of nodes and FIFOs there are to convert and to compile.
    """
    ends = _structure(random, nodes)
    into = [[k for k, (_, v) in enumerate(ends) if v == n] for n in range(nodes)]
    out_of = [[k for k, (u, _) in enumerate(ends) if u == n] for n in range(nodes)]
    kinds = _kinds(random, ends, into, out_of)
    bits = [random.choice(widths) for _ in ends]
    tokens = [[random.randint(4, most_tokens) for _ in ends] for _ in range(phases)]
    pairs: dict[int, tuple[ITensor, ITensor]] = {}
    for n, kind in enumerate(kinds):
        if kind == "fork":
            for k in out_of[n]:
                bits[k] = bits[into[n][0]]
                for counts in tokens:
                    counts[k] = counts[into[n][0]]
        elif kind == "converter":
            pairs[n] = pair = _random_pair(random, widths)
            for k, itensor in zip((into[n][0], out_of[n][0]), pair, strict=True):
                bits[k] = itensor.token_bits
                for counts in tokens:
                    counts[k] = itensor.token_count
    names = [f"{kind}{n}" for n, kind in enumerate(kinds)]
    made = []
    for n, kind in enumerate(kinds):
        if kind == "fork":
            made.append(
                _fork(
                    names[n], len(out_of[n]), bits[into[n][0]], most_tokens, [c[into[n][0]] for c in tokens]
                )
            )
        elif kind == "converter":
            source, target = pairs[n]
            params = _converter(random, source, target)
            made.append(Node(names[n], params, ({"source": source, "target": target},) * phases))
        else:
            made.append(_dummy(random, names[n], into[n], out_of[n], bits, tokens))
    edges = [
        Edge(
            Port(names[u], _port(kinds[u], "o", out_of[u].index(k))),
            Port(names[v], _port(kinds[v], "i", into[v].index(k))),
        )
        for k, (u, v) in enumerate(ends)
    ]
    return Graph("random", tuple(made), tuple(edges), ())


def with_depths(graph: Graph, depths: Sequence[int]) -> Graph:
    """The graph with depths, edge by edge."""
    edges = (replace(edge, depth=depth) for edge, depth in zip(graph.edges, depths, strict=True))
    return replace(graph, edges=tuple(edges))


def streams(graph: Graph, phase: int) -> list[NodeStream]:
    """What passes every edge, in order, then what passes the ports of `boundary`, then parts of nodes."""
    found = [stream for stream in run_streams(graph, phase) if stream is not None]
    outside = []
    for port in boundary(graph):
        node = graph.node(port.node)
        cycles = node.params.curves(_bounds(node, phase))[port.name].cycles()
        part, clock = sides_of(node.name, node.params, _bounds(node, phase)).at(port.name)
        ends = (part, None) if port.name in node.output_ports else (None, part)
        outside.append(NodeStream(*ends, 1, cycles, cycles, sends=clock, takes=clock))
    edges = len(graph.edges)
    return found[:edges] + outside + found[edges:]


def boundary(graph: Graph) -> list[Port]:
    """The ports without an edge."""
    joined = {port for edge in graph.edges for port in (edge.source, edge.target)}
    ports = (
        Port(node.name, name) for node in graph.nodes for name in (*node.input_ports, *node.output_ports)
    )
    return [port for port in ports if port not in joined]


def boundary_tokens(graph: Graph, phase: int, random: Random) -> dict[Port, list[int]]:
    """Random tokens for every input port at the boundary."""
    tokens = {}
    for port in boundary(graph):
        if (itensor := graph.node(port.node).inputs(phase).get(port.name)) is not None:
            tokens[port] = [random.getrandbits(itensor.token_bits) for _ in range(itensor.token_count)]
    return tokens


def golden_tokens(graph: Graph, phase: int, inputs: Mapping[Port, Sequence[int]]) -> dict[Port, list[int]]:
    """The tokens of every output port of every node, from those of the ports at the boundary."""
    source = {edge.target: edge.source for edge in graph.edges}
    tokens: dict[Port, list[int]] = {port: list(given) for port, given in inputs.items()}
    for node in graph.nodes:
        operands = {}
        for name, itensor in node.inputs(phase).items():
            port = Port(node.name, name)
            given = formats.decode_ints(itensor.dtype, tokens[source.get(port, port)], itensor.element_shape)
            operands[name] = itensor.from_tokens(given)
        results = node.params.golden(_bounds(node, phase), operands)
        for name, itensor in node.outputs(phase).items():
            encoded = formats.encode_ints(itensor.dtype, itensor.to_tokens(results[name]))
            tokens[Port(node.name, name)] = encoded
    return tokens


def _structure(random: Random, nodes: int) -> list[tuple[int, int]]:
    ends = []
    for v in range(1, nodes):
        near = range(max(0, v - 6), v)
        if random.random() < 0.05 and v < nodes - 1:
            continue  # another source
        ends += [(u, v) for u in sorted(random.sample(near, min(len(near), random.choice((1, 1, 2, 2, 3)))))]
    return ends


def _kinds(
    random: Random,
    ends: Sequence[tuple[int, int]],
    into: Sequence[Sequence[int]],
    out_of: Sequence[Sequence[int]],
) -> list[str]:
    kinds = ["dummy"] * len(into)
    for n in range(len(into)):
        near = {ends[k][0] for k in into[n]} | {ends[k][1] for k in out_of[n]}
        if any(kinds[m] != "dummy" for m in near) or len(into[n]) != 1 or random.random() < 0.5:
            continue
        if len(out_of[n]) > 1:
            kinds[n] = "fork"
        elif len(out_of[n]) == 1:
            kinds[n] = "converter"
    return kinds


def _port(kind: str, letter: str, number: int) -> str:
    single = kind == "converter" or (kind == "fork" and letter == "i")
    return letter if single else f"{letter}_{number}"


def _fork(name: str, ways: int, width: int, most_tokens: int, counts: Sequence[int]) -> Node:
    params = ForkParams(token_bits=width, ways=ways, max_tokens=most_tokens)
    itensors = (ITensor((1,), f"u{width}", (count,), (1,), ((0,),)) for count in counts)
    return Node(name, params, tuple({"itensor": itensor} for itensor in itensors))


def _dummy(
    random: Random,
    name: str,
    into: Sequence[int],
    out_of: Sequence[int],
    bits: Sequence[int],
    tokens: Sequence[Sequence[int]],
) -> Node:
    params = DummyParams(
        inputs_bits=tuple(bits[k] for k in into) or (32,),
        outputs_bits=tuple(bits[k] for k in out_of) or (32,),
        pieces=_PIECES,
    )
    bounds: list[Bounds] = []
    for counts in tokens:
        curves = {}
        latency = random.choice((1, 5, 20, 60))
        for letter, edges in (("i", into), ("o", out_of)):
            for number, count in enumerate([counts[k] for k in edges] or [random.randint(1, 16)]):
                wait = random.randint(1, latency) + (latency if letter == "o" else 0)
                curves[f"{letter}_{number}"] = _curve(random, count, wait)
        bounds.append(curves)
    return Node(name, params, tuple(bounds))


def _curve(random: Random, tokens: int, wait: int) -> tuple[Piece, ...]:
    cuts = sorted(random.randint(1, tokens) for _ in range(random.randrange(_PIECES)))
    pieces = []
    for count in np.diff([0, *cuts, tokens]).tolist():
        if count:
            length = random.choice([d for d in range(1, count + 1) if count % d == 0])
            period = random.choice((1, 1, 1, 2, 3, 7))
            pitch = period + random.choice((0, 1, random.randrange(40)))
            pieces.append(Piece(wait=wait, bursts=count // length, pitch=pitch, length=length, period=period))
            wait = random.choice((1, 2, random.randint(1, 60)))
    return tuple(pieces)


def _random_pair(random: Random, widths: Sequence[int]) -> tuple[ITensor, ITensor]:
    """Rows to columns, or tiles to rows, of a small matrix, with a loop over several of them in front."""
    outer, (rows, columns) = random.choice((1, 3)), random.choice(((2, 3), (4, 4)))
    width = random.choice(widths)
    source = ITensor((1, 1), f"u{width}", (outer, rows, columns), (rows, 1, 1), ((0, 1), (2,)))
    target = ITensor((1, 1), source.dtype, (outer, columns, rows), (rows, 1, 1), ((0, 2), (1,)))
    if random.random() < 0.3:  # each column twice
        target = ITensor((1, 1), source.dtype, (outer, columns, 2, rows), (rows, 1, 1, 1), ((0, 3), (1,)))
    return (
        (source, target) if width * rows > 64 or random.random() < 0.5 else (source, _columns(target, rows))
    )


def _converter(random: Random, source: ITensor, target: ITensor) -> LayoutParams:
    """Of any kind; in place with room for one window and a half."""
    pingpong = PingPongParams(source=source, target=target)
    scheme = random.choice((None, "ring", "pool"))
    if scheme is None:
        return pingpong
    return InPlaceParams(source=source, target=target, scheme=scheme, places=pingpong.banking.words * 3 // 2)


def _columns(target: ITensor, rows: int) -> ITensor:
    """The same order with whole columns as tokens."""
    return ITensor((rows, 1), target.dtype, target.tripcounts[:-1], target.steps[:-1], ((0,), (1,)))


def _bounds(node: Node, phase: int) -> Bounds:
    bounds = node.bounds[phase]
    assert bounds is not None
    return bounds
