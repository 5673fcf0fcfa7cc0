"""How far values are padded, so that any size tiles.

Values that repetitions and operations such as elementwise ones and norms join (`Operator.padding`) are padded
alike, with zeros or with what such operations make of zeros; whoever sums over features knows how many there
are. Their extent is a multiple of

    32        the group of activations, or the weights' group where that is larger
    16        words of a beat, of what lies in memory
    lanes     elements that vector kernels take in a cycle
    unit      rows of a tile of the engine, for results of its matmuls
    pads      what the explorer chose for values around matmuls that have columns of their own: where it knows
              them all and there is no engine, this alone

Heads have their own size: rows of heads are not padded, and results of matmuls that become heads are cut.
"""

from collections.abc import Mapping
from math import lcm

from streamgen.artifact.packing import WORD_LANES
from streamgen.compiler.schedule.phases import Schedule
from streamgen.compiler.schedule.plan import HardwarePlan
from streamgen.compiler.schedule.steps import Value
from streamgen.numbers.formats import MX_GROUP


def extents(found: Schedule, plan: HardwarePlan) -> Mapping[Value, int]:
    """Features of a row of every value, with their padding."""
    classes: dict[Value, set[Value]] = {}

    def join(*values: Value) -> None:
        merged = {one for value in values for one in classes.get(value, {value})}
        classes.update((value, merged) for value in merged)

    steps = [step for phase in found.phases for step in phase.steps]
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
            (x,), (y,) = step.inputs, step.outputs
            units[x] = lcm(units.get(x, 1), step.op.matmul.integers.group or MX_GROUP)
            if step.path not in plan.alone:
                units[y] = lcm(units.get(y, 1), plan.unit)
    for carried in found.carried:
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
