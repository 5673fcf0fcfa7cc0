"""The logical graph: the computation of a model, without any decision about hardware.

A graph is a list of operations in order; each computes one value or several. A value is a matrix [rows,
features]. Its rows are the tokens of a pass, one row of them, or all positions of a text so far (`Shape`).
Heads, halves and slices are operations on features. Repeated layers are a `Repeat`: graphs that are alike
except for their constants.

An operation (`model.operations`, one file each) defines its shape law, its result in float64 (`reference`),
the exact result of the hardware (`exact`), what is quantised and how (`quantised`), and the kernels that
compute it (`bind`). `graph.interpret` runs a graph in either arithmetic. No operation knows another one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

from streamgen.artifact.packed import PackedRows
from streamgen.base.errors import GraphError
from streamgen.model.graph.heads import AttentionHeads
from streamgen.model.graph.run import Run
from streamgen.numbers.quantisation import IntegerWeight, Numbers
from streamgen.numbers.stored import StoredArray

if TYPE_CHECKING:
    from streamgen.gateware.pointwise import Formula

Rows = Literal["tokens", "positions", "one", "every"]
Padding = Literal["none", "alike", "own"]
Exact = Callable[..., Any]
Form = tuple[type, tuple[tuple[str, Hashable], ...]]
"""The form of an operation: a class, and by name the properties that alike operations share."""


@dataclass(frozen=True)
class Shape:
    """The shape of a value.

    features: the number of elements of a row. rows: "tokens" of a pass, "positions" of the text up to the
    pass's last token, "one" row of a pass, or "every": one row that stands for every token. kind: "real", or
    "ids", which are integers.
    """

    features: int
    rows: Rows = "tokens"
    kind: Literal["real", "ids"] = "real"

    def __str__(self) -> str:
        return f"{self.rows} x {self.features}" + (" ids" if self.kind == "ids" else "")


class Matmul(Protocol):
    """y = x @ weight.T + bias, as columns of multipliers compute it."""

    @property
    def weight(self) -> np.ndarray | StoredArray | IntegerWeight:
        """float32 [N, K], in memory or in a file, or integers on the grid of the hardware."""

    @property
    def bias(self) -> np.ndarray | None:
        """float32 [N]."""

    @property
    def extents(self) -> tuple[int, ...]:
        """N and K."""

    @property
    def integers(self) -> IntegerWeight:
        """The quantised weight; GraphError if it is not quantised."""

    @property
    def floats(self) -> np.ndarray:
        """The weight as numbers [N, K]; for a quantised weight the values of its integers."""

    @property
    def wanted(self) -> str | None:
        """The weight format that keeps the checkpoint's weights; None for floats, which no format keeps."""

    def is_fitted(self, numbers: Numbers, path: str) -> bool:
        """Whether its floats must be fitted to 4 bits, because they have no grid of their own."""

    def with_weight(self, weight: IntegerWeight) -> Operator:
        """The operation with integers instead of floats."""


