"""Run a graph in numpy, bit-exact: each kernel computes with its own golden model, tensor by tensor."""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, MutableMapping

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.contract import memory_ports
from streamgen.model.graph import Edge, Graph, Node, Port, Tensor
from streamgen.numbers.formats import numpy_dtype

State = MutableMapping[str, np.ndarray]


def run(
    graph: Graph, inputs: Mapping[str, np.ndarray], state: State | None = None
) -> tuple[dict[str, np.ndarray], dict[Port, np.ndarray]]:
    """Outputs by tensor name, and the tensor on every output port (of the last walk that uses the port).

    `inputs` has each input tensor in the padded shape of its node's ITensor. state: by buffer, the arrays
    that earlier runs have left, changed by this run; zeros if a buffer is missing. Raises ValueError with the
    name of a missing, unknown or misshapen input.
    """
    values = {port: array for _, port, array in steps(graph, inputs, state)}
    sinks = {t.node: t.name for t in graph.tensors if t.role == "output"}
    outputs = {
        sinks[edge.target.node]: values[edge.source] for edge in graph.edges if edge.target.node in sinks
    }
    return outputs, values


def steps(
    graph: Graph, inputs: Mapping[str, np.ndarray], state: State | None = None
) -> Iterator[tuple[int, Port, np.ndarray]]:
    """Every output port with its tensor: phase by phase, walk by walk, node by node. Arguments and errors are
    those of `run`."""
    wanted = {t.name for t in graph.tensors if t.role == "input"}
    if wanted != set(inputs):
        raise ValueError(f"inputs are {sorted(wanted)}, got {sorted(inputs)}")
    memory = _MemoryTensors(graph, inputs, {} if state is None else state)
    values: dict[Port, np.ndarray] = {}
    waiting: dict[Edge, deque[np.ndarray]] = defaultdict(deque)  # on back edges
    for phase, walk in graph.steps():
        for node in graph.nodes:
            bounds = node.at(phase, walk)
            if bounds is None:
                continue
            operands = {
                edge.target.name: waiting[edge].popleft() if edge.back else values[edge.source]
                for edge in graph.inputs_of(node.name)
                if edge.target.name in node.inputs(phase)
            }
            operands |= memory.read(node, phase, walk)
            try:
                computed = node.params.golden(bounds, operands)
            except KeyError as error:
                if not {*error.args} & {*memory_ports(node.params)} - {*operands}:
                    raise
                raise GraphError(f"node {node.name!r}: no tensor lies behind its port {error}") from error
            results = memory.written(node, computed)
            for name, value in results.items():
                values[Port(node.name, name)] = value
                yield phase, Port(node.name, name), value
            for edge in graph.outputs_of(node.name):
                if edge.back and edge.source.name in results:
                    waiting[edge].append(results[edge.source.name])


class _MemoryTensors:
    """The tensors at the memory ports of nodes."""

    def __init__(self, graph: Graph, inputs: Mapping[str, np.ndarray], state: State) -> None:
        self._inputs, self._state = inputs, state
        self._spills: State = {}
        self._tensors: dict[str, list[Tensor]] = defaultdict(list)
        for tensor in graph.tensors:
            self._tensors[tensor.node].append(tensor)
            if (kept := self._kept(tensor)) is not None and tensor.place not in kept:
                itensor = graph.tensor_itensor(tensor)
                kept[tensor.place] = np.zeros(itensor.shape, numpy_dtype(itensor.dtype))

    def read(self, node: Node, phase: int, walk: int) -> dict[str, np.ndarray]:
        """The contents of memory at the ports of a node, by port."""
        operands = {}
        for tensor in self._tensors[node.name]:
            if (kept := self._kept(tensor)) is not None:
                operands[tensor.port] = kept[tensor.place]
            elif tensor.role != "output" and tensor.phase in (None, phase):
                itensor = tensor.itensor or next(iter(node.outputs(phase).values()))
                is_input = tensor.role == "input"
                data = self._inputs[tensor.name] if is_input else tensor.values(itensor, walk)
                if data.shape != itensor.shape:
                    raise ValueError(
                        f"tensor {tensor.name!r} has shape {data.shape}; {itensor.shape} is needed"
                    )
                operands[tensor.port] = data
        return operands

    def written(self, node: Node, results: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Store the results of a node that go to memory; return the others, which leave on its outputs."""
        streams = dict(results)
        for tensor in self._tensors[node.name]:
            if tensor.port in streams:
                data = streams.pop(tensor.port)
                if (kept := self._kept(tensor)) is not None:
                    kept[tensor.place] = data
        return streams

    def _kept(self, tensor: Tensor) -> State | None:
        """The array that an earlier node has written, in this run or in an earlier run."""
        return {"state": self._state, "spill": self._spills}.get(tensor.role)
