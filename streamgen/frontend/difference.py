"""Where a graph and the module that it was imported from part.

They are run on the same inputs, pass after pass. When results differ, all passes are run again: in the one
that differs, the reference keeps the value of every operation and torch the tensor of every call. An operation
is right when a call has made the same numbers, in whatever order they lie. The first one is named that is not
right and of which nothing right is made.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from streamgen.errors import ImportMismatchError
from streamgen.frontend.eager import HALVES, Seen
from streamgen.graph.interpret import Interpreter, Run, reference
from streamgen.graph.logical import LogicalGraph, Operation, Operator

__all__ = ["BOUND", "Pass", "Passes", "require_equal"]

BOUND = 1e-4  # float32 leaves about 1e-6 of a layer; whatever is dropped or exchanged takes far more
ROUNDINGS = 8  # a module may round so many times as much as the reference in float32


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What a graph and a module have made of the same inputs: results by name, [rows, features].

    label: which inputs they were.
    """

    label: str
    graph: Mapping[str, np.ndarray]
    module: Mapping[str, np.ndarray]

    @property
    def gap(self) -> tuple[float, str]:
        """The largest difference of a row, as a share of the norm that rows have, and of which result."""
        return max((_gap(self.graph[name], rows), name) for name, rows in self.module.items())


Passes = Callable[[Interpreter], Iterator[Pass]]
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


def _gap(found: np.ndarray, wanted: np.ndarray) -> float:
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
    compared: Pass,
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
    rounded = max(_gap(compared.graph[name], rows) for name, rows in exact.graph.items())
    kinds = {t.dtype for t in (*seen.tensors, *module.parameters(), *module.buffers()) if t.dtype in HALVES}
    bound = max(BOUND, ROUNDINGS * rounded, *(4 * torch.finfo(kind).eps for kind in kinds))
    gap, name = exact.gap
    if gap <= bound:
        return
    first = values.first_difference(seen.tensors, bound)
    if first is None:
        said = "No operation differs by more than that from what torch computes; together they do."
    else:
        path = _renumbered(first[0], layers)
        where = f" ({first[1].where})" if first[1].where else ""
        said = f"The first operation that differs is {path!r}{where}: {first[1].op}."
    raise ImportMismatchError(
        f"the imported graph is not what the module computes: with {compared.label} {name!r} differs by "
        f"{gap:.1e} of its norm; {bound:.0e} is allowed for roundings.\n{said}\n"
        "Please report it with the module. CompileConfig.check_import=False compiles the graph all the same.",
        operation=None if first is None else _renumbered(first[0], layers),
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

    def first_difference(self, tensors: Sequence[torch.Tensor], bound: float) -> tuple[str, Operation] | None:
        """The first operation whose numbers no tensor has, nor those of anything made of it; its path."""
        known: dict[int, list[np.ndarray]] = defaultdict(list)
        sizes = {sum(one.size for one in arrays) for arrays in self._made.values()}
        for tensor in tensors:
            if tensor.numel() in sizes:
                known[tensor.numel()].append(np.sort(tensor.double().reshape(-1).numpy()))

        def is_known(path: str) -> bool:
            own = np.sort(np.concatenate([one.reshape(-1) for one in self._made[path]]))
            return any(np.linalg.norm(own - one) <= bound * np.linalg.norm(own) for one in known[own.size])

        right = set()  # those that are, or of which something is made that is
        for path in reversed(self._made):
            if self._readers[path] & right or is_known(path):
                right.add(path)
        wrong = (path for path in self._made if path not in right)
        first = next(wrong, None)
        return None if first is None else (first, self._operations[first])