class Operator(ABC):
    """The computation of an operation; subclasses are frozen dataclasses with constants as arrays.

    Passes read its traits, never its class. The default of each trait is right for every operation whose rows
    do not depend on each other; a trait allows a pass to do more with the operation.

    arity: the number of values that it reads. results: names of its values; () for one value with the
    operation's own name. layers: graphs that are walked one after the other in its place (`Repeat`).

    mixes_tokens: whether a row of a result depends on other rows. row_wise: whether a row of each result
    depends only on the same row of the inputs, independent of its place in the text, and `bind` accepts any
    number of rows; rows that nothing reads are then not computed. takes_last_row: whether the result is the
    last row of the pass. keeps_state: whether rows of all positions stay in memory from pass to pass
    (`Site.caches`); the result is then read in the phase that fills it. reads_source: whether it reads rows
    that the host writes before a text begins. is_constant: whether the result is known before a run.

    padding: of rows, so that any size can be tiled. "none": `bind` takes and returns rows without padding.
    "alike": inputs and results have the same padding, which holds zeros or the operation's results for zeros.
    "own": each value has its own, and `bind` cuts and fills rows (`Site.fit`, `Site.extent`).
    """

    arity: ClassVar[int] = 1
    results: ClassVar[tuple[str, ...]] = ()
    layers: tuple[LogicalGraph, ...] = ()
    mixes_tokens: ClassVar[bool] = False
    row_wise: ClassVar[bool] = False
    takes_last_row: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = False
    reads_source: ClassVar[bool] = False
    is_constant: ClassVar[bool] = False
    padding: Padding = "none"

    @property
    def elementwise(self) -> str | Formula | None:
        """The unit of `kernels.elementwise`, or the expression, that computes each element, if an element of
        the result depends only on the same element of each input."""
        return None

    @property
    def matmul(self) -> Matmul | None:
        """The product of the only input that `Site.matmul` computes."""
        return None

    @property
    def attention(self) -> AttentionHeads | None:
        """The heads, if the operation is an attention."""
        return None

    @property
    def vocabulary(self) -> int | None:
        """The limit of the ids that it looks up."""
        return None

    def held(self, features: int) -> int:
        """Elements of a row of `features` that it takes before it gives the first element of the result."""
        return 0

    def pieces(self, tile: int, operand: int = 0) -> int:
        """The number of pieces in which rows of an operand come if a matmul makes them in tiles of that many
        features: the first pieces of all rows before the second ones; 1 if whole rows are taken."""
        return 1

    @abstractmethod
    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        """Shapes of the results; GraphError if the inputs do not fit."""

    @abstractmethod
    def reference(self, run: Run, *inputs: np.ndarray) -> Any:
        """The result, or a tuple of several results, in the arithmetic of the run: floats of `run.dtype`."""

    @abstractmethod
    def exact(self) -> Exact:
        """A function of (run, *inputs) that computes in the arithmetic of the hardware: f24 values as
        float32."""

    def quantised(self, numbers: Numbers, path: str) -> Operator:
        """The operation with its weights on the grid of the hardware; ValueError if that is impossible."""
        return self

    def packed(self, parts: Mapping[str, PackedRows]) -> Operator:
        """The operation with records in the place of its table. parts: by format, "f24" or
        "i8", the rows that are stored of the table."""
        raise GraphError(f"{self} has no table")

    def bind(self, site: Any, *inputs: Any) -> tuple[Any, ...]:
        """Ask the site (`operations.site`) for the kernels that compute the operation in one phase; return
        the results.

        Raises GraphError for an operation that no kernel computes.
        """
        raise GraphError(f"no kernel computes {self}")

    def form(self) -> Form:
        """The common part of operations that are alike: everything except the values of their constants."""
        return _fields(self)


def _form(value: Any) -> Hashable:
    if isinstance(value, np.ndarray | StoredArray):
        return "array", value.shape
    if isinstance(value, IntegerWeight):
        return "integers", value.shape, value.format, value.group, value.grouped, value.minimums
    if is_dataclass(value):
        return _fields(value)
    found: Hashable = value
    return found


def _fields(value: Any) -> Form:
    return type(value), tuple((f.name, _form(getattr(value, f.name))) for f in fields(value))


@dataclass(frozen=True)
class Input:
    """An input of a graph."""

    name: str
    features: int
    kind: Literal["real", "ids"] = "real"
    rows: Rows = "tokens"

    @property
    def shape(self) -> Shape:
        return Shape(self.features, self.rows, self.kind)

    def __str__(self) -> str:
        rows, ids = f" a row of {self.rows}", " ids" if self.kind == "ids" else ""
        return f"{self.name}: {self.features}{ids}" + (rows if self.rows != "tokens" else "")


@dataclass(frozen=True)
class Operation:
    """name = op(inputs). where: the place in the model, for messages."""

    name: str
    op: Operator
    inputs: tuple[str, ...]
    where: str = field(default="", compare=False)

    @property
    def values(self) -> tuple[str, ...]:
        """Names of the values that it computes."""
        results = self.op.results
        return tuple(f"{self.name}_{result}" for result in results) if results else (self.name,)

    @property
    def place(self) -> str:
        """The operation as messages name it."""
        return f"{self.name!r}" + (f" ({self.where})" if self.where else "")


