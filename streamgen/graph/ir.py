"""Graphs of kernels: frozen values that passes take and return.

A node is a kernel's Params (what is built) with its bounds in every phase (what it does there). An
edge joins an output port to an input port; the order in which its tiles stream is not stored, it
follows from the producer's params and bounds. A tensor is an array in external memory, read or written
by a node that has a memory side (a load or a store).

A graph is concrete: its bounds are numbers. What changes from run to run (the number of tokens) gives
another graph of the same structure, same params, other bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from streamgen.contract import Bounds, KernelParams
from streamgen.errors import GraphError
from streamgen.itensor import ITensor

__all__ = ["Edge", "Graph", "Node", "Port", "Tensor"]


@dataclass(frozen=True, order=True)
class Port:
    """A port of a node: the attribute name of the component's stream."""

    node: str
    name: str

    def __str__(self) -> str:
        return f"{self.node}.{self.name}"


@dataclass(frozen=True)
class Node:
    """A kernel with its bounds in each phase; None where the node rests."""

    name: str
    params: KernelParams
    bounds: tuple[Bounds | None, ...]

    def inputs(self, phase: int) -> Mapping[str, ITensor]:
        """ITensor of each input port in a phase; empty where the node rests."""
        return self._streams[phase][0]

    def outputs(self, phase: int) -> Mapping[str, ITensor]:
        """ITensor of each output port in a phase; empty where the node rests."""
        return self._streams[phase][1]

    @cached_property
    def _streams(self) -> tuple[tuple[Mapping[str, ITensor], Mapping[str, ITensor]], ...]:
        return tuple(
            ({}, {}) if bounds is None else (self.params.inputs(bounds), self.params.outputs(bounds))
            for bounds in self.bounds
        )

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
    """A stream from an output port to an input port, through a FIFO of `depth` tokens (None: not sized).

    back: the edge closes a cycle. Its depth is given, no pass computes it. What it carries may be read in a
    later phase: the tokens of the n-th phase in which the source sends go to the n-th in which the target
    reads.
    """

    source: Port
    target: Port
    depth: int | None = None
    back: bool = False

    @property
    def name(self) -> str:
        return f"{self.source} -> {self.target}"


@dataclass(frozen=True, eq=False)
class Tensor:
    """An array in external memory that one load or store node serves.

    shape: the logical shape, <= the padded shape of the node's ITensor. role: "input", "output" or
    "constant"; constants carry `data`, of the padded shape. channel: the memory channel.
    """

    name: str
    role: str
    node: str
    shape: tuple[int, ...]
    channel: int
    data: np.ndarray | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Graph:
    """A named graph; nodes in topological order."""

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    tensors: tuple[Tensor, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @property
    def phases(self) -> int:
        """Number of phases."""
        return len(self.nodes[0].bounds)

    def node(self, name: str) -> Node:
        """The node of that name; GraphError when there is none."""
        try:
            return self.by_name[name]
        except KeyError:
            raise GraphError(f"graph {self.name!r} has no node {name!r}") from None

    def itensor(self, edge: Edge, phase: int) -> ITensor | None:
        """In which order tiles stream on an edge in a phase; None where the edge rests."""
        return self.node(edge.source.node).outputs(phase).get(edge.source.name)

    def read_in(self, edge: Edge, phase: int) -> int | None:
        """The phase in which the target reads what the source sends in this one; None: never, or nothing."""
        sends, reads = (
            [p for p in range(self.phases) if port in streams(p)]
            for port, streams in (
                (edge.source.name, self.node(edge.source.node).outputs),
                (edge.target.name, self.node(edge.target.node).inputs),
            )
        )
        return dict(zip(sends, reads, strict=False)).get(phase) if edge.back else phase

    def tensor_itensor(self, tensor: Tensor) -> ITensor:
        """In which order a tensor lies in memory: as its node streams it in the first phase that uses it."""
        node = self.node(tensor.node)
        for phase in range(self.phases):
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

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"graph {self.name} ({self.phases} phase{'s' if self.phases > 1 else ''})"
        for tensor in self.tensors:
            shape = "x".join(map(str, tensor.shape))
            yield f"  {tensor.role} {tensor.name}[{shape}] on channel {tensor.channel} by {tensor.node}"
        for node in self.nodes:
            operands = ", ".join(f"{e.target.name}={e.source}" for e in self.inputs_of(node.name))
            yield f"  {node.name} = {type(node.params).__name__.removesuffix('Params')}({operands})"
            for edge in self.outputs_of(node.name):
                depth = "" if edge.depth is None else f", depth {edge.depth}"
                for phase in range(self.phases):
                    it = self.itensor(edge, phase)
                    if it is not None:
                        yield f"    .{edge.source.name} -> {edge.target}: {it}{depth}"
