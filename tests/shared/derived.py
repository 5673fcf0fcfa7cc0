"""From a logical graph to a graph of kernels, without Verilog: what the kernels compute, tensor by tensor."""

import numpy as np

from streamgen.compiler.lower import insert_converters, insert_forks, place_constants
from streamgen.compiler.schedule import Derivation, HardwarePlan
from streamgen.model import golden
from streamgen.model.graph.interpret import exact, reference
from streamgen.model.graph.logical import LogicalGraph
from streamgen.numbers.quantisation import Numbers
from streamgen.platform.boards import Channel

__all__ = ["check_derived"]


def check_derived(graph: LogicalGraph, given: dict[str, np.ndarray]) -> None:
    """The arithmetic of the hardware is within 5 % of the greatest value of the reference, and the kernels
    that are derived compute just that. given: f24 values [tokens, features] by input."""
    tokens = len(next(iter(given.values())))
    model = graph.quantised(Numbers(weights="w8"))
    expected, _ = exact(model)(given)
    for output, value in reference(model)(given)[0].items():
        assert np.abs(expected[output] - value).max() <= 0.05 * np.abs(value).max()
    plan = HardwarePlan(max_tokens=8, context=0, columns=4, n_lanes=2, lanes=4)
    kernels = Derivation(model, plan, Channel(0.6927, 100)).graph(tokens, 0)
    kernels = place_constants(insert_converters(insert_forks(kernels)))
    padded = {}
    for tensor in (t for t in kernels.tensors if t.role == "input"):
        orders = (it for p in range(kernels.phases) for it in kernels.node(tensor.node).outputs(p).values())
        rows = np.zeros(next(orders).shape, np.float32)
        rows[:, : given[tensor.name].shape[1]] = given[tensor.name]
        padded[tensor.name] = rows
    outputs, _ = golden.run(kernels, padded)
    for output, value in expected.items():
        np.testing.assert_array_equal(outputs[output][:, : value.shape[1]], value)