@dataclass(frozen=True)
class LogicalGraph:
    """Operations in order. The constructor verifies (GraphError) that names are unique and defined before
    their use, that shapes fit, that nothing is unused, and that an operation computes each output.

    context: positions that a text may have; 0 if nothing depends on positions. requested: outputs that a run
    writes only on request. tokens: of each sequence, if the graph holds for one number alone, else 0. source:
    most rows of the source of a text; 0 for none."""

    inputs: tuple[Input, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[str, ...]
    name: str = "module"
    context: int = 0
    requested: frozenset[str] = frozenset()
    tokens: int = 0
    source: int = 0

    def __post_init__(self) -> None:
        if self.context < 0:
            raise GraphError(f"the context is {self.context} positions; 0 or more are needed")
        _ = self.shapes  # this checks every operation
        used = {*self.outputs}.union(*(operation.inputs for operation in self.operations))
        computed = {name for operation in self.operations for name in operation.values}
        for name in (*self.outputs, *self.requested):
            if name not in computed:
                raise GraphError(f"no operation computes the output {name!r}")
        if len(set(self.outputs)) != len(self.outputs) or not self.outputs:
            raise GraphError(f"the outputs are {self.outputs}; one or more different names are needed")
        makers = [(value.name,) for value in self.inputs] + [o.values for o in self.operations]
        if unused := [names[0] for names in makers if used.isdisjoint(names)]:
            raise GraphError(f"nothing uses {', '.join(map(repr, unused))}")

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """The shape of every value."""
        shapes: dict[str, Shape] = {}

        def add(name: str, shape: Shape) -> None:
            if not name.isidentifier() or not name.isascii():
                raise GraphError(
                    f"{name!r} is not a name; a name has letters, digits and _, and no digit first"
                )
            if name in shapes:
                raise GraphError(f"the name {name!r} is given twice")
            if shape.features < 1:
                raise GraphError(f"{name!r} has {shape.features} features; at least 1 is needed")
            shapes[name] = shape

        for value in self.inputs:
            add(value.name, value.shape)
        for operation in self.operations:
            for name in operation.inputs:
                if name not in shapes:
                    raise GraphError(f"{operation.place} uses {name!r}, which is not defined before it")
            if len(operation.inputs) != operation.op.arity:
                raise GraphError(f"{operation.place}: {operation.op} takes {operation.op.arity} values")
            try:
                result_shapes = operation.op.shapes(*(shapes[name] for name in operation.inputs))
            except GraphError as error:
                raise GraphError(f"{operation.place}: {error}") from None
            for name, shape in zip(operation.values, result_shapes, strict=True):
                add(name, shape)
        return shapes

    @cached_property
    def vocabularies(self) -> Mapping[str, int]:
        """By name of an input that is ids: the number of rows of the smallest table that it looks up."""
        rows: dict[str, int] = {}
        names = {value.name for value in self.inputs if value.kind == "ids"}
        for operation in self.operations:
            for name in names.intersection(operation.inputs):
                if (size := operation.op.vocabulary) is not None:
                    rows[name] = min(size, rows.get(name, size))
        return rows

    def features(self, name: str) -> int:
        """The number of elements of a row of a value."""
        return self.shapes[name].features

    @cached_property
    def by_name(self) -> Mapping[str, Operation]:
        """Operations by name."""
        return {operation.name: operation for operation in self.operations}

    def needed(self, names: Collection[str]) -> tuple[Operation, ...]:
        """The operations that some of these values depend on."""
        wanted, needed = set(names), []
        for operation in reversed(self.operations):
            if not wanted.isdisjoint(operation.values):
                wanted.update(operation.inputs)
                needed.append(operation)
        return tuple(reversed(needed))

    def walk(self, prefix: str = "") -> Iterator[tuple[str, Operation]]:
        """Every operation without layers, with its path: `head`, `layers[3].q`."""
        for operation in self.operations:
            if operation.op.layers:
                for index, layer in enumerate(operation.op.layers):
                    yield from layer.walk(f"{prefix}{operation.name}[{index}].")
            else:
                yield f"{prefix}{operation.name}", operation

    def matmuls(self) -> Iterator[tuple[str, Matmul]]:
        """The matmul of every operation that has one, with its path."""
        matmuls = ((path, operation.op.matmul) for path, operation in self.walk())
        return ((path, matmul) for path, matmul in matmuls if matmul is not None)

    @property
    def mixes_tokens(self) -> bool:
        """Whether all tokens of a sequence belong together, in one pass or through the state
        between passes."""
        return any(operation.op.mixes_tokens for _, operation in self.walk())

    def op(self, path: str) -> Any:
        """The `op` of the operation at a path; GraphError if there is none."""
        for name_path, operation in self.walk():
            if name_path == path:
                return operation.op
        raise GraphError(f"there is no operation {path!r}; there are {', '.join(n for n, _ in self.walk())}")

    def map(self, change: Callable[[str, Operation], Operator], prefix: str = "") -> LogicalGraph:
        """The same graph with the `op` of every operation changed; `change` gets the path and the
        operation."""

        def changed(operation: Operation) -> Operator:
            path = f"{prefix}{operation.name}"
            op = operation.op
            return op.map(change, path) if isinstance(op, Repeat) else change(path, operation)

        return replace(self, operations=tuple(replace(o, op=changed(o)) for o in self.operations))

    def quantised(self, numbers: Numbers) -> LogicalGraph:
        """The graph with its weights on the grids of the hardware. ValueError names a weight for which that
        is impossible."""

        def one(path: str, operation: Operation) -> Operator:
            try:
                return operation.op.quantised(numbers, path)
            except ValueError as error:
                where = f" ({operation.where})" if operation.where else ""
                raise ValueError(f"weight of {path}{where}: {error}") from error

        return self.map(one)

    def form(self) -> Hashable:
        """The common part of graphs that are alike."""
        return self.inputs, tuple((o.name, o.op.form(), o.inputs) for o in self.operations), self.outputs

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self, indent: str = "") -> Iterator[str]:
        yield f"{indent}inputs " + ", ".join(map(str, self.inputs))
        for operation in self.operations:
            results = ", ".join(f"{name}: {self.features(name)}" for name in operation.values)
            where = f"  # {operation.where}" if operation.where else ""
            yield f"{indent}{results} = {operation.op}({', '.join(operation.inputs)}){where}"
            if isinstance(operation.op, Repeat):
                for layer in operation.op.layers[: operation.op.period]:
                    yield from layer._lines(indent + "  ")
        yield f"{indent}outputs " + ", ".join(self.outputs)


