"""Where a graph and the module that it was imported from part.

They are run on the same inputs, pass after pass. When results differ, all passes are run again: in the one
that differs, the reference keeps the value of every operation and torch the tensor of every call. An
operation is right when a call has made the same numbers, in whatever order they lie. The first one is named
that is not right and of which nothing right is made.
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
ROUNDINGS = 8  # a module may round so many times as much as the reference in float32


@dataclass(frozen=True, kw_only=True)
class ComparedPass:
    """What a graph and a module have made of the same inputs: results by name, [rows, features].

    label: which inputs they were.
    """

    label: str
    graph: Mapping[str, np.ndarray]
    module: Mapping[str, np.ndarray]

    @property
    def gap(self) -> tuple[float, str]:
        """The largest difference of a row, as a share of the norm that rows have, and of which result."""
        return max((gap_of(self.graph[name], rows), name) for name, rows in self.module.items())


Passes = Callable[[Interpreter], Iterator[ComparedPass]]
"""Gives the same inputs, pass after pass, to an interpreter of the graph and to the module."""


def require_equal(
    graph: LogicalGraph, passes: Passes, module: torch.nn.Module, layers: Sequence[int] = ()
) -> None:
    """ImportMismatchError unless a graph computes what its module does, in every pass.

    Rows may differ by 1e-4 of their norm; by 8 times what float32 takes from the reference, where that is
    more; and by 4 roundings of the narrowest format that the module computes in or has parameters of. What
    torch makes infinite or no number is not compared. layers: where the graph has only some of the module's
    layers, which ones.
    """
    for index, compared in enumerate(passes(reference(graph, np.float32))):
        if compared.gap[0] > BOUND:
            _require_roundings(graph, passes, module, layers, index, compared)


def gap_of(found: np.ndarray, wanted: np.ndarray) -> float:
    """How far the worst row is from the one that is wanted, relative to the norm of a row; infinite for
    another shape and where only one of both is a number."""
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
    """ImportMismatchError unless what differs in a pass are roundings."""
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
    gap = max(gap, compared.gap[0] - rounded)  # that of the first run, where the module is another one now
    if gap <= bound:
        return
    path, operation = values.first_difference(seen, bound, name)
    path = _renumbered(path, layers)
    where = f" ({operation.where})" if operation.where else ""
    raise ImportMismatchError(
        f"the imported graph is not what the module computes: with {compared.label}, {name!r} differs by "
        f"{gap:.1e} of its norm; {bound:.0e} is allowed for roundings.\n"
        f"The first operation that differs is {path!r}{where}: {operation.op}.\n"
        "Please report it with the module. CompileConfig.check_import=False compiles the graph as it is.",
        operation=path,
        difference=gap,
    )


def _renumbered(path: str, layers: Sequence[int]) -> str:
    """A path in a graph of some layers as it is in the graph of all."""
    head, bracket, rest = path.partition("[")
    if not layers or not bracket:
        return path
    index, _, name = rest.partition("]")
    return f"{head}[{layers[int(index)]}]{name}"


class _Values:
    """What the operations of a graph have made since `clear`, in float64."""

    def __init__(self, graph: LogicalGraph) -> None:
        self.interpreter = Interpreter(graph, self._kept, np.float64)
        self._operations = dict(graph.walk())
        self.clear()

    def clear(self) -> None:
        """Forget what was made so far."""
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
        """The first operation that torch does not compute, with its path; the one that makes the output where
        torch computes every other one."""
        known: dict[int, list[np.ndarray]] = defaultdict(list)
        for tensor in seen.tensors:
            known[tensor.numel()].append(_sorted(tensor))

        def is_among(path: str, others: Sequence[np.ndarray]) -> bool:
            own = _sorted(*map(torch.from_numpy, self._made[path]))
            return any(np.linalg.norm(own - one) <= bound * np.linalg.norm(own) for one in others)

        right: set[str] = set()  # those that torch computes, or something that is made of them
        for path in reversed(self._made):
            size = sum(array.size for array in self._made[path])
            if self._readers[path] & right or is_among(path, known[size]):
                right.add(path)
        last = next(path for path, o in self._operations.items() if output in o.values and "[" not in path)
        first = next((path for path in self._made if path not in right), last)
        for path, readers in self._readers.items():  # a scale that is missing is a number that torch has, too
            if first in readers and not _is_within(place := self._module(path), self._module(first)):
                size = sum(array.size for array in self._made[path])
                results = [_sorted(one) for one in seen.results.get(place, ()) if one.numel() == size]
                if results and not is_among(path, results):
                    return path, self._operations[path]
        return first, self._operations[first]

    def _module(self, path: str) -> str:
        """Path of the module that an operation stands in."""
        return self._operations[path].where.partition(" (")[0]


def _sorted(*tensors: torch.Tensor) -> np.ndarray:
    """Their numbers, whatever their layout."""
    return np.sort(np.concatenate([tensor.double().reshape(-1).numpy() for tensor in tensors]))


def _is_within(module: str, other: str) -> bool:
    """Whether a module is, or holds, another one."""
    return f"{other}.".startswith(f"{module}.") or module == "the module"
