"""Finds where a graph and the module that it was imported from differ.

Both run on the same inputs, pass after pass. If results differ, all passes run again: in the first pass that
differs, the reference keeps the value of every operation and torch keeps the tensor of every call. An
operation is right if some call has computed the same numbers, in any layout. The error names the first
operation that is not right and from which no right value is computed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from streamgen.base.errors import ImportMismatchError
from streamgen.model.frontend.eager import HALVES, Seen
from streamgen.model.graph.interpret import Interpreter, reference
from streamgen.model.graph.logical import LogicalGraph, Operation, Operator
from streamgen.model.graph.run import Run

BOUND = 1e-4  # float32 leaves about 1e-6 of a layer; whatever is dropped or exchanged takes far more
ROUNDINGS = 8  # a module may round this many times as much as the reference in float32


@dataclass(frozen=True, kw_only=True)
class ComparedPass:
    """The results of a graph and of a module for the same inputs: by name, [rows, features].

    label: describes the inputs.
    """

    label: str
    graph: Mapping[str, np.ndarray]
    module: Mapping[str, np.ndarray]

    @property
    def gap(self) -> tuple[float, str]:
        """The largest difference of a row, relative to the norm of the rows, and the name of that result."""
        return max((gap_of(self.graph[name], rows), name) for name, rows in self.module.items())


Passes = Callable[[Interpreter], Iterator[ComparedPass]]
"""Gives the same inputs, pass after pass, to an interpreter of the graph and to the module."""


def require_equal(
    graph: LogicalGraph, passes: Passes, module: torch.nn.Module, layers: Sequence[int] = ()
) -> None:
    """Raise ImportMismatchError unless a graph computes what its module computes, in every pass.

    Rows may differ by the largest of three bounds: 1e-4 of their norm; 8 times the difference between the
    reference in float64 and in float32; 4 roundings of the narrowest format that the module computes in or
    has parameters of. Values that torch makes infinite or NaN are not compared. layers: the indices of the
    module's layers that the graph has.
    """
    for index, compared in enumerate(passes(reference(graph, np.float32))):
        if compared.gap[0] > BOUND:
            _require_roundings(graph, passes, module, layers, index, compared)


def gap_of(found: np.ndarray, wanted: np.ndarray) -> float:
    """The difference of the worst row, relative to the norm of a row. It is infinite for another shape, and
    where only one of the two values is a number."""
    if found.shape != wanted.shape:
        return float("inf")
    finite = np.isfinite(wanted)
    differences = np.where(finite, found - wanted, 0.0)
    if not np.isfinite(differences).all():
        return float("inf")
    largest = float(np.linalg.norm(differences, axis=-1).max())
    norm = float(np.sqrt((np.where(finite, wanted, 0.0) ** 2).sum(axis=-1).mean()))
    return largest / norm if norm else (float("inf") if largest else 0.0)


def _require_roundings(
    graph: LogicalGraph,
    passes: Passes,
    module: torch.nn.Module,
    layers: Sequence[int],
    index: int,
    compared: ComparedPass,
) -> None:
    """Raise ImportMismatchError unless the differences in a pass are roundings."""
    values = _Values(graph)
    with Seen(module) as seen:
        run = passes(values.interpreter)
        for _ in range(index):
            next(run)
        values.clear()
        seen.clear()
        exact = next(run)
    rounded = max(gap_of(compared.graph[name], rows) for name, rows in exact.graph.items())
    kinds = {t.dtype for t in (*seen.tensors, *module.parameters(), *module.buffers()) if t.dtype in HALVES}
    bound = max(BOUND, ROUNDINGS * rounded, *(4 * torch.finfo(kind).eps for kind in kinds))
    gap, name = exact.gap
    gap = max(gap, compared.gap[0] - rounded)  # that of the first run, if the module has changed since
    if gap <= bound:
        return
    path, operation = values.first_difference(seen, bound, name)
    path = _renumbered(path, layers)
    where = f" ({operation.where})" if operation.where else ""
    raise ImportMismatchError(
        f"the imported graph does not compute what the module computes: with {compared.label}, "
        f"{name!r} differs by {gap:.1e} of its norm; {bound:.0e} is allowed for roundings.\n"
        f"The first operation that differs is {path!r}{where}: {operation.op}.\n"
        "Please report it with the module. CompileConfig.check_import=False compiles the graph as it is.",
        operation=path,
        difference=gap,
    )


def _renumbered(path: str, layers: Sequence[int]) -> str:
    """A path in a graph of some layers, with the index of the layer in the graph of all layers."""
    head, bracket, rest = path.partition("[")
    if not layers or not bracket:
        return path
    index, _, name = rest.partition("]")
    return f"{head}[{layers[int(index)]}]{name}"


class _Values:
    """The values that the operations of a graph have computed since `clear`, in float64."""

    def __init__(self, graph: LogicalGraph) -> None:
        self.interpreter = Interpreter(graph, self._kept, np.float64)
        self._operations = dict(graph.walk())
        self.clear()

    def clear(self) -> None:
        """Forget all values computed so far."""
        self._made: dict[str, list[np.ndarray]] = defaultdict(list)  # by path, of several sequences too
        self._readers: dict[str, set[str]] = defaultdict(set)
        self._maker: dict[int, str] = {}  # id of an array, which `_made` keeps alive

    def _kept(self, op: Operator) -> Callable[..., Any]:
        def compute(run: Run, *operands: np.ndarray) -> Any:
            results = op.reference(run, *operands)
            for operand in operands:
                if id(operand) in self._maker:
                    self._readers[self._maker[id(operand)]].add(run.path)
            for result in results if isinstance(results, tuple) else (results,):
                self._made[run.path].append(result)
                self._maker[id(result)] = run.path
            return results

        return compute

    def first_difference(self, seen: Seen, bound: float, output: str) -> tuple[str, Operation]:
        """The first operation that torch does not compute, with its path. If torch computes all others, the
        operation that makes the output."""
        known: dict[int, list[np.ndarray]] = defaultdict(list)
        for tensor in seen.tensors:
            known[tensor.numel()].append(_sorted(tensor))

        def is_among(path: str, others: Sequence[np.ndarray]) -> bool:
            own = _sorted(*map(torch.from_numpy, self._made[path]))
            return any(np.linalg.norm(own - other) <= bound * np.linalg.norm(own) for other in others)

        right: set[str] = set()  # torch computes their value, or a value made from it
        for path in reversed(self._made):
            size = sum(array.size for array in self._made[path])
            if self._readers[path] & right or is_among(path, known[size]):
                right.add(path)
        last = next(path for path, o in self._operations.items() if output in o.values and "[" not in path)
        first = next((path for path in self._made if path not in right), last)
        for path, readers in self._readers.items():  # torch also has the number of a missing scale
            if first in readers and not _is_within(place := self._module(path), self._module(first)):
                size = sum(array.size for array in self._made[path])
                results = [
                    _sorted(result) for result in seen.results.get(place, ()) if result.numel() == size
                ]
                if results and not is_among(path, results):
                    return path, self._operations[path]
        return first, self._operations[first]

    def _module(self, path: str) -> str:
        """Path of the module that an operation belongs to."""
        return self._operations[path].where.partition(" (")[0]


def _sorted(*tensors: torch.Tensor) -> np.ndarray:
    """The numbers of the tensors, in sorted order, independent of their layout."""
    return np.sort(np.concatenate([tensor.double().reshape(-1).numpy() for tensor in tensors]))


def _is_within(module: str, other: str) -> bool:
    """Whether a module is another one, or holds it."""
    return f"{other}.".startswith(f"{module}.") or module == "the module"
