"""Build a graph by hand, kernel by kernel.

    b = GraphBuilder("scaled")
    x = b.load("x", tiles, shape=(16, 64), channel=0)
    add = BinaryParams(operation="add", lanes=16, max_tokens=64)
    y = b.kernel("double", add, {"itensor": tiles}, i_a=x, i_b=x)
    b.store("y", y["o"], shape=(16, 64), channel=0)
    graph = b.build()

An output may be read several times and readers may want another order of tiles than its producer
sends: the passes `insert_forks` and `insert_converters` mend both.
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

    sections: as of a Graph. What a node does is said once for all phases, or in a tuple with None where it
    rests. Loads and stores promise cycles of the default board until `assemble` puts them on its own.
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
        """A tensor read from memory in the order of `itensor`: an input, or a constant when it has `data`.

        shape: the logical shape, at most `itensor.shape`. data: of the shape of `itensor`; with one dimension
        more in front, an array for each walk. prefetch, burst: FIFO depth and longest burst in beats.
        largest: the itensor of the largest run, where it is not this one.
        """
        one = next(it for it in self._phases(itensor) if it is not None)
        port = self.bare_load(name, itensor, prefetch=prefetch, burst=burst, largest=largest)
        role = "input" if data is None else "constant"
        place = Port(port.node, "memory")
        self.tensor(name, role, place, shape=shape, channel=channel, itensor=one, data=data)
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
        """A load whose tensors `tensor` adds."""
        streams = self._phases(itensor)
        one = next(it for it in streams if it is not None)
        params = LoadParams(
            layout=MemoryLayout.of(one),
            prefetch=prefetch,
            burst=burst,
            max_tokens=(largest or one).token_count,
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
        """Write a stream to memory as an output tensor, in the order of `itensor` (default: as it comes)."""
        streams = self._phases(itensor) if itensor else self.itensors(source)
        one = next(it for it in streams if it is not None)
        layout = MemoryLayout.of(one)
        most = (largest or one).token_count
        params = StoreParams(layout=layout, max_tokens=most, **_CHANNEL._asdict())
        bounds = tuple(None if it is None else {"itensor": it, "offset": 0} for it in streams)
        node = self._add(f"store_{name}", params, bounds)
        self.connect(source, Port(node, "i"))
        self.tensor(name, "output", Port(node, "memory"), shape=shape, channel=channel, itensor=one)

    def kernel(
        self,
        name: str,
        params: KernelParams,
        bounds: Bounds | tuple[Bounds | None, ...],
        **inputs: Port | None,
    ) -> Mapping[str, Port]:
        """Add a kernel; inputs by port name, None for those that `connect` joins later. Returns its output
        ports by name."""
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
        """Let bounds of a node grow by so much from each walk of a section to the next."""
        self._nodes = [replace(n, steps={**n.steps, **steps}) if n.name == node else n for n in self._nodes]

    def connect(self, source: Port, target: Port, back: int = 0) -> None:
        """Join two ports. back: the depth of an edge that closes a cycle."""
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
        """An array behind a memory port. own: it lies in memory in the order of `itensor`, whatever the node
        streams. buffer: of a state that several nodes share. phase: in which alone a constant is read."""
        padded = itensor.shape
        if len(shape) != len(padded) or any(s > p or s < 1 for s, p in zip(shape, padded, strict=True)):
            raise GraphError(f"tensor {name!r} has shape {shape}; its stream covers {padded}")
        if data is not None and data.shape[-len(padded) :] != padded:
            raise GraphError(f"constant {name!r} has data of shape {data.shape}; its stream covers {padded}")
        order = itensor if own else None
        tensor = Tensor(name, role, port.node, shape, channel, data, port.name, order, buffer, phase)
        self._tensors.append(tensor)

    def itensor(self, port: Port) -> ITensor:
        """In which order an output port sends its tiles, in the first phase in which it does."""
        return next(it for it in self.itensors(port) if it is not None)

    def itensors(self, port: Port) -> tuple[ITensor | None, ...]:
        """In which order an output port sends its tiles, phase by phase."""
        for node in self._nodes:
            if node.name == port.node:
                if port.name not in node.output_ports:
                    known = ", ".join(node.output_ports)
                    raise GraphError(f"node {port.node!r} has no output {port.name!r}, only {known}")
                return tuple(node.outputs(phase).get(port.name) for phase in range(self._count))
        raise GraphError(f"graph {self._name!r} has no node {port.node!r}")

    def build(self) -> Graph:
        """The graph; the passes that insert forks and converters verify it."""
        sections = self._sections if any(walks > 1 for _, walks in self._sections) else ()
        return Graph(self._name, tuple(self._nodes), tuple(self._edges), tuple(self._tensors), sections)

    def _phases(self, what: Any) -> tuple[Any, ...]:
        phases = self._count
        found = what if isinstance(what, tuple) else (what,) * phases
        if len(found) != phases or all(one is None for one in found):
            raise GraphError(f"something for each of {phases} phases is needed, not all None; got {found}")
        return found

    def _add(self, name: str, params: KernelParams, bounds: tuple[Bounds | None, ...]) -> str:
        if not (name.isidentifier() and name.isascii()):
            raise GraphError(f"{name!r} is not a name: letters, digits and _ make one")
        if any(node.name == name for node in self._nodes):
            raise GraphError(f"graph {self._name!r} has a node {name!r} already")
        self._nodes.append(Node(name, params, bounds))
        return name
