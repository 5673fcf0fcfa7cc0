"""Graphs of kernels: frozen values that passes take and return.

A node is a kernel's Params (the hardware) with its bounds in every phase (the work there). An edge joins an
output port to an input port. The order of its tiles is not stored: it follows from the producer's params and
bounds. A tensor is an array in external memory that a node reads or writes through a memory port
(`streamgen.contract.memory_ports`); a load or a store has one such port, other nodes may have several.

Phases follow one another in sections. A section may be walked several times, for example once for each layer
of a model. Nodes do the same in every walk, except for bounds that grow (`Node.steps`), such as the place of
the layer's weights and the number of the layer.

A graph is concrete: its bounds are numbers. A run with another number of tokens, or another first position,
has another graph with the same structure, the same params and other bounds.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.contract import Bounds, KernelParams, descriptor_values, multipliers, streams
from streamgen.itensor import ITensor
from streamgen.model.graph.late import LateArray


@dataclass(frozen=True, order=True)
class Port:
    """A port of a node: the attribute name of the component's stream."""

    node: str
    name: str

    def __str__(self) -> str:
        return f"{self.node}.{self.name}"


@dataclass(frozen=True)
class Node:
    """A kernel with its bounds in each phase; None in a phase in which the node rests.

    steps: for growing bounds, the increment from each walk of a section to the next.
    """

    name: str
    params: KernelParams
    bounds: tuple[Bounds | None, ...]
    steps: Mapping[str, int] = field(default_factory=dict)

    def at(self, phase: int, walk: int) -> Bounds | None:
        """The bounds of a phase in a walk of its section; None if the node rests."""
        bounds = self.bounds[phase]
        if bounds is None or not walk:
            return bounds
        return {**bounds, **{name: bounds[name] + walk * step for name, step in self.steps.items()}}

    def lasting(self, phase: int) -> Hashable:
        """The bounds of a phase that are the same in all walks; None if the node rests."""
        bounds = self.bounds[phase]
        if bounds is None:
            return None
        return tuple(sorted((name, value) for name, value in bounds.items() if name not in self.steps))

    def described(self, phase: int, walk: int) -> Mapping[str, int] | None:
        """The values of its descriptor in a phase and a walk; None if the node rests."""
        key = phase, walk
        if key not in self._descriptors:
            bounds = self.at(phase, walk)
            self._descriptors[key] = None if bounds is None else descriptor_values(self.params, bounds)
        return self._descriptors[key]

    @cached_property
    def _descriptors(self) -> dict[tuple[int, int], Mapping[str, int] | None]:
        return {}

    def inputs(self, phase: int) -> Mapping[str, ITensor]:
        """The ITensor of each input port in a phase; empty if the node rests."""
        return self._streams[phase][0]

    def outputs(self, phase: int) -> Mapping[str, ITensor]:
        """The ITensor of each output port in a phase; empty if the node rests."""
        return self._streams[phase][1]

    @cached_property
    def _streams(self) -> tuple[tuple[Mapping[str, ITensor], Mapping[str, ITensor]], ...]:
        return tuple(({}, {}) if bounds is None else streams(self.params, bounds) for bounds in self.bounds)

    @cached_property
    def input_ports(self) -> tuple[str, ...]:
        """Names of all input ports that any phase uses."""
        return tuple(dict.fromkeys(name for p in range(len(self.bounds)) for name in self.inputs(p)))

    @cached_property
    def output_ports(self) -> tuple[str, ...]:
        """Names of all output ports that any phase uses."""
        return tuple(dict.fromkeys(name for p in range(len(self.bounds)) for name in self.outputs(p)))


