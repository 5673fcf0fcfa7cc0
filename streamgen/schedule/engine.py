"""The matmul engine: columns that compute all matmuls, a phase after the other, a memory channel each.

The matmuls of a phase read one operand, so they are one matmul whose rows are those of all: one after the
other, where their results go different ways (queries, keys, values), or in turn, where the results of two
meet in one elementwise operation (gate and factor): half of the columns then computes the ones, the other
half the others, and neither waits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from streamgen.contract import Bounds
from streamgen.errors import GraphError
from streamgen.formats import MX_GROUP
from streamgen.itensor import ITensor, without_reuse
from streamgen.kernels.matmul import ColumnParams
from streamgen.lower.columns import column_tensors
from streamgen.operations import Binary
from streamgen.quantisation import QuantisedWeight
from streamgen.schedule.phases import Phase, Schedule, Step
from streamgen.schedule.plan import EnginePlan

__all__ = ["Engine", "Matmul"]


@dataclass(frozen=True, eq=False)
class Matmul:
    """The matmuls of a phase. steps: in the order of their rows. alternate: their rows lie in turn. weights:
    of all together, for each walk."""

    phase: int
    steps: Sequence[Step]
    alternate: bool
    weights: Sequence[QuantisedWeight]

    @property
    def rows(self) -> Sequence[int]:
        """Output rows of each."""
        return [step.op.extents[0] for step in self.steps]  # type: ignore[attr-defined]

    @property
    def k(self) -> int:
        return int(self.weights[0].codes.shape[1])


class Engine:
    """The matmuls of a schedule, and what the columns of a plan read for them.

    GraphError for rows and features that do not tile.
    """

    def __init__(self, found: Schedule, plan: EnginePlan) -> None:
        if plan.columns % 2:
            raise GraphError(f"columns of an engine must be even, not {plan.columns}")
        self.plan = plan
        self.matmuls = {p.number: _matmul(p, found, plan) for p in found.phases if p.matmuls}
        self._columns: dict[tuple[int, str], np.ndarray] = {}

    @cached_property
    def params(self) -> ColumnParams:
        """A column: what all matmuls need of it."""
        weights = [matmul.weights[0] for matmul in self.matmuls.values()]
        grouped = next((w for w in weights if w.scale is not None), None)
        formats = {w.format for w in weights}
        return ColumnParams(
            t_lanes=1,
            n_lanes=self.plan.n_lanes,
            formats=tuple(name for name in ("w4", "w8") if name in formats),
            group=MX_GROUP if grouped is None or grouped.group is None else grouped.group,
            scale_bits=0 if grouped is None else _scale_bits(weights),
            minimum=grouped is not None and grouped.minimum is not None,
            max_k=max(matmul.k for matmul in self.matmuls.values()),
            max_n=max(len(w.codes) for w in weights) // self.plan.columns,
            max_t=self.plan.max_tokens,
        )

    def bounds(self, phase: int, rows: int) -> Bounds:
        """Of a column, for so many rows of the operand."""
        weight = self.matmuls[phase].weights[0]
        return {
            "t": rows,
            "k": self.matmuls[phase].k,
            "n": len(weight.codes) // self.plan.columns,
            "format": weight.format,
            "grouped": weight.scale is not None,
        }

    def streams(self, phase: int, column: int, wanted: Mapping[str, ITensor]) -> dict[str, Any]:
        """By port, what a column reads of its weights: the order, once, and an array for each walk."""
        found = {}
        for port in ("i_w", "i_s", "i_r"):
            if port in wanted:
                once = without_reuse(wanted[port])
                found[port] = wanted[port], self._column(phase, port, once)[column]
        return found

    def _column(self, phase: int, port: str, itensor: ITensor) -> np.ndarray:
        """What columns read in a phase: for each an array shaped as `itensor` for each walk."""
        key = (phase, port)
        if key not in self._columns:  # once for the graphs of all runs
            count = self.plan.columns
            weights = self.matmuls[phase].weights
            tensors = [column_tensors(weight, *weight.codes.shape)[port] for weight in weights]
            rows = len(tensors[0]) // count
            padded = np.zeros((count, len(tensors), *itensor.shape), tensors[0].dtype)
            for walk, tensor in enumerate(tensors):
                for c in range(count):
                    inside = tuple(slice(extent) for extent in (rows, *tensor.shape[1:]))
                    padded[c, walk][inside] = tensor[c::count]
            self._columns[key] = padded
        return self._columns[key]


def _matmul(phase: Phase, found: Schedule, plan: EnginePlan) -> Matmul:
    steps = phase.matmuls
    for step in steps:
        N, K = step.op.extents  # type: ignore[attr-defined]
        if N % plan.unit:
            raise GraphError(
                f"{step.path} has {N} rows; a multiple of columns * n_lanes = {plan.unit} is needed"
            )
        group = step.op.integers.group or MX_GROUP  # type: ignore[attr-defined]
        if K % group:
            raise GraphError(f"{step.path} takes {K} features; a multiple of {group}, a group, is needed")
    alternate = len(steps) == 2 and _meet(phase, found, steps)
    weights = []
    for walk in range(len(steps[0].ops)):
        parts = [step.ops[walk].integers for step in steps]  # type: ignore[attr-defined]
        weights.append(_alternating(parts, plan.columns // 2) if alternate else _joined(parts))
    return Matmul(phase.number, steps, alternate, weights)


def _meet(phase: Phase, found: Schedule, steps: Sequence[Step]) -> bool:
    """Whether the results of two matmuls meet in one elementwise operation, and go nowhere else."""
    made = {step.outputs[0] for step in steps}
    readers = [s for p in found.phases for s in p.steps if made.intersection(s.inputs)]
    (first, *more) = readers
    alike = len({step.op.form() for step in steps}) == 1
    kept = made & {*found.outputs.values(), *(c.again for c in found.carried)}
    return alike and not more and not kept and isinstance(first.op, Binary) and {*first.inputs} == made


def _scale_bits(weights: Sequence[QuantisedWeight]) -> int:
    """Of group scales and minimums: the greatest of each row reaches the greatest integer."""
    parts = [part for w in weights for part in (w.scale, w.minimum) if part is not None]
    return max(8, 1 + max(int(np.abs(part).max()) for part in parts).bit_length())


def _joined(parts: Sequence[QuantisedWeight]) -> QuantisedWeight:
    """The rows of several weights, one after the other."""

    def rows(name: str) -> Any:
        arrays = [getattr(part, name) for part in parts]
        return None if arrays[0] is None else np.concatenate(arrays)

    if len(parts) == 1:
        return parts[0]
    names = ("codes", "scale", "minimum", "row_scale")
    return replace(parts[0], **{name: rows(name) for name in names})


def _alternating(parts: Sequence[QuantisedWeight], count: int) -> QuantisedWeight:
    """`count` rows of the first, as many of the second, and so on."""
    joined = _joined(parts)
    order = np.arange(len(joined.codes)).reshape(2, -1, count).swapaxes(0, 1).reshape(-1)

    def rows(array: np.ndarray | None) -> Any:
        return None if array is None else array[order]

    names = ("codes", "scale", "minimum", "row_scale")
    return replace(joined, **{name: rows(getattr(joined, name)) for name in names})
