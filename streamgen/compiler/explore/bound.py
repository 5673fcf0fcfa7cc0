"""A lower bound on the cycles in which memory and multipliers can do the work of a graph.

A stage is all matmul columns with the same number of columns before them on their longest path. The columns
of a stage can work side by side; the next stage needs their results. With the rate of one channel in bytes
per cycle,

    cycles of a stage >= max(bytes of its constants / (rate * channels of its columns),
                             products / multipliers)

The stages of a graph follow one another. Bytes are the bytes that loads read. Tokens are the tokens of the
user. Padded rows and features count.

In a graph of several phases, each walk of a phase is a stage. Its bytes are all bytes that its nodes read and
write: constants, rows of tables, keys and values, inputs and outputs. A phase lasts at least as long as its
attention, which has multipliers of its own.

The bound assumes that loads wait for their phase. In fact loads run ahead: while attention works, they read
weights of the next phase, as far as prefetch FIFOs reach. A step with long attention may therefore take fewer
cycles than this bound.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from streamgen.artifact.packing import BEAT_BYTES
from streamgen.contract import multipliers, products, traffic, work
from streamgen.model.graph import Graph


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The work of a stage. columns: names of the nodes. products: weights times tokens. bytes: bytes that
    move over `channels`. work: cycles of the busiest node whose multipliers take no weights."""

    columns: tuple[str, ...]
    products: int
    multipliers: int
    bytes: int
    channels: tuple[int, ...]
    work: int = 0

    def memory_cycles(self, rate: Fraction) -> float:
        """Cycles that the channels need. rate: beats per cycle of a channel."""
        if not self.channels:
            return 0.0
        return float(self.bytes / (rate * BEAT_BYTES * len(self.channels)))

    @property
    def compute_cycles(self) -> float:
        """Cycles that the multipliers need."""
        return max(self.products / self.multipliers, self.work)

    def cycles(self, rate: Fraction) -> float:
        """The larger of memory cycles and compute cycles."""
        return max(self.memory_cycles(rate), self.compute_cycles)


def least_cycles(stages: Sequence[Stage], rate: Fraction) -> float:
    """Cycles of all stages, one after the other. rate: beats per cycle of a channel."""
    return sum(stage.cycles(rate) for stage in stages)


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
    """The work of each phase of a graph, and the number of its walks."""
    return [(_phase(graph, phase), walks) for numbers, walks in graph.walked() for phase in numbers]


def pass_cycles(graph: Graph, rate: Fraction) -> float:
    """Fewest cycles of a run of a graph of several phases. rate: beats per cycle of a channel."""
    return sum(walks * stage.cycles(rate) for stage, walks in phases(graph))


def _phase(graph: Graph, phase: int) -> Stage:
    active = {node.name: bounds for node in graph.nodes if (bounds := node.bounds[phase]) is not None}
    tensors = [one for one in graph.tensors if one.node in active and one.phase in (None, phase)]
    beats = {name: traffic(graph.node(name).params, active[name]) for name in {one.node for one in tensors}}
    moved: dict[int, int] = {}
    for tensor in tensors:
        moved[tensor.channel] = moved.get(tensor.channel, 0) + beats[tensor.node][tensor.port] * BEAT_BYTES
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
