"""Take last rows as early as possible.

If only the last row of a value is read, an operation that computes the value row by row need not compute the
other rows:

    last(f(x, y)) = f(last(x), last(y))

In the last layer of a language model, this moves the last row up to the results of attention and the input of
the layer. Only one token of a prompt then passes the output projection and the feed-forward part of this
layer. In a pass that does not end the prompt, no token does.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from streamgen.compiler.schedule.steps import Step, Value
from streamgen.model.operations import LastRow


def takes_last_rows_early(
    steps: Sequence[Step], kept: Collection[Value]
) -> tuple[list[Step], dict[Value, Value]]:
    """Steps that take last rows early, in order, and the value that replaces each former last row.

    kept: values of which all rows are needed. The shape of a value that becomes one row is changed in place.

    Example: y = f(x), z = last(y) becomes last_x = last(x), y = f(last_x). The shape of y becomes one row,
    and y replaces z.
    """
    narrow = _narrow(steps, kept)
    rewritten: list[Step] = []
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
                    rewritten.append(last := _last(value, step))
                    (taken[value],) = last.outputs
            step = replace(step, inputs=tuple(taken.get(value, value) for value in step.inputs))
        rewritten.append(step)
    return rewritten, stands


def _narrow(steps: Sequence[Step], kept: Collection[Value]) -> list[Step]:
    """The steps that need to compute only the last rows of their results."""
    whole = set(kept)  # values of which all rows are read
    narrow: list[Step] = []
    for step in reversed(steps):
        if step.op.takes_last_row:
            continue
        row_wise = step.op.row_wise and all(v.shape.rows == "tokens" for v in step.outputs)
        if row_wise and whole.isdisjoint(step.outputs):
            narrow.append(step)
        else:
            whole.update(step.inputs)
    return narrow


def _last(value: Value, reader: Step) -> Step:
    """A step that takes the last row of a value. reader: the step that reads it."""
    name, path = f"last_{value.name}", f"last.{value.path}"
    row = Value(name, path, replace(value.shape, rows="one"), reader.outputs[0].section)
    return Step(name, path, reader.where, [LastRow()], (value,), (row,))