@dataclass(frozen=True, eq=False)
class Repeat(Operator):
    """Layers, one after the other: the outputs of a layer are the inputs of the next, in order.

    Layers that are `period` apart are alike. The first `period` layers are the body of the repetition, which
    is walked once for each complete copy. The `rest` after the last complete copy is the beginning of a body.
    """

    layers: tuple[LogicalGraph, ...] = field()  # without the default of `Operator`

    def __post_init__(self) -> None:
        if not self.layers:
            raise GraphError("a repetition needs at least one layer")
        for index, layer in enumerate(self.layers):
            if (outputs := len(layer.outputs)) != len(layer.inputs):
                raise GraphError(f"layers[{index}] has {len(layer.inputs)} inputs and {outputs} outputs")
            for value, output in zip(layer.inputs, layer.outputs, strict=True):
                if (shape := layer.shapes[output]) != value.shape:
                    raise GraphError(
                        f"layers[{index}] gives {shape} for {value.name!r}; the next one takes {value.shape}"
                    )
            if tuple(v.shape for v in layer.inputs) != tuple(v.shape for v in self.layers[0].inputs):
                raise GraphError(f"layers[{index}] takes other values than layers[0]")

    @property
    def arity(self) -> int:  # type: ignore[override]
        return len(self.layers[0].inputs)

    @property
    def results(self) -> tuple[str, ...]:  # type: ignore[override]
        return () if self.arity == 1 else tuple(value.name for value in self.layers[0].inputs)

    @cached_property
    def period(self) -> int:
        """The number of layers of the body: the fewest after which all layers repeat, or all layers if these
        are less than two bodies."""
        forms = [layer.form() for layer in self.layers]
        count = len(forms)
        return next((p for p in range(1, count // 2 + 1) if forms[p:] == forms[:-p]), count)

    @property
    def walks(self) -> int:
        """The number of walks of the body."""
        return len(self.layers) // self.period

    @property
    def rest(self) -> tuple[LogicalGraph, ...]:
        """The layers after the last complete body."""
        return self.layers[self.walks * self.period :]

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        for given, value in zip(inputs, self.layers[0].inputs, strict=True):
            if given != value.shape:
                raise GraphError(f"layers take {value.shape} as {value.name!r}; they are given {given}")
        return inputs

    def map(self, change: Callable[[str, Operation], Operator], path: str) -> Repeat:
        """The repetition with its layers changed."""
        layers = enumerate(self.layers)
        return replace(self, layers=tuple(layer.map(change, f"{path}[{k}].") for k, layer in layers))

    def reference(self, run: Run, *inputs: np.ndarray) -> Any:
        raise AssertionError("interpreters walk the layers themselves")

    def exact(self) -> Exact:
        raise AssertionError("interpreters walk the layers themselves")

    def form(self) -> Form:
        return Repeat, (("layers", tuple(layer.form() for layer in self.layers)),)

    def __str__(self) -> str:
        return f"repeat[{self.walks} x {self.period}" + (f" + {len(self.rest)}]" if self.rest else "]")
