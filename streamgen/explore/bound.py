"""The least cycles in which memory and multipliers can do the work of a graph.

A stage is all matmul columns with equally many columns before them on their longest path. They can work
side by side; the next stage needs their results. With the rate of one channel in bytes a cycle,

    cycles of a stage >= max(bytes of its constants / (rate * channels its columns own),
                             products / multipliers)

and the stages of a graph follow one another. Bytes are those that the loads read, tokens those that the
user gave; padded rows and features count.

In a graph of several phases each phase is a stage as often as its section is walked. Its bytes are all that
its nodes read and write: constants, rows of tables, keys and values, inputs and outputs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from streamgen.formats import MX_GROUP
from streamgen.graph import Graph, Node
from streamgen.kernels.matmul import ColumnParams
from streamgen.memory import KvLoadParams, KvStoreParams, RowsLoadParams
from streamgen.packing import BEAT_BYTES, MemoryLayout

__all__ = ["Stage", "least_cycles", "memory_beats", "pass_cycles", "phases", "stages"]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """columns: names of the nodes. products: weights times tokens. bytes: of constants, over `channels`."""

    columns: tuple[str, ...]
    products: int
    multipliers: int
    bytes: int
    channels: tuple[int, ...]

    def memory_cycles(self, rate: Fraction) -> float:
        """Cycles that the channels need at `rate` beats a cycle each."""
        if not self.channels:
            return 0.0
        return float(self.bytes / (rate * BEAT_BYTES * len(self.channels)))

    @property
    def compute_cycles(self) -> float:
        """Cycles that the multipliers need."""
        return self.products / self.multipliers

    def cycles(self, rate: Fraction) -> float:
        """The larger of both."""
        return max(self.memory_cycles(rate), self.compute_cycles)


def least_cycles(found: Sequence[Stage], rate: Fraction) -> float:
    """Cycles of all stages, one after the other. rate: beats a cycle of one channel."""
    return sum(stage.cycles(rate) for stage in found)


def stages(graph: Graph, tokens: int) -> list[Stage]:
    """The stages of a graph of one phase in a run of `tokens` tokens, in order."""
    level: dict[str, int] = {}
    members: dict[int, list[str]] = {}
    for node in graph.nodes:
        level[node.name] = max((level[e.source.node] for e in graph.inputs_of(node.name)), default=0)
        if isinstance(node.params, ColumnParams):
            members.setdefault(level[node.name], []).append(node.name)
            level[node.name] += 1
    return [_stage(graph, names, tokens) for _, names in sorted(members.items())]


def phases(graph: Graph) -> list[tuple[Stage, int]]:
    """What each phase of a graph has to do, and how often it is walked."""
    return [(_phase(graph, phase), walks) for found, walks in graph.walked() for phase in found]


def pass_cycles(graph: Graph, rate: Fraction) -> float:
    """Least cycles of a run of a graph of several phases. rate: beats a cycle of one channel."""
    return sum(walks * stage.cycles(rate) for stage, walks in phases(graph))


def _phase(graph: Graph, phase: int) -> Stage:
    active = {node.name: bounds for node in graph.nodes if (bounds := node.bounds[phase]) is not None}
    products = multipliers = 0
    for name, bounds in active.items():
        params = graph.node(name).params
        if isinstance(params, ColumnParams):
            products += bounds["t"] * bounds["n"] * bounds["k"]
            multipliers += params.tile_results * MX_GROUP
    traffic: dict[int, int] = {}
    for tensor in graph.tensors:
        if tensor.node in active and tensor.phase in (None, phase):
            beats = memory_beats(graph.node(tensor.node), tensor.port, phase)
            traffic[tensor.channel] = traffic.get(tensor.channel, 0) + beats * BEAT_BYTES
    return Stage(
        columns=tuple(name for name in active if isinstance(graph.node(name).params, ColumnParams)),
        products=products,
        multipliers=max(1, multipliers),
        bytes=sum(traffic.values()),
        channels=tuple(sorted(traffic)),
    )


def memory_beats(node: Node, port: str, phase: int) -> int:
    """Beats that a node moves through a memory port in each walk of a phase in which it does not rest."""
    params, bounds = node.params, node.bounds[phase]
    assert bounds is not None
    if isinstance(params, (KvLoadParams, KvStoreParams)):
        layout, last = params.layout, bounds["rows"]
        first = 0
        if isinstance(params, KvStoreParams):
            first, last = bounds["position"], bounds["position"] + last
        channel = int(port.removeprefix("memory_"))
        rows = layout.rows(last)[channel] - layout.rows(first)[channel]
        return layout.heads * rows * layout.row_beats
    if isinstance(params, RowsLoadParams):
        return int(bounds["ids"]) * params.row_beats
    (itensor,) = (node.inputs(phase) or node.outputs(phase)).values()
    return MemoryLayout.of(itensor).beats(itensor.token_count)


def _stage(graph: Graph, names: Sequence[str], tokens: int) -> Stage:
    constants = {tensor.node: tensor for tensor in graph.tensors if tensor.role == "constant"}
    products = multipliers = total = 0
    channels = set()
    for name in names:
        node = graph.node(name)
        (bounds,) = node.bounds
        assert isinstance(node.params, ColumnParams) and bounds is not None
        products += tokens * bounds["n"] * bounds["k"]
        multipliers += node.params.tile_results * MX_GROUP
        for load in _feeders(graph, name):
            if load in constants:
                itensor = graph.tensor_itensor(constants[load])
                total += MemoryLayout.of(itensor).beats(itensor.token_count) * BEAT_BYTES
                channels.add(constants[load].channel)
    return Stage(
        columns=tuple(names),
        products=products,
        multipliers=multipliers,
        bytes=total,
        channels=tuple(sorted(channels)),
    )


def _feeders(graph: Graph, name: str) -> Iterator[str]:
    """Nodes that feed a node through chains of nodes with one input each (converters)."""
    for edge in graph.inputs_of(name):
        source = edge.source.node
        while len(before := list(graph.inputs_of(source))) == 1:
            source = before[0].source.node
        yield source
