"""Results of a graph for arguments of a module, one sequence after the other."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from streamgen.model.graph.interpret import Interpreter
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.nests import Interface

__all__ = ["results_of"]


def results_of(
    interpreter: Interpreter, graph: LogicalGraph, interface: Interface, arguments: Sequence[Any]
) -> Any:
    """The results, nested as in the module. The last leading dimension of the inputs is the tokens of a
    sequence. Each sequence with padding is computed without."""
    if (parts := interface.without_padding(arguments)) is not None:
        rows = [_rows(interpreter, graph, interface, part) for part in parts]
        return interface.rebuilt(interface.with_padding(rows, arguments), arguments)
    return interface.rebuilt(_rows(interpreter, graph, interface, arguments), arguments)


def _rows(
    interpreter: Interpreter, graph: LogicalGraph, interface: Interface, arguments: Sequence[Any]
) -> dict[str, np.ndarray]:
    """The results by name, for sequences without padding."""
    taken = interface.taken(arguments)
    kinds = {value.name: value.kind for value in graph.inputs}
    rows: dict[str, np.ndarray] = {}
    for name, array in taken.items():
        lead = array.shape if kinds[name] == "ids" else array.shape[:-1]
        sequences, tokens = prod(lead[:-1]), lead[-1] if lead else 1
        rows[name] = array.reshape(sequences, tokens, *array.shape[len(lead) :])
    passes = [interpreter({name: x[i] for name, x in rows.items()})[0] for i in range(sequences)]
    return {name: np.concatenate([one[name] for one in passes]) for name in graph.outputs}
