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

import numpy as np

from streamgen.contract import Bounds, KernelParams, missing_methods
from streamgen.errors import GraphError
from streamgen.graph import Edge, Graph, Node, Port, Tensor
from streamgen.itensor import ITensor
from streamgen.packing import MemoryLayout
from streamgen.platform.dma import LoadParams, StoreParams

__all__ = ["GraphBuilder"]


class GraphBuilder:
    """Collects nodes and edges of a graph of one phase.

    rate: beats a cycle that a memory channel gives; loads and stores promise their cycles by it.
    """

    def __init__(self, name: str, *, rate: float = 0.6927) -> None:
        self._name = name
        self._rate = rate
        self._nodes: list[Node] = []
        self._edges: list[Edge] = []
        self._tensors: list[Tensor] = []

    def load(
        self,
        name: str,
        itensor: ITensor,
        *,
        shape: tuple[int, ...],
        channel: int,
        data: np.ndarray | None = None,
        prefetch: int = 128,
        burst: int = 64,
        largest: ITensor | None = None,
    ) -> Port:
        """A tensor read from memory in the order of `itensor`: an input, or a constant when it has `data`.

        shape: the logical shape, at most `itensor.shape`. prefetch, burst: FIFO depth and longest burst
        in beats. largest: the itensor of the largest run, where it is not this one.
        """
        layout = MemoryLayout.of(itensor)
        params = LoadParams(
            layout=layout,
            prefetch=prefetch,
            burst=burst,
            max_tokens=(largest or itensor).token_count,
            rate=self._rate,
        )
        node = self._add(f"load_{name}", params, {"itensor": itensor, "offset": 0})
        role = "input" if data is None else "constant"
        self._tensor(name, role, node, shape, itensor, channel, data)
        return Port(node, "o")

    def store(
        self,
        name: str,
        source: Port,
        *,
        shape: tuple[int, ...],
        channel: int,
        itensor: ITensor | None = None,
        largest: ITensor | None = None,
    ) -> None:
        """Write a stream to memory as an output tensor, in the order of `itensor` (default: as it comes)."""
        itensor = itensor or self.itensor(source)
        layout = MemoryLayout.of(itensor)
        params = StoreParams(layout=layout, max_tokens=(largest or itensor).token_count, rate=self._rate)
        node = self._add(f"store_{name}", params, {"itensor": itensor, "offset": 0})
        self._edges.append(Edge(source, Port(node, "i")))
        self._tensor(name, "output", node, shape, itensor, channel, None)

    def kernel(self, name: str, params: KernelParams, bounds: Bounds, **inputs: Port) -> Mapping[str, Port]:
        """Add a kernel; inputs by port name. Returns its output ports by name."""
        if missing := missing_methods(params):
            raise GraphError(f"kernel {name!r}: {type(params).__name__} has no {', '.join(missing)}")
        wanted = params.inputs(bounds)
        if set(wanted) != set(inputs):
            raise GraphError(f"kernel {name!r} has inputs {sorted(wanted)}, got {sorted(inputs)}")
        node = self._add(name, params, bounds)
        self._edges += [Edge(source, Port(node, port)) for port, source in inputs.items()]
        return {port: Port(node, port) for port in params.outputs(bounds)}

    def itensor(self, port: Port) -> ITensor:
        """In which order an output port sends its tiles."""
        for node in self._nodes:
            if node.name == port.node:
                if port.name not in (outputs := node.outputs(0)):
                    raise GraphError(
                        f"node {port.node!r} has no output {port.name!r}, only {', '.join(outputs)}"
                    )
                return outputs[port.name]
        raise GraphError(f"graph {self._name!r} has no node {port.node!r}")

    def build(self) -> Graph:
        """The graph; the passes that insert forks and converters verify it."""
        return Graph(self._name, tuple(self._nodes), tuple(self._edges), tuple(self._tensors))

    def _add(self, name: str, params: KernelParams, bounds: Bounds) -> str:
        if not (name.isidentifier() and name.isascii()):
            raise GraphError(f"{name!r} is not a name: letters, digits and _ make one")
        if any(node.name == name for node in self._nodes):
            raise GraphError(f"graph {self._name!r} has a node {name!r} already")
        self._nodes.append(Node(name, params, (bounds,)))
        return name

    def _tensor(
        self,
        name: str,
        role: str,
        node: str,
        shape: tuple[int, ...],
        itensor: ITensor,
        channel: int,
        data: np.ndarray | None,
    ) -> None:
        padded = itensor.shape
        if len(shape) != len(padded) or any(s > p or s < 1 for s, p in zip(shape, padded, strict=True)):
            raise GraphError(f"tensor {name!r} has shape {shape}; its stream covers {padded}")
        if data is not None and data.shape != padded:
            raise GraphError(f"constant {name!r} has data of shape {data.shape}; its stream covers {padded}")
        self._tensors.append(Tensor(name, role, node, shape, channel, data))
