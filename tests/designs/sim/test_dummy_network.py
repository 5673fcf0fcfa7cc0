"""sim.network_simulator: results equal golden, FIFOs can be limited, late and stuck runs are told apart."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from sim.dummy import DummyParams, Piece
from sim.network_simulator import LateError, NetworkSimulator
from sim.random_graphs import boundary_tokens, golden_tokens, random_graph, streams, with_depths
from streamgen.base.errors import GraphError
from streamgen.compiler.lower.passes import run_nodes
from streamgen.fifo.events import SelfTimedRun
from streamgen.model.graph import Edge, Graph, Node, Port
from streamgen.testing.bench import BenchError, Stalls, StuckError
from streamgen.testing.kernel import descriptor_word

DEPTH = 12


def _node(name: str, **ports: Piece) -> Node:
    """A dummy whose ports have 16 bits, and a curve of one piece each."""
    counts = [sum(port.startswith(letter) for port in ports) for letter in "io"]
    params = DummyParams(inputs_bits=(16,) * counts[0], outputs_bits=(16,) * counts[1], pieces=1)
    return Node(name, params, ({port: (piece,) for port, piece in ports.items()},))


def _edge(source: str, target: str, depth: int | None = DEPTH) -> Edge:
    return Edge(*(Port(*end.split(".")) for end in (source, target)), depth)


# a sends 8 tokens to b; b collects all of them before it sends any. d takes from a and b by turns.
DIAMOND = Graph(
    "diamond",
    (
        _node("a", i_0=Piece(), o_0=Piece(wait=2, length=8), o_1=Piece(wait=2, length=8)),
        _node("b", i_0=Piece(length=8), o_0=Piece(wait=9, length=8)),
        _node("d", i_0=Piece(length=8), i_1=Piece(length=8), o_0=Piece(wait=3, length=8)),
    ),
    (_edge("a.o_0", "b.i_0"), _edge("a.o_1", "d.i_0"), _edge("b.o_0", "d.i_1")),
    (),
)
NAMES = [edge.name for edge in DIAMOND.edges]


class Rig:
    """A graph in simulation, with random tokens."""

    def __init__(self, graph: Graph, adjustable: bool = True) -> None:
        self.graph = graph
        self.simulator = NetworkSimulator(graph, adjustable=adjustable)
        self.given = boundary_tokens(graph, 0, Random(1))
        self.golden = golden_tokens(graph, 0, self.given)
        joined = {port for edge in graph.edges for port in (edge.source, edge.target)}
        self.inputs = {f"{port.node}_{port.name}": tokens for port, tokens in self.given.items()}
        for node in graph.nodes:
            (bounds,) = node.bounds
            assert bounds is not None
            self.inputs[f"{node.name}_i_descriptor"] = [descriptor_word(node.params, bounds)]
        self.outputs = {
            f"{port.node}_{port.name}": tokens
            for port, tokens in self.golden.items()
            if port not in joined and port not in self.given
        }
        self.tokens = {edge.name: len(self.golden[edge.source]) for edge in graph.edges}

    def run(self, **options):
        counts = {name: len(tokens) for name, tokens in self.outputs.items()}
        return self.simulator.run(self.inputs, counts, tokens=self.tokens, **options)

    def model(self, depths) -> SelfTimedRun:
        nodes = run_nodes(self.graph)
        run = SelfTimedRun(nodes, streams(self.graph, 0), [1] * len(streams(self.graph, 0)))
        for k, depth in enumerate(depths):
            run.limit(k, depth)
        assert run.settle()
        return run


@pytest.fixture(scope="module")
def diamond() -> Rig:
    return Rig(DIAMOND)


def test_result_equals_golden_under_stalls(diamond, stalls):
    assert diamond.run(stalls=stalls).tokens == diamond.outputs


@pytest.mark.parametrize("depths", [(12, 12, 12), (1, 9, 1), (2, 10, 3), (3, 8, 2)])
def test_every_token_moves_when_the_equations_of_sizing_say(diamond, depths):
    """Dummies and queues, limited ones too, do in every cycle what `streamgen.fifo.events` computes."""
    result = diamond.run(limits=dict(zip(NAMES, depths, strict=True)))
    for name, sent, taken in zip(
        NAMES, *diamond.model(depths).split(diamond.model(depths).times), strict=False
    ):
        assert result.links[name].sent.tolist() == sent.tolist()
        assert result.links[name].taken.tolist() == taken.tolist()
    assert all(result.links[name].peak <= depth for name, depth in zip(NAMES, depths, strict=True))


def test_limits_are_as_queues_of_that_depth(diamond):
    built = Rig(with_depths(DIAMOND, (1, 9, 2)), adjustable=False).run()
    limited = diamond.run(limits=dict(zip(NAMES, (1, 9, 2), strict=True)))
    assert built.cycles == limited.cycles
    for name in NAMES:
        assert (built.links[name].sent == limited.links[name].sent).all()
        assert (built.links[name].taken == limited.links[name].taken).all()
        assert built.links[name].peak == limited.links[name].peak


def test_a_deadlock_names_the_cycle_of_waits(diamond):
    """b wants all 8 tokens of a, which stands before the FIFO to d; d wants the first token of b."""
    with pytest.raises(StuckError) as error:
        diamond.run(limits={NAMES[1]: 3}, watchdog=50)
    *_, head, first, second, third = str(error.value).splitlines()
    assert head == "a cycle of waits:"
    assert {first, second, third} == {
        "  a waits for d: a.o_1 -> d.i_0 is full, holds 3",
        "  d waits for b: b.o_0 -> d.i_1 is empty",
        "  b waits for a: a.o_0 -> b.i_0 is empty",
    }
    assert "a.o_1 -> d.i_0  in 1 0  out 1 0  3 inside, 8 of 8 left" in str(error.value)


def test_a_deadline(diamond):
    finish = diamond.model((12, 12, 12)).finish
    assert diamond.run(deadline=finish).tokens == diamond.outputs
    with pytest.raises(LateError, match=rf"^tokens are left in cycle {finish - 2}$") as error:
        diamond.run(deadline=finish - 2)
    assert error.value.result.tokens == {"d_o_0": diamond.outputs["d_o_0"][:-1]}
    assert len(error.value.result.links[NAMES[0]].taken) == 8


def test_a_random_graph_equals_golden(seed):
    """Tokens of many widths."""
    graph = random_graph(Random(7 + seed), 5, most_tokens=12)
    rig = Rig(with_depths(graph, [64] * len(graph.edges)))
    assert rig.run().tokens == rig.outputs
    assert rig.run(stalls=Stalls(seed=3, sources=0.4, sinks=0.4)).tokens == rig.outputs


def test_errors(diamond):
    with pytest.raises(GraphError, match=r"^edge a.o_0 -> b.i_0 of graph 'diamond' has no depth$"):
        NetworkSimulator(replace(DIAMOND, edges=(replace(DIAMOND.edges[0], depth=None),)))
    with pytest.raises(ValueError) as error:
        diamond.run(limits={NAMES[0]: 13})
    assert str(error.value) == "limit of edge 'a.o_0 -> b.i_0' must be 1 to its depth 12, not 13"
    with pytest.raises(ValueError) as error:
        diamond.simulator.run({}, {}, tokens={})
    assert str(error.value) == f"tokens are given for [], the edges are {sorted(NAMES)}"
    diamond_tokens = {**diamond.tokens, NAMES[0]: 7}
    counts = {name: len(tokens) for name, tokens in diamond.outputs.items()}
    with pytest.raises(BenchError) as bench_error:
        diamond.simulator.run(diamond.inputs, counts, tokens=diamond_tokens)
    assert str(bench_error.value) == "edge 'a.o_0 -> b.i_0': a token too many, 7 expected"


def test_limits_need_an_adjustable_simulator():
    rig = Rig(Graph("one", (_node("a", i_0=Piece(), o_0=Piece()),), (), ()), adjustable=False)
    assert rig.run().tokens == rig.outputs
    with pytest.raises(ValueError, match=r"^limits need a simulator that is adjustable$"):
        rig.run(limits={"a": 1})


def test_random_graphs_hold_what_they_promise():
    """Diamonds, several inputs, forks and converters occur; phases differ; the same seed, the same graph."""
    graphs = [random_graph(Random(seed), 12, phases=2) for seed in range(20)]
    kinds = {type(node.params).__name__ for graph in graphs for node in graph.nodes}
    assert kinds == {"DummyParams", "ForkParams", "PingPongParams", "InPlaceParams"}
    for seed, graph in enumerate(graphs):
        assert str(random_graph(Random(seed), 12, phases=2)) == str(graph)
        for phase in range(2):
            for stream, edge in zip(streams(graph, phase), graph.edges, strict=False):
                assert len(stream.produced) == len(stream.consumed)
                ends = (str(stream.source).split(".")[0], str(stream.target).split(".")[0])
                assert ends == (edge.source.node, edge.target.node)
        one, two = streams(graph, 0), streams(graph, 1)
        assert any(not np.array_equal(a.produced, b.produced) for a, b in zip(one, two, strict=True))
    most = max(
        sum(edge.target.node == node.name for edge in graph.edges) for graph in graphs for node in graph.nodes
    )
    assert most == 3
