"""One walk over the calls of an exported program: each becomes operations, or is named in one error.

Calls on parameters alone are folded; calls that only move elements (views, transposes, slices, copies, casts
to floats, dropout in eval mode) are carried out on indices (`elements`); calls whose results nothing uses
disappear. All others must be in the tables of `arithmetic`, `linears`, `norms` and `self_attention`.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from streamgen.errors import GraphError
from streamgen.frontend import arithmetic, linears, norms, self_attention
from streamgen.frontend.draft import Draft
from streamgen.frontend.in_place import memory
from streamgen.frontend.origins import MOVES, RENAMES
from streamgen.frontend.trace import Constants, Unsupported, aten, report, shape, where
from streamgen.graph.logical import Input, LogicalGraph, Operation
from streamgen.operations import Binary, Constant, Norm, Scalar

__all__ = ["Importer"]

CALLS: dict[Any, Callable[[Draft, Node], None]] = {
    **arithmetic.CALLS,
    **linears.CALLS,
    **norms.CALLS,
    **self_attention.CALLS,
}
MORE_MOVES = {
    aten.expand_as.default,
    aten.flip.default,
    aten.hstack.default,
    aten.matrix_H.default,
    aten.mH.default,
    aten.numpy_T.default,
    aten.reshape_as.default,
    aten.squeeze.dims,
    aten.tensor_split.indices,
    aten.tensor_split.sections,
    aten.unsafe_chunk.default,
    aten.view_as.default,
}
MOVED = (MOVES | RENAMES | MORE_MOVES) - CALLS.keys()
VIEWS = {
    aten.view.default: aten.reshape.default,
    aten.view_as.default: aten.reshape_as.default,
}  # indices may lie in another order than what they stand for
ALIKE = {
    aten.flatten.using_ints,
    aten.reshape.default,
    aten.unflatten.int,
    aten.unsqueeze.default,
    aten.view.default,
}
SUPPORTED = (
    "Linear and x @ W; ReLU, Sigmoid, SiLU, Tanh, GELU; +, - and * of two tensors of one shape, or of one "
    "with a scalar or a parameter of shape [features], / by these; negation and squares; LayerNorm, RMSNorm "
    "and softmax of the last dimension; attention over the tokens given, with or without a constant mask; "
    "slices and concatenation of features, views and transposes that leave rows of features whole; Dropout "
    "in eval mode; copies, casts to floats"
)


class Importer:
    """constants: of the program, which may share arrays with another's. rows: tokens of each input."""

    def __init__(self, program: torch.export.ExportedProgram, constants: Constants, rows: int) -> None:
        self.program = program
        self.draft = Draft(constants, rows)
        self.live = _live(list(program.graph.nodes))
        self.failed: set[Node] = set()  # reported, or following one that is
        self.inputs: list[Input] = []
        self.problems: dict[Node, str] = {}

    def run(self) -> tuple[LogicalGraph, list[str | None]]:
        """The graph, and for each result of the module the name of the output, None for one that is none."""
        results: list[str | None] = []
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "call_function" and node in self.live:
                self._call(node)
            elif node.op == "output":
                results = self._outputs(node)
        order = {node: index for index, node in enumerate(self.program.graph.nodes)}
        report([self.problems[node] for node in sorted(self.problems, key=order.__getitem__)], SUPPORTED)
        outputs = tuple(name for name in results if name is not None)
        operations = _alive(_scaled_norms(_alive(self.draft.operations, outputs), outputs), outputs)
        return LogicalGraph(tuple(self.inputs), operations, outputs), results

    def _placeholder(self, node: Node) -> None:
        draft = self.draft
        if not isinstance(node.meta.get("val"), torch.Tensor):
            return  # a number, a flag
        draft.protected.add(memory(node))
        if not draft.constants.placeholder(node):
            name, features = draft.name(node.name), shape(node)[-1]
            draft.lines(node, name, torch.arange(draft.elements.rows), features)
            self.inputs.append(Input(name, features))

    def _outputs(self, node: Node) -> list[str | None]:
        results: list[str | None] = []
        for position, result in enumerate(node.args[0]):
            if result is None or result in self.failed:
                results.append(None)
                continue
            if not self.draft.knows(result):
                raise GraphError(f"output {position} of the module does not depend on its inputs")
            try:
                name = self.draft.form(node, result, self._rows)
            except Unsupported as reason:
                self._note(getattr(reason, "node", result), str(reason))
                continue
            if name in results or name in {value.name for value in self.inputs}:  # in or out already
                name = self.draft.add(node, f"{name}_returned", Scalar("scale", 1.0), name)
            results.append(name)
        return results

    def _rows(self, contents: torch.Tensor) -> str:
        """Name of an output, whose rows must come in the order of the tokens."""
        elements = self.draft.elements
        if contents.numel() % elements.rows:
            raise Unsupported("an output must have a row for each token")
        rows, columns = elements.lines(contents.reshape(elements.rows, -1))
        if not torch.equal(rows, torch.arange(elements.rows)):
            raise Unsupported("rows of an output must come in the order of the tokens in the inputs")
        return self.draft.value(self.program.graph.find_nodes(op="output")[0], columns)

    def _call(self, node: Node) -> None:
        """Append the operations of one call, or note why it cannot be."""
        draft, target = self.draft, node.target
        sources = node.all_input_nodes
        if any(source in self.failed for source in sources):  # still named, if it is wrong in any case
            self.failed.add(node)
            if target in CALLS:
                self._check(node)
            elif target not in MOVED:
                self._note(node, "")
            return
        try:
            if all(source in draft.constants.tensors for source in sources):
                draft.constants.fold(node)
            elif target in CALLS:
                CALLS[target](draft, node)
            elif target in MOVED:
                self._move(node)
            else:
                raise Unsupported()
        except Unsupported as reason:
            self.failed.add(node)
            self._note(getattr(reason, "node", node), str(reason))

    def _check(self, node: Node) -> None:
        """Name what no operation takes among the tensors that a call reads."""
        for source in node.all_input_nodes:
            if source in self.draft.contents:
                try:
                    self.draft.form(node, source, self.draft.elements.spread)
                except Unsupported as reason:
                    self._note(getattr(reason, "node", node), str(reason))

    def _note(self, node: Node, reason: str) -> None:
        """Keep the first problem of a call."""
        made = node.args[0] if node.target is operator.getitem else node  # one of several results of a call
        target = made.target if node.op == "call_function" else node.name
        self.problems.setdefault(node, f"{where(node)}: {target}" + (f": {reason}" if reason else ""))

    def _move(self, node: Node) -> None:
        """A call that moves elements, on their indices."""
        draft, target = self.draft, node.target
        if target == aten.dropout.default and node.args[2]:
            raise Unsupported("it is in training mode; call module.eval() first")
        value = node.meta["val"]
        if isinstance(value, torch.Tensor) and not value.is_floating_point():
            raise Unsupported(f"it makes {value.dtype} of floats")
        source: Any = node.args[0]
        if target in RENAMES:
            if source in draft.partial:
                draft.partial[node] = draft.partial[source]
            else:
                draft.contents[node] = draft.contents[source]
            return
        if any(one in draft.partial for one in node.all_input_nodes):
            if target not in ALIKE or shape(node)[-2:] != shape(source)[-2:]:
                raise Unsupported(draft.partial[source].needed if source in draft.partial else "")
            draft.partial[node] = draft.partial[source]
            return
        if any(one in draft.constants.tensors for one in node.all_input_nodes):
            raise Unsupported("it joins what is computed at run time and a constant")
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), draft.contents.__getitem__)
        function: Any = VIEWS.get(target, target)
        found = function(*args, **kwargs)
        draft.contents[node] = found if isinstance(found, torch.Tensor) else list(found)


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


