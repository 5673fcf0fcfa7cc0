"""A torch module becomes a LogicalGraph: export without decomposition, then one operation at a time.

Calls on parameters alone are folded; calls that only rename a value (dropout in eval mode, views that keep
the last dimension, copies, casts to floats) disappear, and so do calls whose results nothing uses; the rest
must be in the table below. What is not is collected, and reported together (see `trace`).

    a - b    a + (-1 · b)        a / c    a · (1 / c), c a constant       x ** 2    x · x

Each product and sum is rounded to f24: a quotient is off by the roundings of 1 / c and of the product.
"""

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from streamgen.errors import GraphError
from streamgen.frontend.trace import (
    GELU,
    UNARY,
    Constants,
    Unsupported,
    aten,
    export_program,
    module_path,
    report,
    same_tokens,
    shape,
    where,
)
from streamgen.graph.logical import LogicalGraph, Operation, Operator, Value
from streamgen.operations import Binary, Constant, Linear, Scalar, Unary

__all__ = ["import_module"]

SUMS = {aten.add.Tensor: 1, aten.add_.Tensor: 1, aten.sub.Tensor: -1, aten.sub_.Tensor: -1}
BINARY = {*SUMS, aten.mul.Tensor, aten.mul_.Tensor, aten.div.Tensor, aten.div_.Tensor, aten.rsub.Scalar}
POWERS = {aten.pow.Tensor_Scalar, aten.pow_.Scalar, aten.square.default, aten.square_.default}
NEGATIONS = {aten.neg.default, aten.neg_.default}
COPIES = {aten.clone.default, aten.to.dtype, aten.to.dtype_layout, aten._to_copy.default}
RENAMES = {
    aten.alias.default,
    aten.contiguous.default,
    aten.detach.default,
    aten.dropout.default,
    aten.flatten.using_ints,
    aten.reshape.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.unsqueeze.default,
    aten.view.default,
    *COPIES,
}
KNOWN = {aten.linear.default, aten.gelu.default, operator.getitem}
KNOWN |= UNARY.keys() | BINARY | POWERS | NEGATIONS | RENAMES
SUPPORTED = (
    "Linear; ReLU, Sigmoid, SiLU, Tanh, GELU; +, - and * of two tensors of one shape, or of a tensor with a "
    "scalar or a parameter of shape [features], / by these; negation and squares; Dropout in eval mode; "
    "copies, casts to floats; views that keep the last dimension"
)


