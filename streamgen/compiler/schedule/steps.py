"""Steps and values of a schedule: the operations of an unrolled graph, and the values between them."""

from collections.abc import Sequence
from dataclasses import dataclass

from streamgen.model.graph.logical import Matmul, Operator, Shape


@dataclass(eq=False)
class Value:
    """A value of the unrolled graph, in all walks of a section.

    path: unique path of the operation that computes the value in the first walk, or the name of an input.
    section, phase: section and phase that compute the value; None for inputs of the graph. first, again: for
    a value that passes from walk to walk, its value in the first walk, and the value that a walk computes for
    the next walk.
    """

    name: str
    path: str
    shape: Shape
    section: int | None = None
    phase: int | None = None
    first: "Value | None" = None
    again: "Value | None" = None


@dataclass(frozen=True, eq=False)
class Step:
    """An operation in all walks of its section. path: its path in the first walk. where: its place in the
    model. ops: the operation of each walk."""

    name: str
    path: str
    where: str
    ops: Sequence[Operator]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @property
    def op(self) -> Operator:
        """The operation of the first walk; the other walks differ only in constants."""
        return self.ops[0]

    @property
    def matmuls(self) -> list[Matmul]:
        """The matmul of each walk; empty if the operation is not a matmul."""
        return [matmul for op in self.ops if (matmul := op.matmul) is not None]
