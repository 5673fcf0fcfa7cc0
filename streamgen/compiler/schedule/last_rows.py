"""Last rows are taken as early as they can be.

Where only the last row of a value is read further on, what makes it row by row need not make the others:

    last(f(x, y)) = f(last(x), last(y))

In the last layer of a language model that goes back to what attention gives and to what the layer began
with, so that of a prompt one token alone passes its output projection and its feed-forward, and none in a
pass that is not the prompt's last.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from streamgen.compiler.schedule.steps import Step, Value
from streamgen.model.operations import LastRow


def takes_last_rows_early(
    steps: Sequence[Step], kept: Collection[Value]
) -> tuple[list[Step], dict[Value, Value]]:
    """Steps in order that do the same, and by former value of last rows what stands for it.

    kept: values of which all rows are needed. The shapes of values that become one row are changed.
    """
    narrow = _narrow(steps, kept)
    made: list[Step] = []
    stands: dict[Value, Value] = {}
    taken: dict[Value, Value] = {}
    narrowed = {value for step in narrow for value in step.outputs}
    for value in narrowed:
        value.shape = replace(value.shape, rows="one")
    for step in steps:
        step = replace(step, inputs=tuple(stands.get(value, value) for value in step.inputs))
        if step.op.takes_last_row and step.inputs[0] in narrowed:
            stands |= zip(step.outputs, step.inputs, strict=True)
            continue
        if narrowed.intersection(step.outputs):
            for value in dict.fromkeys(step.inputs):
                if value.shape.rows == "tokens" and value not in taken:
                    made.append(last := _last(value, step))
                    (taken[value],) = last.outputs
            step = replace(step, inputs=tuple(taken.get(value, value) for value in step.inputs))
        made.append(step)
    return made, stands


def _narrow(steps: Sequence[Step], kept: Collection[Value]) -> list[Step]:
    """The steps of whose results the last rows are enough."""
    whole = set(kept)  # what something reads all rows of
    found: list[Step] = []
    for step in reversed(steps):
        if step.op.takes_last_row:
            continue
        row_wise = step.op.row_wise and all(v.shape.rows == "tokens" for v in step.outputs)
        if row_wise and whole.isdisjoint(step.outputs):
            found.append(step)
        else:
            whole.update(step.inputs)
    return found


def _last(value: Value, reader: Step) -> Step:
    """What takes the last row of a value."""
    name, path = f"last_{value.name}", f"last.{value.path}"
    one = Value(name, path, replace(value.shape, rows="one"), reader.outputs[0].section)
    return Step(name, path, reader.where, [LastRow()], (value,), (one,))
