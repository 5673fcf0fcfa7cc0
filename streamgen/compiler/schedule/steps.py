"""Steps and values of a schedule: the operations of an unrolled graph and what passes between them."""

from collections.abc import Sequence
from dataclasses import dataclass

from streamgen.model.graph.logical import Matmul, Operator, Shape


@dataclass(eq=False)
class Value:
    """A value of the unrolled graph: of all walks of a section.

    path: of the operation that makes it in the first walk, or the name of an input; no other value has it.
    section: in which it is made; None for inputs of the graph. again: what a walk makes of it for the next
    one; then `first` is what it is in the first walk.
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
    """An operation in all walks of its section. ops: what it does in each; path: of the first; where: its
    place in the model."""

    name: str
    path: str
    where: str
    ops: Sequence[Operator]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @property
    def op(self) -> Operator:
        """What it does in the first walk; others differ in their constants."""
        return self.ops[0]

    @property
    def matmuls(self) -> list[Matmul]:
        """Its matmul in each walk; [] where it is none."""
        return [matmul for op in self.ops if (matmul := op.matmul) is not None]
