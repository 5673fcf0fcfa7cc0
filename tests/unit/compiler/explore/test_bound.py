"""What the bound counts of kernels that nobody but their user knows."""

from dataclasses import dataclass
from fractions import Fraction

import pytest

from streamgen.artifact.packing import BEAT_BYTES
from streamgen.compiler.explore.bound import pass_cycles, phases
from streamgen.contract import traffic, work
from streamgen.kernels.attention.scores import AttentionScoresParams
from streamgen.model.graph import Graph, Node, Tensor


@dataclass(frozen=True, kw_only=True)
class GatherParams:
    """Reads `rows` rows of 3 beats through one port, and writes a beat a row through the other."""

    memory_ports = {"memory_in": "read", "memory_out": "write"}
    forgets: bool = False

    def traffic(self, bounds):
        found = {"memory_in": 3 * bounds["rows"], "memory_out": bounds["rows"]}
        return {"memory_in": found["memory_in"]} if self.forgets else found


@dataclass(frozen=True, kw_only=True)
class DotParams:
    """40 multipliers."""

    multipliers = 40

    def products(self, bounds):
        return 1000 * bounds["rows"]


def test_a_kernel_of_the_user_is_counted():
    """Three phases, of which the last two are walked five times."""
    gather = Node("gather", GatherParams(), ({"rows": 4}, {"rows": 10}, None))
    dot = Node("dot", DotParams(), (None, {"rows": 2}, {"rows": 6}))
    tensors = (
        Tensor("a", "input", "gather", (1,), 0, port="memory_in"),
        Tensor("b", "output", "gather", (1,), 3, port="memory_out"),
    )
    graph = Graph("g", (gather, dot), (), tensors, ((1, 1), (2, 5)))
    first, second, third = (stage for stage, _ in phases(graph))
    assert (first.bytes, first.channels, first.columns) == (16 * BEAT_BYTES, (0, 3), ())
    assert (second.bytes, second.products, second.multipliers) == (40 * BEAT_BYTES, 2000, 40)
    assert (third.bytes, third.products, third.columns) == (0, 6000, ("dot",))
    rate = Fraction(1, 2)
    assert pass_cycles(graph, rate) == 16 + 5 * (max(40, 50) + 150)


def test_attention_bounds_a_phase() -> None:
    """Its rows times its positions over its lanes, where that is more than products of weights need."""
    scores = AttentionScoresParams(dims=8, lanes=4, group=2, max_length=40, max_rows=64)
    bounds = {"heads": 3, "t": 5, "length": 22, "scale": 1.0}
    assert work(scores, bounds) == 3 * 5 * 2 * 6
    nodes = (Node("scores", scores, (bounds,)), Node("dot", DotParams(), ({"rows": 2},)))
    ((stage, _),) = phases(Graph("g", nodes, (), ()))
    assert stage.columns == ("dot",) and stage.compute_cycles == 180


def test_traffic_names_every_port():
    with pytest.raises(ValueError) as caught:
        traffic(GatherParams(forgets=True), {"rows": 1})
    assert str(caught.value) == (
        "traffic of GatherParams names ['memory_in'], the memory ports are ['memory_in', 'memory_out']"
    )
