"""Run a graph in numpy: every kernel by its own golden model, tensor by tensor, bit-exact."""

from collections.abc import Iterator, Mapping

import numpy as np

from streamgen.graph import Graph, Port

__all__ = ["run", "steps"]


def run(
    graph: Graph, inputs: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[Port, np.ndarray]]:
    """Outputs by tensor name, and the tensor on every output port (last phase that uses it).

    `inputs` gives each input tensor in the padded shape of its node's ITensor.
    ValueError names a missing, unknown or misshapen input.
    """
    values = {port: array for _, port, array in steps(graph, inputs)}
    sinks = {t.node: t.name for t in graph.tensors if t.role == "output"}
    outputs = {
        sinks[edge.target.node]: values[edge.source] for edge in graph.edges if edge.target.node in sinks
    }
    return outputs, values


def steps(graph: Graph, inputs: Mapping[str, np.ndarray]) -> Iterator[tuple[int, Port, np.ndarray]]:
    """Phase by phase, node by node, each output port and its tensor; arguments and errors of `run`."""
    sources = {t.node: t for t in graph.tensors if t.role != "output"}
    wanted = {t.name for t in sources.values() if t.role == "input"}
    if wanted != set(inputs):
        raise ValueError(f"inputs are {sorted(wanted)}, got {sorted(inputs)}")
    values: dict[Port, np.ndarray] = {}
    for phase in range(graph.phases):
        for node in graph.nodes:
            bounds = node.bounds[phase]
            if bounds is None:
                continue
            if node.name in sources:
                tensor = sources[node.name]
                data = inputs[tensor.name] if tensor.role == "input" else tensor.data
                (port, itensor), *_ = node.outputs(phase).items()
                assert data is not None
                if data.shape != itensor.shape:
                    raise ValueError(
                        f"tensor {tensor.name!r} has shape {data.shape}; {itensor.shape} is needed"
                    )
                results = {port: data}
            else:
                operands = {e.target.name: values[e.source] for e in graph.inputs_of(node.name)}
                results = dict(node.params.golden(bounds, operands))
            for name, value in results.items():
                values[Port(node.name, name)] = value
                yield phase, Port(node.name, name), value
