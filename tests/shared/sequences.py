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
    sequence."""
    taken = interface.taken(arguments)
    kinds = {value.name: value.kind for value in graph.inputs}
    rows: dict[str, np.ndarray] = {}
    for name, array in taken.items():
        lead = array.shape if kinds[name] == "ids" else array.shape[:-1]
        sequences, tokens = prod(lead[:-1]), lead[-1] if lead else 1
        rows[name] = array.reshape(sequences, tokens, *array.shape[len(lead) :])
    passes = [interpreter({name: x[i] for name, x in rows.items()})[0] for i in range(sequences)]
    return interface.rebuilt({n: np.concatenate([p[n] for p in passes]) for n in graph.outputs}, arguments)
