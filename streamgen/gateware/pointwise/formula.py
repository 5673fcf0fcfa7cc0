"""An expression over values, element by element, as a frozen value.

    values 0 … n - 1;   then the results of the steps, in order;   -1 - k is constant k

    Formula(values=1, constants=(3.0,), steps=(("add", (0, -1)), ("sigmoid", (1,)), ("multiply", (0, 2))))

computes x · sigmoid(x + 3). The result is that of the last step. Equal expressions are equal values.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy import ndarray

from streamgen.gateware.arith import Composed, Float, NetworkParams
from streamgen.gateware.pointwise.operations import POINTWISE

Step = tuple[str, tuple[int, ...]]
NAMES = "abcdefghijklmnopqrstuvwxyz"
"""Of the values of an expression, in order."""


@dataclass(frozen=True, kw_only=True)
class Formula:
    """values: the number of values. constants: numbers, infinities too; f24 rounds them.

    Raises ValueError for NaN and -0 as constants, for an operation that is not known, for a step that takes
    what is not there, and where a value, a constant or a result is not used.
    """

    values: int
    constants: tuple[float, ...] = ()
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.values <= len(NAMES):
            raise ValueError(f"an expression has {self.values} values; 1 to {len(NAMES)} are allowed")
        for constant in self.constants:
            if math.isnan(constant) or (constant == 0 and math.copysign(1, constant) < 0):
                raise ValueError(f"a constant of an expression is {constant}; NaN and -0 are not allowed")
        if not self.steps:
            raise ValueError("an expression has no steps; at least 1 is needed")
        used: set[int] = set()
        for number, (name, taken) in enumerate(self.steps):
            if name not in POINTWISE:
                raise ValueError(
                    f"there is no pointwise operation {name!r}; there are {', '.join(POINTWISE)}"
                )
            known = range(-len(self.constants), self.values + number)
            if len(taken) != POINTWISE[name].arity or not all(index in known for index in taken):
                raise ValueError(
                    f"{name} takes {taken}; {POINTWISE[name].arity} numbers from {known.start} to "
                    f"{known.stop - 1} are needed"
                )
            if all(index < 0 for index in taken):
                raise ValueError(f"{name} takes constants alone")
            used.update(taken)
        unused = set(range(-len(self.constants), self.values + len(self.steps) - 1)) - used
        if unused:
            raise ValueError(f"nothing takes {', '.join(map(str, sorted(unused)))} of the expression")

    @property
    def names(self) -> tuple[str, ...]:
        """Letters for the values."""
        return tuple(NAMES[: self.values])

    def unit(self, form: Float) -> NetworkParams:
        """The params of its hardware in a format."""
        return _network(self, form)

    def reference(self, *operands: ndarray) -> ndarray:
        """The result in the floats of the operands."""
        values = list(operands)
        dtype = np.result_type(*operands)
        for name, taken in self.steps:
            given = (values[k] if k >= 0 else np.array(self.constants[-1 - k], dtype) for k in taken)
            values.append(POINTWISE[name].reference(*given))
        return values[-1]

    def __str__(self) -> str:
        """Nested calls; results that are used more than once have names before them."""
        uses = Counter(index for _, taken in self.steps for index in taken)
        texts, named = list(self.names), []
        for number, (name, taken) in enumerate(self.steps):
            given = (texts[k] if k >= 0 else f"{self.constants[-1 - k]:g}" for k in taken)
            text = f"{name}({', '.join(given)})"
            if uses[self.values + number] > 1:
                named.append(f"t{number} = {text}; ")
                text = f"t{number}"
            texts.append(text)
        return "".join((*named, texts[-1]))


@cache
def _network(formula: Formula, form: Float) -> NetworkParams:
    network = Composed(form, formula.names)
    for name, taken in formula.steps:
        given = (k if k >= 0 else network.constant(formula.constants[-1 - k]) for k in taken)
        network.apply(POINTWISE[name].unit(form), *given)
    return network.params


@dataclass
class FormulaBuilder:
    """Puts a formula together: `f.value(key)`, `f.constant(3.0)`, `f.apply("add", a, b)`.

    Values with one key are one value, equal constants and equal steps are one. What an operation makes of
    constants alone is computed here, in float64, and a choice by a constant is made.
    """

    _keys: list[object] = field(default_factory=list)
    _nodes: list[tuple[str, tuple[int, ...]] | int | float] = field(default_factory=list)

    def value(self, key: object) -> int:
        """The value with this key."""
        if key not in self._keys:
            self._keys.append(key)
        return self._node(self._keys.index(key))

    def constant(self, number: float) -> int:
        """A constant."""
        return self._node(float(number))

    def number(self, index: int) -> float | None:
        """The number of a constant; None for anything else."""
        node = self._nodes[index]
        return node if isinstance(node, float) else None

    def apply(self, name: str, *taken: int) -> int:
        """The result of an operation."""
        given = [self._nodes[index] for index in taken]
        if all(isinstance(number, float) for number in given):
            return self.constant(float(POINTWISE[name].reference(*map(np.array, given))))
        if name == "where" and isinstance(given[0], float):
            return taken[1] if given[0] else taken[2]
        return self._node((name, taken))

    def insert(self, formula: Formula, taken: Sequence[int]) -> int:
        """The result of a formula of these values."""
        made = list(taken)
        for name, operands in formula.steps:
            made.append(
                self.apply(
                    name, *(made[k] if k >= 0 else self.constant(formula.constants[-1 - k]) for k in operands)
                )
            )
        return made[-1]

    def _node(self, node: tuple[str, tuple[int, ...]] | int | float) -> int:
        for index, other in enumerate(self._nodes):
            if type(other) is type(node) and repr(other) == repr(node):
                return index
        self._nodes.append(node)
        return len(self._nodes) - 1

    def formula(self, result: int) -> tuple[Formula, list[object]] | float:
        """The formula of a result, and the keys of its values in order; a number where it is a constant."""
        if isinstance(number := self._nodes[result], float):
            return number
        if isinstance(number, int):
            result = self.apply("multiply", result, self.constant(1.0))
        taken_by = {k: node for k, node in enumerate(self._nodes) if isinstance(node, tuple)}
        needed = {result}
        for index in range(result, -1, -1):
            if index in needed and index in taken_by:
                needed.update(taken_by[index][1])
        order = sorted(needed)
        values = {k: node for k in order if isinstance(node := self._nodes[k], int)}
        constants = {k: node for k in order if isinstance(node := self._nodes[k], float)}
        steps = [k for k in order if k in taken_by]
        place = {k: index for index, k in enumerate([*values, *steps])}
        place |= {k: -1 - index for index, k in enumerate(constants)}
        found = Formula(
            values=len(values),
            constants=tuple(constants.values()),
            steps=tuple((taken_by[k][0], tuple(place[t] for t in taken_by[k][1])) for k in steps),
        )
        return found, [self._keys[node] for node in values.values()]