@dataclass(frozen=True)
class Edge:
    """A stream from an output port to an input port, through a FIFO of `depth` tokens (None: not sized yet).

    boundaries: the number of SLR boundaries between its ends; 0 until nodes are placed. back: the edge closes
    a cycle. Its depth is given, and no pass computes it. Its tokens may be read in a later walk: the tokens
    of the n-th walk in which the source sends go to the n-th walk in which the target reads.
    """

    source: Port
    target: Port
    depth: int | None = None
    back: bool = False
    boundaries: int = 0

    @property
    def name(self) -> str:
        return f"{self.source} -> {self.target}"


@dataclass(frozen=True, eq=False)
class Tensor:
    """An array in external memory at a memory port of a node.

    role: "input", "output", "constant", "state" (kept from one run to the next) or "spill" (kept from one
    phase to a later phase). shape: the logical shape, <= the padded shape of its ITensor. channel: the memory
    channel. data: of constants, in the padded shape, one array for each walk of a section. itensor: the order
    in memory, if it differs from the order in which the node streams the tensor; a state or a spill has one.
    Nodes that share a buffer have tensors with the same `buffer` (default: the name). phase: of a constant
    that a node reads only in that phase.
    """

    name: str
    role: str
    node: str
    shape: tuple[int, ...]
    channel: int
    data: np.ndarray | LateArray | None = field(default=None, repr=False)
    port: str = "memory"
    itensor: ITensor | None = None
    buffer: str | None = None
    phase: int | None = None

    @property
    def place(self) -> str:
        """The name of the buffer in memory, except for constants, which share one buffer per channel."""
        return self.buffer or self.name

    def walks(self, itensor: ITensor) -> int:
        """The number of arrays in the order of `itensor` in the data of a constant."""
        assert self.data is not None
        return len(self.data) if self.data.ndim > itensor.rank else 1

    def values(self, itensor: ITensor, walk: int) -> np.ndarray:
        """The array of a walk in the data of a constant."""
        assert self.data is not None
        array = self.data[walk] if self.data.ndim > itensor.rank else self.data
        assert isinstance(array, np.ndarray)
        return array


