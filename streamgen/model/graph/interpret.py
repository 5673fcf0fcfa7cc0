"""Interpreters of logical graphs: in numpy floats, or bit for bit in the arithmetic of the hardware.

    outputs, state = reference(graph)({"ids": ids})                      a text begins
    outputs, state = reference(graph)({"ids": more}, position=len(ids), state=state)

A pass works on rows of tokens at positions p ... p + T - 1. Its state, the keys and values for the next pass,
is a new value; the state given to a pass is not changed, so any pass may be run again. Results do not depend
on how a text is split into passes, with the exception described in `operations.exact_attention`. An
interrupted pass leaves no state.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streamgen.model.graph.logical import LogicalGraph, Operator
from streamgen.model.graph.run import Run, State
from streamgen.text.prompt import require_integers


class Interpreter:
    """A graph whose operations are computed by functions of (run, *inputs); `function` makes each of them
    once."""

    def __init__(
        self, graph: LogicalGraph, function: Callable[[Operator], Callable[..., Any]], dtype: Any
    ) -> None:
        self.graph, self._dtype = graph, dtype
        self._functions = {path: function(operation.op) for path, operation in graph.walk()}

    def __call__(
        self,
        inputs: Mapping[str, npt.ArrayLike],
        *,
        position: int = 0,
        state: State | None = None,
        every_row: bool = False,
        outputs: Collection[str] | None = None,
    ) -> tuple[dict[str, np.ndarray], State]:
        """Outputs by name, and the state after the pass. inputs: arrays [tokens, features], ids [tokens].

        outputs: names of the wanted outputs, None for all; operations that none of them needs are left out.
        Raises ValueError for inputs that are missing, unknown, of another shape or beyond the context, and
        for a state that does not reach the position; TypeError unless ids are integers.
        """
        graph = self.graph
        wanted = graph.outputs if outputs is None else tuple(outputs)
        values = {value.name for value in graph.inputs}
        if values != set(inputs):
            raise ValueError(f"inputs are {sorted(values)}, got {sorted(inputs)}")
        arrays = {name: np.asarray(array) for name, array in inputs.items()}
        tokens = max((array.shape[0] for array in arrays.values() if array.ndim), default=0)
        if not tokens:
            raise ValueError("the inputs hold no tokens; at least one is needed")
        if graph.context and position + tokens > graph.context:
            raise ValueError(
                f"{position} tokens and {tokens} more are {position + tokens}; the context is {graph.context}"
            )
        given = {}
        for value in graph.inputs:
            array = arrays[value.name]
            shape = (tokens,) if value.kind == "ids" else (tokens, value.features)
            if array.shape != shape:
                raise ValueError(
                    f"input {value.name!r} has shape {list(array.shape)}; {list(shape)} is needed"
                )
            if value.kind == "ids":
                require_integers(array)
            given[value.name] = array if value.kind == "ids" else array.astype(self._dtype)
        run = Run(tokens, position, state or {}, every_row, self._dtype)
        results = self._evaluate(graph, wanted, run, given, "")
        outputs_by_name = {}
        for name in wanted:
            rows = tokens if graph.shapes[name].rows in ("tokens", "every") else len(results[name])
            outputs_by_name[name] = np.broadcast_to(results[name], (rows, results[name].shape[1])).copy()
        return outputs_by_name, {**run.state, **run.kept}

    def _evaluate(
        self, graph: LogicalGraph, wanted: Sequence[str], run: Run, values: dict[str, Any], prefix: str
    ) -> dict[str, Any]:
        for operation in graph.needed(wanted):
            path = f"{prefix}{operation.name}"
            operands = [values[name] for name in operation.inputs]
            if operation.op.layers:
                for index, layer in enumerate(operation.op.layers):
                    own = dict(zip((value.name for value in layer.inputs), operands, strict=True))
                    layer_results = self._evaluate(layer, layer.outputs, run, own, f"{path}[{index}].")
                    operands = [layer_results[name] for name in layer.outputs]
                    run.forget()
                results: Any = operands
            else:
                run.path = path
                results = self._functions[path](run, *operands)
                results = results if operation.op.results else (results,)
            values |= zip(operation.values, results, strict=True)
        return values


def reference(graph: LogicalGraph, dtype: Any = np.float64) -> Interpreter:
    """Computes a graph without any rounding of the hardware; float32 is twice as fast as float64, and less
    exact."""
    return Interpreter(graph, lambda op: op.reference, dtype)


def exact(graph: LogicalGraph) -> Interpreter:
    """Computes a quantised graph as accelerators do, bit for bit: f24 values as float32."""
    return Interpreter(graph, lambda op: op.exact(), np.float32)
