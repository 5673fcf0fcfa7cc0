"""The least cycles in which memory and multipliers can do the work of a graph.

A stage is all matmul columns with equally many columns before them on their longest path. They can work
side by side; the next stage needs their results. With the rate of one channel in bytes a cycle,

    cycles of a stage >= max(bytes of its constants / (rate * channels its columns own),
                             products / multipliers)

and the stages of a graph follow one another. Bytes are those that the loads read, tokens those that the
user gave; padded rows and features count.

In a graph of several phases each phase is a stage as often as its section is walked. Its bytes are all that
its nodes read and write: constants, rows of tables, keys and values, inputs and outputs. It lasts no less
than the attention in it, whose multipliers are its own.

So it is what a pass takes whose loads wait for their phase. Loads that run ahead read weights of the next
phase while attention has the multipliers, as far as prefetch FIFOs reach: a step with long attention may
take less than this sum.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from streamgen.artifact.packing import BEAT_BYTES
from streamgen.contract import multipliers, products, traffic, work
from streamgen.model.graph import Graph


@dataclass(frozen=True, kw_only=True)
class Stage:
    """columns: names of the nodes. products: weights times tokens. bytes: of constants, over `channels`.
    work: cycles of the busiest node whose multipliers take no weights."""

    columns: tuple[str, ...]
    products: int
    multipliers: int
    bytes: int
    channels: tuple[int, ...]
    work: int = 0

    def memory_cycles(self, rate: Fraction) -> float:
        """Cycles that the channels need at `rate` beats a cycle each."""
        if not self.channels:
            return 0.0
        return float(self.bytes / (rate * BEAT_BYTES * len(self.channels)))

    @property
    def compute_cycles(self) -> float:
        """Cycles that the multipliers need."""
        return max(self.products / self.multipliers, self.work)

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
        if multipliers(node.params):
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
    moved: dict[int, int] = {}
    for tensor in graph.tensors:
        if tensor.node in active and tensor.phase in (None, phase):
            beats = traffic(graph.node(tensor.node).params, active[tensor.node])[tensor.port]
            moved[tensor.channel] = moved.get(tensor.channel, 0) + beats * BEAT_BYTES
    built = {name: count for name in active if (count := multipliers(graph.node(name).params))}
    return Stage(
        columns=tuple(built),
        products=sum(products(graph.node(name).params, bounds) for name, bounds in active.items()),
        multipliers=max(1, sum(built.values())),
        bytes=sum(moved.values()),
        channels=tuple(sorted(moved)),
        work=max((work(graph.node(name).params, bounds) for name, bounds in active.items()), default=0),
    )


def _stage(graph: Graph, names: Sequence[str], tokens: int) -> Stage:
    constants = {tensor.node: tensor.channel for tensor in graph.tensors if tensor.role == "constant"}
    done = total = 0
    channels = set()
    for name in names:
        node = graph.node(name)
        (bounds,) = node.bounds
        assert bounds is not None
        (result,) = node.outputs(0).values()
        done += products(node.params, bounds) // result.shape[0] * tokens
        for load in dict.fromkeys(_feeders(graph, name)):
            if load in constants:
                source = graph.node(load)
                (bounds,) = source.bounds
                assert bounds is not None
                total += sum(traffic(source.params, bounds).values()) * BEAT_BYTES
                channels.add(constants[load])
    return Stage(
        columns=tuple(names),
        products=done,
        multipliers=sum(multipliers(graph.node(name).params) for name in names),
        bytes=total,
        channels=tuple(sorted(channels)),
    )


def _feeders(graph: Graph, name: str) -> Iterator[str]:
    """Nodes that feed a node through chains of nodes with one input each."""
    for edge in graph.inputs_of(name):
        source = edge.source.node
        while len(before := list(graph.inputs_of(source))) == 1:
            source = before[0].source.node
        yield source
