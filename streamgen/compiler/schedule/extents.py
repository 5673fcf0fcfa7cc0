"""The padding of values, so that any size tiles.

Values are padded alike if a repetition joins them, or an operation such as an elementwise operation or a norm
(`Operator.padding`). The padding is zeros, or the results of such operations for zeros. A kernel that sums
over features knows how many features are not padding. The extent of a value is a multiple of

    32        the group of activations, or the group of weights if that is larger
    16        words of a beat, for values in memory
    lanes     elements that vector kernels take per cycle
    unit / 2  rows of a tile of the engine, for the results of two matmuls that it computes in turn. All other
              results of the engine are cut.
    pads      padding that the explorer chose for values around matmuls with columns of their own. If there is
              no engine and the explorer knows all values that are padded alike, only this counts.

Heads are not padded. Results of matmuls that become heads are cut to the size of the heads.
"""

from collections.abc import Mapping
from math import lcm

from streamgen.artifact.packing import WORD_LANES
from streamgen.compiler.schedule.phases import Schedule
from streamgen.compiler.schedule.plan import HardwarePlan
from streamgen.compiler.schedule.steps import Value
from streamgen.numbers.formats import MX_GROUP


def extents(schedule: Schedule, plan: HardwarePlan) -> Mapping[Value, int]:
    """Features of a row of every value, with padding."""
    classes: dict[Value, set[Value]] = {}

    def join(*values: Value) -> None:
        merged = {member for value in values for member in classes.get(value, {value})}
        classes.update((value, merged) for value in merged)

    steps = [step for phase in schedule.phases for step in phase.steps]
    unpadded: set[Value] = set()
    units: dict[Value, int] = {}
    for step in steps:
        for value in (*step.inputs, *step.outputs):
            join(value)
        if step.op.padding == "alike":
            join(*step.inputs, *step.outputs)
        elif step.op.padding == "none":
            unpadded.update((*step.inputs, *step.outputs))
        if step.op.matmul is not None:
            (x,) = step.inputs
            units[x] = lcm(units.get(x, 1), step.op.matmul.integers.group or MX_GROUP)
    for phase in schedule.phases:
        if schedule.alternates(phase):
            units |= {y: lcm(units.get(y, 1), plan.unit // 2) for step in phase.matmuls for y in step.outputs}
    for carried in schedule.carried:
        join(carried, *(value for value in (carried.first, carried.again) if value is not None))
    pads = {} if plan.own is None else plan.own.pads
    padded = {}
    for value, members in classes.items():
        if members & unpadded or value.shape.kind == "ids":
            padded[value] = value.shape.features
            continue
        chosen = plan.columns == 0 and all(m.path in pads or m.shape.rows == "every" for m in members)
        unit = lcm(*(pads.get(member.path, 1) for member in members))
        if not chosen:
            unit = lcm(unit, MX_GROUP, WORD_LANES, plan.lanes, *(units.get(m, 1) for m in members))
        padded[value] = -(-value.shape.features // unit) * unit
    return padded
