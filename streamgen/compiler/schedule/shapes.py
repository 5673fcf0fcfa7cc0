"""The layers of a schedule that the explorer needs to know: matmuls with columns of their own, and
elementwise operations.

An elementwise operation works in the order of its leading operand, which is the operand from a matmul if
there is one. The explorer knows the operation if it knows the leading operand. If no operand comes from a
matmul, the explorer knows the operation if all its operands come from memory or from operations that it
knows.
"""

from collections.abc import Collection

from streamgen.compiler.schedule.phases import Schedule
from streamgen.compiler.schedule.steps import Step, Value
from streamgen.model.graph.plan import LinearShape, Shape, VectorShape
from streamgen.numbers.weights import FORMATS


def layer_shapes(schedule: Schedule, alone: Collection[str] | None = None) -> list[Shape]:
    """The quantised matmuls whose paths are in `alone` (None: all matmuls), and the elementwise operations
    that the explorer knows, in order."""
    level: dict[Value, int] = dict.fromkeys(schedule.inputs.values(), 0)
    known = set(schedule.inputs.values())
    shapes: list[Shape] = []
    for phase in schedule.phases:
        tiles: set[Value] = set()  # values in the order of a matmul of this phase
        for step in phase.steps:
            operands = [value for value in step.inputs if value.shape.rows != "every"]
            operands.sort(key=lambda value: value not in tiles)
            at = max((level.get(value, 0) for value in operands), default=0)
            if step.op.matmul is not None:
                tiles.update(step.outputs)
                if alone is None or step.path in alone:
                    shapes.append(_linear(step, at))
                    known.update(step.outputs)
                    at += 1
            elif step.op.elementwise is not None and operands:
                lead = operands[0]
                if lead in known if lead in tiles else known.issuperset(operands):
                    shapes.append(_vector(step, operands, at))
                    known.update(step.outputs)
                if lead in tiles:
                    tiles.update(step.outputs)
            level.update(dict.fromkeys(step.outputs, at))
    return shapes


def _linear(step: Step, level: int) -> LinearShape:
    matmul = step.matmuls[0]
    n, k = matmul.extents
    return LinearShape(
        name=step.path,
        k=k,
        n=n,
        level=level,
        form=FORMATS[matmul.integers.format],
        group=matmul.integers.group,
        reads=step.inputs[0].path,
        path=_module(step),
        bias=matmul.bias is not None,
    )


def _vector(step: Step, operands: list[Value], level: int) -> VectorShape:
    return VectorShape(
        name=step.path,
        features=step.outputs[0].shape.features,
        level=level,
        operands=tuple(value.path for value in operands),
        function=step.op.elementwise or "",
        path=_module(step),
    )


def _module(step: Step) -> str:
    return step.where.partition(" (")[0]
