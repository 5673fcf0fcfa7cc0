"""The matmul engine: columns that compute all matmuls, phase after phase. Each column has a memory channel.

The matmuls of a phase read one operand, so the engine computes them as one matmul with the rows of all. The
order of the rows depends on the readers of the results:

* If the results go different ways, the rows of one matmul follow those of the other. A tile may have rows of
  several matmuls.
* If the results of two matmuls meet in one elementwise operation (gate and factor), their rows alternate.
  Half of the columns compute one result and half the other, so neither result waits.
* Keys, values and queries of attention over a cache come in rounds. A round has one or more tiles of rows of
  each matmul. The first heads are therefore complete while the other heads are still computed.

Only the last tile of a phase has padding. Codes of the padding are not in memory, as far as whole beats have
none but them (`kernels.matmul.weights`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd, lcm

from streamgen.artifact.row_order import RowOrder
from streamgen.artifact.weight_layout import WeightLayout
from streamgen.base.errors import GraphError
from streamgen.compiler.schedule.column_weights import ColumnWeights
from streamgen.compiler.schedule.phases import Phase, Schedule
from streamgen.compiler.schedule.plan import HardwarePlan
from streamgen.compiler.schedule.steps import Step, Value
from streamgen.contract import Bounds
from streamgen.kernels.matmul.matmul import ColumnParams
from streamgen.kernels.matmul.weights import UnevenWeightsParams, WeightsParams
from streamgen.model.graph.late import LateArray
from streamgen.model.graph.logical import Matmul
from streamgen.numbers.formats import MX_GROUP
from streamgen.numbers.quantisation import IntegerWeight, scale_bits
from streamgen.numbers.weights import BYTES


@dataclass(frozen=True, eq=False)
class EngineMatmul:
    """The matmuls of a phase, which have one operand and one format.

    steps: the matmuls in the order of their rows. extents: features of their results, with padding.
    alternate: whether the rows of two matmuls alternate. rounds: number of pieces into which the rows of each
    matmul are split; the first pieces of all matmuls come first. rows: output rows of each matmul, with
    padding. padding: rows of the last tile that are padding. k: features of the operand, with padding. unit:
    rows of a tile.
    """

    phase: int
    steps: Sequence[Step]
    extents: Sequence[int]
    alternate: bool
    rounds: int
    rows: Sequence[int]
    padding: int
    k: int
    unit: int

    @property
    def whole(self) -> bool:
        """Whether no tile has rows of several matmuls that are to be parted."""
        return self.alternate or not any(rows % self.unit for rows in self.rows[:-1])

    @property
    def weight(self) -> IntegerWeight:
        """The weights of the first matmul in the first walk; all matmuls have its format."""
        return self.steps[0].matmuls[0].integers

    @property
    def operand(self) -> Value:
        return self.steps[0].inputs[0]

    @property
    def matmuls(self) -> Iterator[Matmul]:
        """The matmuls of all walks."""
        return (op for step in self.steps for op in step.matmuls)


class Engine:
    """The matmuls of a schedule that the engine computes, and the weights of its columns. extent: features of
    values with padding."""

    def __init__(self, schedule: Schedule, plan: HardwarePlan, extent: Mapping[Value, int]) -> None:
        self.plan = plan
        self.matmuls = {p.number: _matmul(p, schedule, plan, extent) for p in schedule.phases if p.matmuls}
        self._columns: dict[int, Sequence[LateArray]] = {}

    @cached_property
    def params(self) -> ColumnParams:
        """Parameters of a column that computes all matmuls."""
        weights = [step.matmuls[0].integers for matmul in self.matmuls.values() for step in matmul.steps]
        grouped = next((w for w in weights if w.grouped), None)
        group = MX_GROUP if grouped is None or grouped.group is None else grouped.group
        formats = _formats(self.matmuls.values())
        longest = {matmul.weight.format: 0 for matmul in self.matmuls.values()}
        for matmul in self.matmuls.values():
            longest[matmul.weight.format] = max(longest[matmul.weight.format], matmul.k)
        return ColumnParams(
            t_lanes=1,
            n_lanes=self.plan.n_lanes,
            formats=formats,
            group=group,
            scale_bits=0 if grouped is None else scale_bits(weights),
            minimum=grouped is not None and grouped.minimums,
            max_k=-(-max(longest.values()) // group) * group,  # the longest may have weights without groups
            max_k_w8=longest[BYTES.name] if len(longest) > 1 else None,
            max_n=max(sum(matmul.rows) for matmul in self.matmuls.values()) // self.plan.columns,
            max_t=self.plan.max_tokens,
            bias=any(op.bias is not None for op in self._operators),
        ).told([op.integers for op in self._operators])

    @cached_property
    def weights(self) -> WeightsParams:
        """Parameters of the weights of a column."""
        whole = WeightsParams(column=self.params)
        if whole.codes.beats_per_token == 1:
            return whole
        uneven = UnevenWeightsParams(column=self.params)
        layouts = (uneven.layout(self.weight_bounds(phase, 1)) for phase in self.matmuls)
        return uneven if any(layout.last_beats is not None for layout in layouts) else whole

    def weight_bounds(self, phase: int, rows: int) -> Bounds:
        """Bounds of the weights of a column in a phase."""
        bounds = self.bounds(phase, rows)
        padding = self.matmuls[phase].padding // self.plan.columns
        return {**bounds, "used": bounds["n"] - padding} if padding else bounds

    def is_long_row(self, phase: int) -> bool:
        """Whether the result of a phase is one row, which is longer than all results of several rows."""
        several = [sum(m.rows) for m in self.matmuls.values() if m.operand.shape.rows != "one"]
        matmul = self.matmuls[phase]
        return matmul.operand.shape.rows == "one" and sum(matmul.rows) > max(several, default=0)

    def bounds(self, phase: int, rows: int) -> Bounds:
        """Bounds of a column in a phase. rows: rows of the operand."""
        matmul = self.matmuls[phase]
        return {
            "t": rows,
            "k": matmul.k,
            "n": sum(matmul.rows) // self.plan.columns,
            "format": matmul.weight.format,
            "grouped": matmul.weight.grouped,
        }

    def columns(self, phase: int, layout: WeightLayout) -> Sequence[LateArray]:
        """The weights of the columns in a phase: of each, uint8 [walks, beats, 64]."""
        if phase not in self._columns:  # once for the graphs of all runs
            matmul = self.matmuls[phase]
            self._columns[phase] = ColumnWeights(
                walks=list(zip(*(step.matmuls for step in matmul.steps), strict=True)),
                order=RowOrder(
                    rows=tuple(matmul.rows),
                    columns=self.plan.columns,
                    rounds=matmul.rounds,
                    alternate=matmul.alternate,
                ),
                width=matmul.k,
                layout=layout,
                bias=self.params.bias,
            ).columns
        return self._columns[phase]

    @property
    def _operators(self) -> Iterator[Matmul]:
        """All matmuls, in all walks."""
        return (op for matmul in self.matmuls.values() for op in matmul.matmuls)


def _formats(matmuls: Iterable[EngineMatmul]) -> tuple[str, ...]:
    """The formats of all matmuls, narrow formats first. Raises GraphError if there are several narrow
    formats."""
    users: dict[str, list[str]] = {}
    for matmul in matmuls:
        users.setdefault(matmul.weight.format, []).extend(step.path for step in matmul.steps)
    narrow = [name for name in users if name != BYTES.name]
    if len(narrow) > 1:
        several = ", ".join(f"{name} ({users[name][0]})" for name in narrow)
        raise GraphError(
            f"an engine takes weights of one narrow format and {BYTES.name}, but its matmuls have {several}. "
            "Give all matmuls one format, or give them columns of their own (policy='spatial')"
        )
    return (*narrow, *(name for name in users if name == BYTES.name))


def _matmul(
    phase: Phase, schedule: Schedule, plan: HardwarePlan, extent: Mapping[Value, int]
) -> EngineMatmul:
    steps = phase.matmuls
    (operand,) = {step.inputs[0] for step in steps}
    readers = [step for p in schedule.phases for step in p.matmuls if operand in step.inputs]
    unit = lcm(*(step.matmuls[0].integers.group or MX_GROUP for step in readers))
    extents = [extent[step.outputs[0]] for step in steps]
    alternate = schedule.alternates(phase)
    if alternate:  # each has half of every tile
        rows = [_up(size, plan.unit // 2) for size in extents]
        needed = sum(_up(step.outputs[0].shape.features, plan.columns // 2) for step in steps)
    else:
        rows = [_up(size, plan.columns) for size in extents]
        needed = sum(rows[:-1]) + _up(steps[-1].outputs[0].shape.features, plan.columns)
        rows[-1] += -sum(rows) % plan.unit
    return EngineMatmul(
        phase=phase.number,
        steps=steps,
        extents=extents,
        alternate=alternate,
        rounds=_rounds(schedule, steps, extents, plan.unit),
        rows=rows,
        padding=min(sum(rows) - needed, plan.unit - plan.columns),
        k=_up(operand.shape.features, unit),
        unit=plan.unit,
    )


def _up(size: int, unit: int) -> int:
    """The next multiple of a unit."""
    return -(-size // unit) * unit


def _rounds(schedule: Schedule, steps: Sequence[Step], extents: Sequence[int], unit: int) -> int:
    """The largest number of rounds for matmuls whose results go to caches and attention: a round has whole
    heads and no padding. 1 for all other matmuls."""
    if len(steps) < 2 or any(extent % unit for extent in extents):
        return 1
    results = {step.outputs[0] for step in steps}
    pieces = [
        step.op.pieces(unit, operand)
        for phase in schedule.phases
        for step in phase.steps
        for operand, value in enumerate(step.inputs)
        if value in results
    ]
    return gcd(*pieces, *(extent // unit for extent in extents)) if pieces else 1
