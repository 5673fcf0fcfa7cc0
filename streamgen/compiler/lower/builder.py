"""Build a graph by hand, kernel by kernel.

    b = GraphBuilder("scaled")
    x = b.load("x", tiles, shape=(16, 64), channel=0)
    add = BinaryParams(operation="add", lanes=16, max_tokens=64)
    y = b.kernel("double", add, {"itensor": tiles}, i_a=x, i_b=x)
    b.store("y", y["o"], shape=(16, 64), channel=0)
    graph = b.build()

An output may have several readers, and a reader may need another order of tiles than the producer sends. The
passes `insert_forks` and `insert_converters` take care of both.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from streamgen.artifact.packing import MemoryLayout
from streamgen.base.errors import GraphError
from streamgen.contract import Bounds, KernelParams, missing_methods
from streamgen.itensor import ITensor
from streamgen.model.graph import Edge, Graph, Node, Port, Tensor
from streamgen.platform.boards import DEFAULT_BOARD
from streamgen.platform.dma import LoadParams, StoreParams

_CHANNEL = DEFAULT_BOARD.channel()


class GraphBuilder:
    """Collects nodes, edges and tensors.

    sections: see `Graph`. Bounds and itensors are given once for all phases, or as a tuple with one entry for
    each phase; None means that the node rests in this phase. Loads and stores promise the cycles of the
    default board until `assemble` replaces them by those of its board.
    """

    def __init__(
        self,
        name: str,
        *,
        sections: tuple[tuple[int, int], ...] = ((1, 1),),
    ) -> None:
        self._name = name
        self._sections = sections
        self._count = sum(phases for phases, _ in sections)
        self._nodes: list[Node] = []
        self._edges: list[Edge] = []
        self._tensors: list[Tensor] = []

    def load(
        self,
        name: str,
        itensor: ITensor | tuple[ITensor | None, ...],
        *,
        shape: tuple[int, ...],
        channel: int,
        data: np.ndarray | None = None,
        prefetch: int = 128,
        burst: int = 64,
        largest: ITensor | None = None,
    ) -> Port:
        """Add a tensor that is read from memory in the order of `itensor`, and return the output port of its
        load. The tensor is a constant if it has `data`, otherwise an input.

        shape: logical shape, at most `itensor.shape`. data: array of the shape of `itensor`. With one more
        dimension in front, it has an array for each walk. prefetch, burst: FIFO depth and longest burst, in
        beats. largest: itensor of the largest run, if it differs from `itensor`.
        """
        order = next(it for it in self._phases(itensor) if it is not None)
        port = self.bare_load(name, itensor, prefetch=prefetch, burst=burst, largest=largest)
        role = "input" if data is None else "constant"
        place = Port(port.node, "memory")
        self.tensor(name, role, place, shape=shape, channel=channel, itensor=order, data=data)
        return port

    def bare_load(
        self,
        name: str,
        itensor: ITensor | tuple[ITensor | None, ...],
        *,
        prefetch: int = 128,
        burst: int = 64,
        largest: ITensor | None = None,
    ) -> Port:
        """Add a load without its tensors, which `tensor` adds, and return its output port."""
        streams = self._phases(itensor)
        order = next(it for it in streams if it is not None)
        params = LoadParams(
            layout=MemoryLayout.of(order),
            prefetch=prefetch,
            burst=burst,
            max_tokens=(largest or order).token_count,
            **_CHANNEL._asdict(),
        )
        bounds = tuple(None if it is None else {"itensor": it, "offset": 0} for it in streams)
        return Port(self._add(f"load_{name}", params, bounds), "o")

    def store(
        self,
        name: str,
        source: Port,
        *,
        shape: tuple[int, ...],
        channel: int,
        itensor: ITensor | tuple[ITensor | None, ...] | None = None,
        largest: ITensor | None = None,
    ) -> None:
        """Write a stream to memory as an output tensor, in the order of `itensor`; by default in the order in
        which the source sends it."""
        streams = self._phases(itensor) if itensor else self.itensors(source)
        order = next(it for it in streams if it is not None)
        layout = MemoryLayout.of(order)
        most = (largest or order).token_count
        params = StoreParams(layout=layout, max_tokens=most, **_CHANNEL._asdict())
        bounds = tuple(None if it is None else {"itensor": it, "offset": 0} for it in streams)
        node = self._add(f"store_{name}", params, bounds)
        self.connect(source, Port(node, "i"))
        self.tensor(name, "output", Port(node, "memory"), shape=shape, channel=channel, itensor=order)

    def kernel(
        self,
        name: str,
        params: KernelParams,
        bounds: Bounds | tuple[Bounds | None, ...],
        **inputs: Port | None,
    ) -> Mapping[str, Port]:
        """Add a kernel and return its output ports by name. inputs: sources by port name; None for a port
        that `connect` joins later. Raises GraphError for missing or unknown inputs."""
        if missing := missing_methods(params):
            raise GraphError(f"kernel {name!r}: {type(params).__name__} has no {', '.join(missing)}")
        node = Node(name, params, self._phases(bounds))
        if {*node.input_ports} != {*inputs}:
            raise GraphError(f"kernel {name!r} has inputs {sorted(node.input_ports)}, got {sorted(inputs)}")
        self._add(name, params, node.bounds)
        for port, source in inputs.items():
            if source is not None:
                self.connect(source, Port(name, port))
        return {port: Port(name, port) for port in node.output_ports}

    def grow(self, node: str, **steps: int) -> None:
        """Let bounds of a node grow from each walk of a section to the next. steps: growth by name of the
        bound."""
        self._nodes = [replace(n, steps={**n.steps, **steps}) if n.name == node else n for n in self._nodes]

    def connect(self, source: Port, target: Port, back: int = 0) -> None:
        """Join two ports. back: depth of an edge that closes a cycle; 0 for any other edge."""
        self._edges.append(Edge(source, target, back or None, back > 0))

    def tensor(
        self,
        name: str,
        role: str,
        port: Port,
        *,
        shape: tuple[int, ...],
        channel: int,
        itensor: ITensor,
        data: np.ndarray | None = None,
        own: bool = False,
        buffer: str | None = None,
        phase: int | None = None,
    ) -> None:
        """Add an array behind a memory port. own: the array lies in memory in the order of `itensor`,
        whatever order the node streams. buffer: name of a state that several nodes share. phase: the only
        phase in which a constant is read. Raises GraphError if shapes do not fit."""
        padded = itensor.shape
        if len(shape) != len(padded) or any(s > p or s < 1 for s, p in zip(shape, padded, strict=True)):
            raise GraphError(f"tensor {name!r} has shape {shape}; its stream covers {padded}")
        if data is not None and data.shape[-len(padded) :] != padded:
            raise GraphError(f"constant {name!r} has data of shape {data.shape}; its stream covers {padded}")
        order = itensor if own else None
        tensor = Tensor(name, role, port.node, shape, channel, data, port.name, order, buffer, phase)
        self._tensors.append(tensor)

    def itensor(self, port: Port) -> ITensor:
        """The order in which an output port sends its tiles, in the first phase in which it sends any."""
        return next(it for it in self.itensors(port) if it is not None)

    def itensors(self, port: Port) -> tuple[ITensor | None, ...]:
        """The order in which an output port sends its tiles, by phase; None if it sends none. Raises
        GraphError for an unknown port."""
        for node in self._nodes:
            if node.name == port.node:
                if port.name not in node.output_ports:
                    known = ", ".join(node.output_ports)
                    raise GraphError(f"node {port.node!r} has no output {port.name!r}; it has {known}")
                return tuple(node.outputs(phase).get(port.name) for phase in range(self._count))
        raise GraphError(f"graph {self._name!r} has no node {port.node!r}")

    def build(self) -> Graph:
        """The graph. The passes that insert forks and converters verify it."""
        sections = self._sections if any(walks > 1 for _, walks in self._sections) else ()
        return Graph(self._name, tuple(self._nodes), tuple(self._edges), tuple(self._tensors), sections)

    def _phases(self, what: Any) -> tuple[Any, ...]:
        phases = self._count
        by_phase = what if isinstance(what, tuple) else (what,) * phases
        if len(by_phase) != phases or all(value is None for value in by_phase):
            raise GraphError(
                f"one entry for each of {phases} phases is needed, and not all may be None; got {by_phase}"
            )
        return by_phase

    def _add(self, name: str, params: KernelParams, bounds: tuple[Bounds | None, ...]) -> str:
        if not (name.isidentifier() and name.isascii()):
            raise GraphError(f"{name!r} is not a name; letters, digits and _ are allowed")
        if any(node.name == name for node in self._nodes):
            raise GraphError(f"graph {self._name!r} already has a node {name!r}")
        self._nodes.append(Node(name, params, bounds))
        return name