@dataclass(frozen=True)
class Graph:
    """A named graph; nodes in topological order.

    sections: (number of phases, number of walks) of each section; by default all phases are one section,
    walked once.
    """

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    tensors: tuple[Tensor, ...]
    sections: tuple[tuple[int, int], ...] = ()

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @property
    def phases(self) -> int:
        """Number of phases."""
        return len(self.nodes[0].bounds)

    @property
    def multipliers(self) -> int:
        """Multipliers of all kernels."""
        return sum(multipliers(node.params) for node in self.nodes)

    def walked(self) -> Iterator[tuple[range, int]]:
        """The phases of each section, and the number of its walks."""
        first = 0
        for phases, walks in self.sections or ((self.phases, 1),):
            yield range(first, first + phases), walks
            first += phases

    def steps(self) -> Iterator[tuple[int, int]]:
        """(phase, walk) in the order of a run."""
        for phases, walks in self.walked():
            yield from ((phase, walk) for walk in range(walks) for phase in phases)

    def node(self, name: str) -> Node:
        """The node with a name; GraphError if there is none."""
        try:
            return self.by_name[name]
        except KeyError:
            raise GraphError(f"graph {self.name!r} has no node {name!r}") from None

    def itensor(self, edge: Edge, phase: int) -> ITensor | None:
        """The order in which tiles stream on an edge in a phase; None if the edge rests."""
        return self.node(edge.source.node).outputs(phase).get(edge.source.name)

    def deliveries(self, edge: Edge) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Each (phase, walk) in which the source sends, with the (phase, walk) in which the target reads
        that. If the two ends of a back edge are used in different numbers of walks, walks without a
        counterpart are left out."""
        if edge not in self._delivered:
            self._delivered[edge] = self._deliveries(edge)
        return self._delivered[edge]

    @cached_property
    def _delivered(self) -> dict[Edge, list[tuple[tuple[int, int], tuple[int, int]]]]:
        return {}

    def _deliveries(self, edge: Edge) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        source, target = self.node(edge.source.node), self.node(edge.target.node)
        sends = [step for step in self.steps() if edge.source.name in source.outputs(step[0])]
        if not edge.back:
            return [(step, step) for step in sends]
        reads = [step for step in self.steps() if edge.target.name in target.inputs(step[0])]
        return list(zip(sends, reads, strict=False))

    def pairs(self, edge: Edge) -> list[tuple[int, int]]:
        """Each phase in which the source sends, with the phase in which the target reads that; each pair
        once."""
        if edge.back:
            return list(dict.fromkeys((sent, read) for (sent, _), (read, _) in self.deliveries(edge)))
        source = self.node(edge.source.node)
        return [(phase, phase) for phase in range(self.phases) if edge.source.name in source.outputs(phase)]

    def tensor_itensor(self, tensor: Tensor) -> ITensor:
        """The order of a tensor in memory: its own, or that in which its node streams it in the
        first phase."""
        if tensor.itensor is not None:
            return tensor.itensor
        node = self.node(tensor.node)
        for phase in range(self.phases) if tensor.phase is None else (tensor.phase,):
            for itensor in (node.inputs(phase) or node.outputs(phase)).values():
                return itensor
        raise GraphError(f"tensor {tensor.name!r} of graph {self.name!r} is never streamed")

    def inputs_of(self, name: str) -> Iterator[Edge]:
        """Edges that end at a node."""
        return iter(self._into.get(name, ()))

    def outputs_of(self, name: str) -> Iterator[Edge]:
        """Edges that start at a node."""
        return iter(self._out_of.get(name, ()))

    @cached_property
    def _into(self) -> dict[str, list[Edge]]:
        index: dict[str, list[Edge]] = {}
        for edge in self.edges:
            index.setdefault(edge.target.node, []).append(edge)
        return index

    @cached_property
    def _out_of(self) -> dict[str, list[Edge]]:
        index: dict[str, list[Edge]] = {}
        for edge in self.edges:
            index.setdefault(edge.source.node, []).append(edge)
        return index

    def with_depths(self, depths: Mapping[tuple[Port, Port], int]) -> Graph:
        """The same graph with FIFO depths, by (source, target)."""
        edges = tuple(replace(e, depth=depths.get((e.source, e.target), e.depth)) for e in self.edges)
        return replace(self, edges=edges)

    def with_boundaries(self, crossings: Mapping[str, int]) -> Graph:
        """The same graph with the number of boundaries that each edge crosses, by edge name; 0 for edges not
        named. A given depth of an edge that crosses a boundary is at least 2."""
        edges = []
        for edge in self.edges:
            if boundaries := crossings.get(edge.name, 0):
                edge = replace(edge, depth=edge.depth and max(2, edge.depth))
            edges.append(replace(edge, boundaries=boundaries))
        return replace(self, edges=tuple(edges))

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"graph {self.name} ({self.phases} phase{'s' if self.phases > 1 else ''})"
        for tensor in self.tensors:
            shape = "x".join(map(str, tensor.shape))
            yield f"  {tensor.role} {tensor.name}[{shape}] on channel {tensor.channel} by {tensor.node}"
        for node in self.nodes:
            operands = ", ".join(f"{e.target.name}={e.source}" for e in self.inputs_of(node.name))
            yield f"  {node.name} = {kind_of(node.params)}({operands})"
            for edge in self.outputs_of(node.name):
                depth = "" if edge.depth is None else f", depth {edge.depth}"
                for phase in range(self.phases):
                    itensor = self.itensor(edge, phase)
                    if itensor is not None:
                        yield f"    .{edge.source.name} -> {edge.target}: {itensor}{depth}"


def kind_of(params: KernelParams) -> str:
    """The kind of a kernel, with its function if it has a choice: `Unary[silu]`."""
    said = [getattr(params, name, None) for name in ("function", "operation")]
    functions = "".join(f"[{choice}]" for choice in said if isinstance(choice, str))
    return type(params).__name__.removesuffix("Params") + functions