def import_module(module: torch.nn.Module, example_inputs: Sequence[torch.Tensor]) -> LogicalGraph:
    """The graph of a module for inputs of these shapes; the leading dimensions of each are its tokens.

    Raises TypeError or ValueError when the module does not run on the inputs or a weight is not finite,
    UnsupportedOperationError with every operation that cannot be compiled, GraphError when an output is
    not computed or an input not used.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module is {type(module).__name__}; a torch.nn.Module is needed")
    given = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    for position, tensor in enumerate(given):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"example input {position} is {type(tensor).__name__}; a torch.Tensor is needed")
        if not tensor.is_floating_point():
            raise TypeError(f"example input {position} is {tensor.dtype}; it must be floating-point")
        if not tensor.ndim or not tensor.numel():
            raise ValueError(f"example input {position} has shape {list(tensor.shape)}; it must hold tokens")
    if not given:
        raise ValueError("no example inputs are given")
    inputs = tuple(tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in given)
    tokens = {tensor.numel() // tensor.shape[-1] for tensor in inputs}
    if len(tokens) != 1:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in inputs)
        raise ValueError(f"the inputs must hold the same number of tokens; their shapes are {shapes}")
    return _Importer(module, _export(module, inputs)).run()


def _export(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> torch.export.ExportedProgram:
    try:
        with torch.no_grad():
            module(*inputs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in inputs)
        raise ValueError(f"the module does not run on inputs of shape {shapes}: {error}") from error
    return export_program(module, inputs)


class _Importer:
    """One walk over the nodes of an exported program."""

    def __init__(self, module: torch.nn.Module, program: torch.export.ExportedProgram) -> None:
        self.program = program
        self.constants = Constants(module, program)
        self.values: dict[Node, str] = {}  # computed at run time -> name of the value
        self.memory: dict[Node, Node] = {}  # of a view or an in-place result, whose memory it is
        self.live = _live(list(program.graph.nodes))
        self.failed: set[Node] = set()  # reported, or following one that is
        self.inputs: list[Value] = []
        self.operations: list[Operation] = []
        self.names: set[str] = set()
        self.problems: list[str] = []

    def run(self) -> LogicalGraph:
        outputs: list[str] = []
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "call_function" and node in self.live:
                self._call(node)
            elif node.op == "output":
                outputs = self._outputs(node)
        report(self.problems, SUPPORTED)
        return LogicalGraph(tuple(self.inputs), _alive(self.operations, outputs), tuple(outputs))

    def _placeholder(self, node: Node) -> None:
        if not self.constants.placeholder(node):
            self.values[node] = self._name(node.name)
            self.inputs.append(Value(self.values[node], shape(node)[-1]))

    def _outputs(self, node: Node) -> list[str]:
        names = []
        for position, result in enumerate(node.args[0]):
            if result in self.values:
                name = self.values[result]
                if name in {value.name for value in self.inputs}:  # comes out as it went in
                    name = self._add(node, f"{name}_returned", Scalar("scale", 1.0), name)
                names.append(name)
            elif result not in self.failed:
                raise GraphError(f"output {position} of the module does not depend on its inputs")
        return names

    def _call(self, node: Node) -> None:
        """Append the operation of one call, or note why it cannot be."""
        target: Any = node.target
        sources = node.all_input_nodes
        if any(source in self.failed for source in sources):  # still named, if it is wrong in any case
            self.failed.add(node)
            if target not in KNOWN:
                self.problems.append(f"{where(node)}: {target}")
            return
        try:
            if all(source in self.constants.tensors for source in sources):
                self.constants.fold(node)
            elif target == aten.linear.default:
                self._linear(node)
            elif target in UNARY:
                self._append(node, node.name, Unary(UNARY[target]), (self.values[node.args[0]],))
            elif target == aten.gelu.default:
                function = GELU[node.kwargs.get("approximate", "none")]
                self._append(node, node.name, Unary(function), (self.values[node.args[0]],))
            elif target in BINARY:
                self._binary(node)
            elif target in NEGATIONS:
                self._append(node, node.name, Scalar("scale", -1.0), (self.values[node.args[0]],))
            elif target in POWERS:
                if (power := (*node.args, 2)[1]) != 2:
                    raise Unsupported(f"its power is {power}, only 2 can be compiled")
                self._append(node, node.name, Binary("mul"), (self.values[node.args[0]],) * 2)
            elif target in RENAMES:
                self._rename(node)
            else:
                raise Unsupported()
        except Unsupported as reason:
            self.failed.add(node)
            text = f": {reason}" if reason.args else ""
            self.problems.append(f"{where(node)}: {target}{text}")

    def _linear(self, node: Node) -> None:
        x, weight_node, bias_node = (*node.args, None)[:3]
        if x not in self.values or any(p in self.values for p in (weight_node, bias_node)):
            raise Unsupported("its weight or bias is computed at run time")
        weight = self.constants.array(node, weight_node)
        bias = None if bias_node is None else self.constants.array(node, bias_node)
        name = _identifier(module_path(node)[0]) or node.name
        self._append(node, name, Linear(weight, bias, self.constants.grid(weight_node)), (self.values[x],))

    def _binary(self, node: Node) -> None:
        a, b = node.args[:2]
        target: Any = node.target
        alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
        if target == aten.rsub.Scalar:
            a, b, sign = b, a, -1
        else:
            sign = SUMS.get(target, 1)
        if target in (aten.div.Tensor, aten.div_.Tensor):
            names = self._operand(node, a), self._operand(node, b, lambda c: self._inverse(node, c))
        else:
            names = self._operand(node, a), self._scaled(node, b, sign * alpha)
        operation = "add" if target in SUMS or target == aten.rsub.Scalar else "mul"
        self._append(node, node.name, Binary(operation), names)

    def _scaled(self, node: Node, operand: Any, factor: float) -> str:
        """Name of an operand times a number."""
        if factor == 1:
            return self._operand(node, operand)
        if operand not in self.values:
            return self._operand(node, operand, lambda c: c * np.float32(factor))
        return self._add(
            node, f"{node.name}_scaled", Scalar("scale", float(factor)), self._operand(node, operand)
        )

    def _inverse(self, node: Node, constant: np.ndarray) -> np.ndarray:
        if not constant.all():
            raise Unsupported("it divides by 0")
        return (1 / constant.astype(np.float64)).astype(np.float32)

    def _operand(
        self, node: Node, operand: Any, change: Callable[[np.ndarray], np.ndarray] | None = None
    ) -> str:
        """Name of a value of the shape of the result; scalars and parameters become constants, changed."""
        extents = shape(node)
        if operand in self.values:
            if change is not None:
                raise Unsupported("it divides by what is computed at run time")
            if not same_tokens(shape(operand), extents):
                raise Unsupported(f"it broadcasts {list(shape(operand))} to {list(extents)}")
            return self.values[operand]
        if isinstance(operand, Node):
            array = self.constants.array(node, operand)
            name = _identifier(self.constants.paths.get(operand, operand.name))
        else:
            array = np.asarray(operand, np.float32)
            name = f"{node.name}_constant"
        if array.ndim and array.size != array.shape[-1]:
            raise Unsupported(f"a constant of shape {list(array.shape)} differs from token to token")
        array = array if change is None else change(array)
        return self._add(node, name, Constant(np.broadcast_to(array.reshape(-1), extents[-1:]).copy()))

    def _rename(self, node: Node) -> None:
        source: Any = node.args[0]
        if node.target == aten.dropout.default and node.args[2]:
            raise Unsupported("it is in training mode; call module.eval() first")
        if not (dtype := node.meta["val"].dtype).is_floating_point:
            raise Unsupported(f"it makes {dtype} of floats")
        before, after = shape(source), shape(node)
        if not same_tokens(before, after):
            raise Unsupported(f"it turns {list(before)} into {list(after)}; the last dimension must stay")
        self.values[node] = self.values[source]
        copied = node.target == aten.clone.default or dtype != source.meta["val"].dtype
        self.memory[node] = node if copied else self.memory.get(source, source)

    def _append(self, node: Node, name: str, op: Operator, inputs: tuple[str, ...]) -> None:
        """Add the operation that computes the value of `node`."""
        target: Any = node.target
        changed: Any = node.args[0]
        memory = self.memory.get(changed, changed)
        in_place = target._schema.is_mutable
        if in_place and (memory not in self.values or memory.op == "placeholder"):
            raise Unsupported("it changes an input or a parameter in place")
        self.values[node] = self._add(node, name, op, *inputs)
        if in_place:  # every view of the tensor sees the change
            self.memory[node] = memory
            for other in [n for n in self.values if self.memory.get(n, n) is memory]:
                self.values[other] = self.values[node]

    def _add(self, node: Node, name: str, op: Operator, *inputs: str) -> str:
        """Add an operation; its name, which is another when this one is taken."""
        name = self._name(name)
        place = "" if node.op == "output" else where(node)
        self.operations.append(Operation(name, op, inputs, place))
        return name

    def _name(self, wanted: str) -> str:
        """`wanted`, or with a number after it when it is taken."""
        name, number = wanted, 0
        while name in self.names:
            number += 1
            name = f"{wanted}_{number}"
        self.names.add(name)
        return name


def _live(nodes: Sequence[Node]) -> set[Node]:
    """Nodes whose value an output or a change in place is made of."""
    found: set[Node] = set()
    for node in reversed(nodes):
        schema = getattr(node.target, "_schema", None)
        if node.op == "output" or node in found or (schema is not None and schema.is_mutable):
            found.update((node, *node.all_input_nodes))
    return found


def _alive(operations: Sequence[Operation], outputs: Sequence[str]) -> tuple[Operation, ...]:
    """The operations that some output depends on."""
    needed = set(outputs)
    kept = []
    for operation in reversed(operations):
        if operation.name in needed:
            needed.update(operation.inputs)
            kept.append(operation)
    return tuple(reversed(kept))


def _identifier(path: str) -> str:
    name = re.sub(r"\W", "_", path, flags=re.ASCII)
    return f"m_{name}" if name[:1].isdigit() else name