def _scaled_norms(operations: Sequence[Operation], outputs: Sequence[str]) -> list[Operation]:
    """Norms that are written out, with the factor and the sum behind them as their weight and bias."""
    readers: dict[str, int] = dict.fromkeys(outputs, 1)
    for operation in operations:
        for name in operation.inputs:
            readers[name] = readers.get(name, 0) + 1
    found: dict[str, Operation] = {}
    for operation in operations:
        found[operation.name] = operation
        if not isinstance(operation.op, Binary) or operation.op.operation not in ("add", "mul"):
            continue
        given = {type(found[name].op): found[name] for name in operation.inputs if name in found}
        norm, constant = given.get(Norm), given.get(Constant)
        if norm is None or constant is None or readers[norm.name] > 1:
            continue
        op: Any = norm.op
        factor: Any = constant.op
        changed = _with_constant(op, operation.op.operation, factor.value)
        if changed is not None:
            found[operation.name] = Operation(operation.name, changed, norm.inputs, norm.where)
    return list(found.values())


def _with_constant(norm: Norm, operation: str, constant: np.ndarray) -> Norm | None:
    """A norm times a constant or plus one, when it has no weight or bias yet."""
    if norm.bias is not None:
        return None
    if operation == "add":
        return Norm(norm.kind, norm.weight, norm.epsilon, constant)
    return Norm(norm.kind, constant, norm.epsilon) if (norm.weight == 1).all() else None
