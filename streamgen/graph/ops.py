"""The logical graph: what a model computes, before anything is said about hardware.

A graph is a list of operations in order, each making one value. A value is a matrix [tokens, features];
all values of a graph have the same number of tokens, whatever leading dimensions the model gave them.
`reference` runs a graph in float64: the meaning that quantised hardware approaches.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from streamgen.errors import GraphError
from streamgen.quantisation import GroupGrid

__all__ = [
    "BINARY_OPERATIONS",
    "UNARY_FUNCTIONS",
    "Binary",
    "Constant",
    "Linear",
    "LogicalGraph",
    "Op",
    "Operation",
    "Unary",
    "Value",
]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -x))


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1.0 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2.0)))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


UNARY_FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "tanh": np.tanh,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}
BINARY_OPERATIONS = {"add": np.add, "mul": np.multiply}


@dataclass(frozen=True, eq=False)
class Linear:
    """y = x @ weight.T + bias; weight float32 [N, K], bias float32 [N].

    grid: the weight's own 4-bit grid, when its checkpoint had one.
    """

    weight: np.ndarray
    bias: np.ndarray | None = None
    grid: GroupGrid | None = None
    arity = 1

    def __post_init__(self) -> None:
        if self.weight.ndim != 2 or not self.weight.size:
            raise GraphError(f"the weight of a Linear has shape {list(self.weight.shape)}; [N, K] is needed")
        if self.bias is not None and self.bias.shape != self.weight.shape[:1]:
            raise GraphError(
                f"a Linear has weight {list(self.weight.shape)} and bias {list(self.bias.shape)}; "
                f"[{self.weight.shape[0]}] is needed"
            )
        if self.grid is not None and self.grid.codes.shape != self.weight.shape:
            raise GraphError(
                f"a Linear has weight {list(self.weight.shape)} and a grid of {list(self.grid.codes.shape)}"
            )

    def features(self, *inputs: int) -> int:
        """Features of the result; GraphError when the input does not fit."""
        N, K = self.weight.shape
        if inputs != (K,):
            raise GraphError(f"a Linear of weight [{N}, {K}] takes {K} features, it is given {inputs[0]}")
        return N

    def reference(self, x: np.ndarray) -> np.ndarray:
        """float64 result."""
        y = x @ self.weight.astype(np.float64).T
        return y if self.bias is None else y + self.bias.astype(np.float64)

    def __str__(self) -> str:
        N, K = self.weight.shape
        extras = [] if self.bias is None else ["bias"]
        extras += [] if self.grid is None else [f"grid of {self.grid.group}"]
        return f"linear[{', '.join([f'{K} -> {N}', *extras])}]"


@dataclass(frozen=True)
class Unary:
    """An elementwise function: one of UNARY_FUNCTIONS."""

    function: str
    arity = 1

    def __post_init__(self) -> None:
        if self.function not in UNARY_FUNCTIONS:
            raise GraphError(f"there is no unary function {self.function!r}; {', '.join(UNARY_FUNCTIONS)}")

    def features(self, *inputs: int) -> int:
        """Features of the result."""
        return inputs[0]

    def reference(self, x: np.ndarray) -> np.ndarray:
        """float64 result."""
        return UNARY_FUNCTIONS[self.function](x)

    def __str__(self) -> str:
        return self.function


@dataclass(frozen=True)
class Binary:
    """An elementwise operation on two values: one of BINARY_OPERATIONS."""

    operation: str
    arity = 2

    def __post_init__(self) -> None:
        if self.operation not in BINARY_OPERATIONS:
            raise GraphError(
                f"there is no binary operation {self.operation!r}; {', '.join(BINARY_OPERATIONS)}"
            )

    def features(self, *inputs: int) -> int:
        """Features of the result; GraphError when the operands differ."""
        if inputs[0] != inputs[1]:
            raise GraphError(f"{self.operation} takes two values of the same features, not {inputs}")
        return inputs[0]

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """float64 result."""
        return BINARY_OPERATIONS[self.operation](a, b)

    def __str__(self) -> str:
        return self.operation


@dataclass(frozen=True, eq=False)
class Constant:
    """The same float32 vector [features] for every token."""

    value: np.ndarray
    arity = 0

    def __post_init__(self) -> None:
        if self.value.ndim != 1 or not self.value.size:
            raise GraphError(f"a constant has shape {list(self.value.shape)}; [features] is needed")

    def features(self, *inputs: int) -> int:
        """Features of the value."""
        return int(self.value.shape[0])

    def reference(self) -> np.ndarray:
        """float64 value [1, features]: broadcasts over tokens."""
        return self.value.astype(np.float64)[None]

    def __str__(self) -> str:
        return f"constant[{self.value.shape[0]}]"


Op = Linear | Unary | Binary | Constant


@dataclass(frozen=True)
class Value:
    """An input of a graph."""

    name: str
    features: int


@dataclass(frozen=True)
class Operation:
    """name = op(inputs); `where` is the place in the model, for messages."""

    name: str
    op: Op
    inputs: tuple[str, ...]
    features: int
    where: str = field(default="", compare=False)

    def __str__(self) -> str:
        place = f"  # {self.where}" if self.where else ""
        return f"{self.name}: {self.features} = {self.op}({', '.join(self.inputs)}){place}"


@dataclass(frozen=True)
class LogicalGraph:
    """Operations in order; verified when made (GraphError): names once and before their use, features
    that fit, nothing without effect, outputs that an operation computes."""

    inputs: tuple[Value, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[str, ...]

    def __post_init__(self) -> None:
        features: dict[str, int] = {}
        used = set(self.outputs)
        defined: list[Value | Operation] = [*self.inputs, *self.operations]
        for value in defined:
            if not value.name.isidentifier() or not value.name.isascii():
                raise GraphError(f"{value.name!r} is not a name: letters, digits and _ make one")
            if value.name in features:
                raise GraphError(f"the name {value.name!r} is given twice")
            if value.features < 1:
                raise GraphError(f"{value.name!r} has {value.features} features; at least 1 is needed")
            if isinstance(value, Operation):
                used.update(value.inputs)
                self._check(value, features)
            features[value.name] = value.features
        computed = {operation.name for operation in self.operations}
        for name in self.outputs:
            if name not in computed:
                raise GraphError(f"no operation computes the output {name!r}")
        if len(set(self.outputs)) != len(self.outputs) or not self.outputs:
            raise GraphError(f"the outputs are {self.outputs}; one or more different names are needed")
        unused = [name for name in features if name not in used]
        if unused:
            raise GraphError(f"nothing uses {', '.join(map(repr, unused))}")

    @staticmethod
    def _check(operation: Operation, features: dict[str, int]) -> None:
        place = f"{operation.name!r}" + (f" ({operation.where})" if operation.where else "")
        for name in operation.inputs:
            if name not in features:
                raise GraphError(f"{place} uses {name!r}, which is not defined before it")
        if len(operation.inputs) != operation.op.arity:
            raise GraphError(f"{place}: {operation.op} takes {operation.op.arity} values")
        try:
            expected = operation.op.features(*(features[name] for name in operation.inputs))
        except GraphError as error:
            raise GraphError(f"{place}: {error}") from None
        if operation.features != expected:
            raise GraphError(f"{place} has {expected} features, {operation.features} are stated")

    def reference(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Run in float64: an array [tokens, features] per input, one per output."""
        if len(arrays) != len(self.inputs):
            raise ValueError(f"the graph has {len(self.inputs)} inputs, {len(arrays)} arrays are given")
        values: dict[str, np.ndarray] = {}
        tokens = arrays[0].shape[0] if arrays and arrays[0].ndim else 0
        for value, array in zip(self.inputs, arrays, strict=True):
            if array.shape != (tokens, value.features):
                raise ValueError(
                    f"input {value.name!r} has shape {list(array.shape)}; "
                    f"[{tokens}, {value.features}] is needed"
                )
            values[value.name] = array.astype(np.float64)
        for operation in self.operations:
            values[operation.name] = operation.op.reference(*(values[name] for name in operation.inputs))
        return tuple(
            np.broadcast_to(values[name], (tokens, values[name].shape[1])).copy() for name in self.outputs
        )

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield "inputs " + ", ".join(f"{value.name}: {value.features}" for value in self.inputs)
        yield from (str(operation) for operation in self.operations)
        yield "outputs " + ", ".join(self.outputs)
