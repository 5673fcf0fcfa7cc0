"""One walk over the calls of an exported program: each becomes operations, or is named in one error.

Calls on parameters alone are folded. Calls that only move elements (views, transposes, slices, copies, casts
to floats, dropout in eval mode) are carried out on indices (`elements`). Calls whose results are not used
disappear. All others must be in the tables of `CALLS`, or be operations of other packages (`outside`).
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from streamgen.base.errors import GraphError, UnsupportedOperationError
from streamgen.gateware.functions import TITLES
from streamgen.model.frontend import (
    activations,
    arithmetic,
    batch_norms,
    index_moves,
    linears,
    lookups,
    norms,
    pointwise,
    reductions,
    rotary,
    scatters,
    self_attention,
    token_places,
)
from streamgen.model.frontend.draft import MOST_COUNTED, Draft
from streamgen.model.frontend.fuse import fused
from streamgen.model.frontend.in_place import is_in_place, memory
from streamgen.model.frontend.moves import DROPOUTS, MOVES, RENAMES
from streamgen.model.frontend.outside import add_outside, is_outside, nobody_brings
from streamgen.model.frontend.parts import parts_of
from streamgen.model.frontend.refusals import Problem, refusal
from streamgen.model.frontend.trace import Unsupported, arguments, aten, is_constant_call, is_ids, shape
from streamgen.model.graph.logical import Input, LogicalGraph
from streamgen.model.operations import Scalar

CALLS: dict[Any, Callable[[Draft, Node], None]] = {
    **arithmetic.CALLS,
    **activations.CALLS,
    **batch_norms.CALLS,
    **linears.CALLS,
    **lookups.CALLS,
    **norms.CALLS,
    **rotary.CALLS,
    **self_attention.CALLS,
    **pointwise.CALLS,
    **index_moves.CALLS,
    **reductions.CALLS,
    **scatters.CALLS,
}
MORE_MOVES = {
    aten.channel_shuffle.default,
    aten.expand_as.default,
    aten.flip.default,
    aten.hstack.default,
    aten.matrix_H.default,
    aten.mH.default,
    aten.numpy_T.default,
    aten.pixel_shuffle.default,
    aten.pixel_unshuffle.default,
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
}  # indices may have another layout than the elements
ALIKE = {
    aten.flatten.using_ints,
    aten.reshape.default,
    aten.select.int,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.unflatten.int,
    aten.unsqueeze.default,
    aten.view.default,
}
FAKE_QUANTISED = (
    "it rounds as in quantisation-aware training; give the module with its float layers, whose weights "
    "streamgen quantises itself"
)
WIDE = {torch.int32, torch.int64}  # types of integers that hold all ids
JOINING = {aten.cat.default, aten.hstack.default}
SUPPORTED = (
    f"Linear and x @ W; embeddings of ids; {TITLES}; +, - and * of two tensors of one shape, or of one "
    "with a scalar or a parameter of shape [features]; quotients, powers, comparisons, logical operations, "
    "where and masked_fill, rounding, remainders and other pointwise calls of these; "
    "clamps, LeakyReLU, PReLU, GLU and other activations of torch.nn; LayerNorm, RMSNorm, softmax and "
    "log-softmax of the last dimension; GroupNorm, and BatchNorm in eval mode, of [tokens, channels]; "
    "attention over the tokens given, with or without a constant mask, or with a mask of padding; attention "
    "of some tokens over others, with constant queries and with biases of scores, for inputs of one shape; "
    "convolutions whose stride is their window; constants among tokens; sum, mean, "
    "max and min over the tokens of a sequence, beside its tokens too, its first token, its last token, and "
    "the token at a place of run time; ids compared with a number; tables with a row for each place in a "
    "sequence; sum, mean, max, min, var, prod, norms and logsumexp of features, cumsum and "
    "cumprod; argmax, any, sort, top-k, median and other calls that are formulas of these; gather, scatter, "
    "one_hot and indices, also at places of run time; Linear, products and attention among columns of a row; "
    "scatter_add and index_put at constant places; slices, concatenation and padding of features, views and "
    "transposes that leave rows of features whole; any moves of inputs that are small enough to be one row; "
    "Dropout in eval mode; copies, casts to floats and integers"
)


class Importer:
    """Reads one program into a draft, call by call."""

    supported: ClassVar[str] = SUPPORTED
    calls: ClassVar[dict[Any, Callable[[Draft, Node], None]]] = CALLS

    def __init__(self, program: torch.export.ExportedProgram, draft: Draft) -> None:
        self.program = program
        self.draft = draft
        self.live = _live(list(program.graph.nodes))
        self.failed: set[Node] = set()  # reported, or after a reported call
        self.inputs: list[Input] = []
        self.result = 0  # number of the one that is read
        self.problems: dict[Node, Problem] = {}
        self.readable = self.calls.keys() | MOVED

    def run(self) -> tuple[LogicalGraph, list[str | None]]:
        """The graph, and for each result of the module the name of the output; None for a result that is not
        a tensor."""
        results = self._walk()
        outputs = tuple(name for name in results if name is not None)
        if not outputs:
            raise UnsupportedOperationError("the module returns no tensor; one or more are needed")
        operations = fused(self.draft.operations, outputs)
        read = {name for operation in operations for name in operation.inputs} | set(outputs)
        inputs = tuple(value for value in self.inputs if value.name in read)
        places = self.draft.sequences.places
        if places is not None and any(places in operation.inputs for operation in operations):
            inputs = (*inputs, Input(places, 1, "ids"))
        return LogicalGraph(inputs, operations, outputs), results

    def _walk(self) -> list[str | None]:
        """Read every call and the results; raise one error with all problems."""
        results: list[str | None] = []
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "call_function" and node in self.live:
                self._call(node)
            elif node.op == "output":
                results = self._outputs(node)
        if self.problems:
            order = {node: index for index, node in enumerate(self.program.graph.nodes)}
            raise self._refusal(
                [self.problems[node] for node in sorted(self.problems, key=order.__getitem__)]
            )
        return results

    def _refusal(self, problems: Sequence[Problem]) -> UnsupportedOperationError:
        return refusal(problems, self.supported)

    def _placeholder(self, node: Node) -> None:
        draft = self.draft
        if not isinstance(node.meta.get("val"), torch.Tensor):
            return  # a number, a flag
        draft.protected.add(memory(node))
        if not draft.constants.placeholder(node):
            name, features = draft.name(node.name), shape(node)[-1]
            draft.lines(node, name, draft.elements.tokens, features)
            self.inputs.append(Input(name, features, "ids" if is_ids(node.meta["val"]) else "real"))
            if self.inputs[-1].kind == "ids":
                draft.sequences.ids.add(name)

    def _outputs(self, node: Node) -> list[str | None]:
        results: list[str | None] = []
        for position, result in enumerate(node.args[0]):
            if result is None or result in self.failed:
                results.append(None)
                continue
            self.result = position
            if not isinstance(result, Node):
                raise GraphError(f"output {position} of the module is {result!r} and no tensor")
            try:
                if not self.draft.knows(result):
                    self._constant(position, result)
                self._compute_halves([result])
                if is_ids(value := result.meta["val"]) and value.dtype != torch.bool:
                    self._require_counted(result, value.dtype)
                name = self.draft.form(node, result, self._rows)
            except Unsupported as reason:
                self._note(getattr(reason, "node", result), str(reason))
                continue
            if name in results or name in {
                value.name for value in self.inputs
            }:  # already an input or an output
                name = self.draft.add(node, f"{name}_returned", Scalar("scale", 1.0), name)
            results.append(name)
        return results

    def _constant(self, position: int, result: Node) -> None:
        """Make a constant that the module returns a row of numbers."""
        constant = self.draft.constants.tensors.get(result)
        if self.draft.elements.stride != 1 or not isinstance(constant, torch.Tensor):
            raise Unsupported(f"output {position} of the module does not depend on its inputs")
        self.draft.contents[result] = index_moves.numbers(self.draft, result, constant)

    def _require_counted(self, result: Node, dtype: torch.dtype) -> None:
        if dtype not in WIDE or not self.draft.is_whole(self.draft.contents.get(result)):
            raise Unsupported(
                f"the module returns {dtype}; results are floats, truth values, or places and numbers of "
                "elements"
            )

    def _rows(self, contents: torch.Tensor) -> str:
        """The name of an output, whose rows must have the order of the tokens."""
        elements = self.draft.elements
        if not contents.numel():
            raise Unsupported("a result holds no elements")
        single = elements.are_single(contents // elements.stride)
        count = len(elements.starts) if single else elements.rows
        if contents.numel() % count:
            raise Unsupported("an output must have a row for each token")
        rows, columns = elements.lines(contents.reshape(count, -1))
        if not torch.equal(rows, elements.rows_of(count)):
            self.draft.sequences.require_at_end(self.result, rows)
            raise Unsupported("the rows of an output must be in the order of the tokens of the inputs")
        return self.draft.value(self.program.graph.find_nodes(op="output")[0], columns)

    def _call(self, node: Node) -> None:
        """Append the operations of one call, or note why that is impossible."""
        target, sources = node.target, node.all_input_nodes
        known = target in self.calls or target in MOVED
        outside = is_outside(target, built_in=known)
        if any(source in self.failed for source in sources):  # it is still named if it is wrong by itself
            self.failed.add(node)
            if known or outside:
                self._check(node)
            else:
                self._note(node, "")
            return
        try:
            self._imported(node, known, outside)
        except Unsupported as reason:
            self.failed.add(node)
            self._note(getattr(reason, "node", node), str(reason))

    def _imported(self, node: Node, known: bool, outside: bool = False) -> None:
        """Import a call as it is, or with the halves that it reads computed by themselves, or in parts;
        Unsupported with the reason against the first if none of these is possible."""
        try:
            self._import(node, known, outside)
        except IndexError as error:  # torch does not look at the places of rows when it traces
            raise Unsupported(f"it does not run: {error}") from None
        except Unsupported:
            if not self._made_whole(node, known, outside) and not self._imported_in_parts(node):
                raise

    def _made_whole(self, node: Node, known: bool, outside: bool) -> bool:
        """Import a call again with the halves of operations that it reads computed by themselves; False if
        there are none or that is impossible."""
        if not any(source in self.draft.partial for source in node.all_input_nodes):
            return False
        before = dict(self.draft.partial)
        try:
            if self._compute_halves(node.all_input_nodes):
                self._import(node, known, outside)
                return True
        except Unsupported:
            self.draft.partial |= before
        return False

    def _imported_in_parts(self, node: Node) -> bool:
        """Import what torch makes of a call in its place; False if there is nothing, or it cannot be read."""
        if node.target == aten.scaled_dot_product_attention.default:
            if not self.draft.may_multiply_within():
                return False
        elif node.target in lookups.BOUNDARIES:
            lookups.require_in_order(self.draft, node)
        elif node.target in lookups.BAGS:
            lookups.require_equal_bags(self.draft, node)
        elif node.target in lookups.FROM_BEHIND:
            lookups.require_counted(self.draft, node)
        elif node.target == aten.batch_norm.default and arguments(node)["training"]:
            return False  # its parts would be right, but a model in training is given by mistake
        apart = parts_of(self.program.graph, node, self.readable)
        if apart is None or not self._compute_halves(node.all_input_nodes):
            return False
        calls, result = apart
        self.draft.tables.add_parts(node, calls, self.readable)
        try:
            for call in calls:
                self._imported(call, known=call.target in self.readable)
            return self._is_result(node, result)
        except Unsupported:
            return False

    def _is_result(self, node: Node, result: Any) -> bool:
        """Set the result of a call to values of other calls, None for a tensor that nobody reads; False if
        one is half of an operation, or constant."""
        leaves = pytree.tree_leaves(result)
        values = [value for value in leaves if value is not None]
        contents = self.draft.contents
        if not self._compute_halves(values) or not all(value in contents for value in values):
            return False
        if isinstance(result, Node):
            self.draft.keep(node, contents[result])
        else:
            contents[node] = [None if value is None else contents[value] for value in leaves]
        for value, source in zip(pytree.tree_leaves(node.meta["val"]), leaves, strict=True):
            whole = is_ids(value) and value.dtype != torch.bool
            if whole and source is not None and source.meta["val"].is_floating_point():
                only_ones = node.target == aten.one_hot.default
                self.draft.count(contents[source], 1 if only_ones else MOST_COUNTED)  # a formula of places
        return True

    def _compute_halves(self, nodes: Sequence[Node]) -> bool:
        """Compute halves of operations by themselves; False, and they stay halves, if that is impossible."""
        before = dict(self.draft.partial)
        try:
            for node in nodes:
                self._compute_half(node)
        except Unsupported:
            self.draft.partial |= before
            return False
        return True

    def _compute_half(self, node: Node) -> None:
        """Compute half of an operation by itself."""
        if node not in self.draft.partial:
            return
        if is_in_place(node):
            raise Unsupported(self.draft.partial[node].needed)
        for source in node.all_input_nodes:
            self._compute_half(source)
        del self.draft.partial[node]
        self.draft.plainly.add(node)
        try:
            self._import(node, known=True, outside=False)
        except Unsupported:
            if not self.draft.may_multiply_within() or not self._imported_in_parts(node):
                raise
        if node in self.draft.partial:
            raise Unsupported(self.draft.partial[node].needed)

    def _import(self, node: Node, known: bool, outside: bool) -> None:
        """Append the operations of one call; Unsupported if that is impossible."""
        draft, target, sources = self.draft, node.target, node.all_input_nodes
        if _is_of_any_shape(node):
            raise Unsupported("the shape of its result depends on values")
        if (
            target in self.calls
            and isinstance(node.meta.get("val"), torch.Tensor)
            and not shape(node).numel()
        ):
            raise Unsupported("its result holds no elements")
        if is_constant_call(node, draft.constants.tensors):
            draft.constants.fold(node)
        elif all(source in draft.constants.tensors or source in draft.tables for source in sources):
            draft.tables.add(node)
        elif target in MOVED:
            self._move(node)
        elif (
            lookups.told_from_padding(draft, node)
            or lookups.compared_with_places(draft, node)
            or token_places.compared(draft, node)
            or token_places.rows_at_places(draft, node)
        ):
            return
        elif target in self.calls or target in token_places.EXTREMES:
            with token_places.numbers_of_ids(draft, node):
                if token_places.place_of_extreme(draft, node):
                    return
                lookups.require_lookup(draft, node)
                if target not in self.calls:
                    raise Unsupported(nobody_brings(target))
                self.calls[target](draft, node)
                token_places.count_result(draft, node)
        elif outside:
            add_outside(draft, node)
        elif "fake_quant" in str(target):
            raise Unsupported(FAKE_QUANTISED)
        else:
            raise Unsupported(nobody_brings(target))

    def _check(self, node: Node) -> None:
        """Name the problems of a call that do not depend on its failed inputs."""
        if (reason := self._wrong_behind(node)) is not None:
            self._note(node, reason)
        for source in node.all_input_nodes:
            if node.target in self.calls and source in self.draft.contents:
                try:
                    self.draft.form(node, source, self.draft.elements.spread)
                except Unsupported as reason:
                    self._note(getattr(reason, "node", node), str(reason))

    def _wrong_behind(self, node: Node) -> str | None:
        """The problem with the constants that a call reads; None if there is none."""
        tensors = self.draft.constants.tensors
        tables = self.draft.tables
        constants = [tensors[n] for n in node.all_input_nodes if n in tensors and n not in tables]
        framed = self.draft.elements.framed
        if node.target in JOINING and not framed and any(constant.numel() for constant in constants):
            return index_moves.CONSTANT_PART
        if node.target in arithmetic.OF_TWO and not framed:
            for constant in constants:
                rows = constant.reshape(-1, constant.shape[-1]) if constant.ndim > 1 else constant[None]
                if constant.squeeze().ndim > 1 and (rows != rows[:1]).any():
                    return arithmetic.differs(constant)
        return None

    def _note(self, node: Node, reason: str) -> None:
        """Keep the first problem of a call."""
        call = node.args[0] if node.target is operator.getitem else node  # one of several results of a call
        target = call.target if node.op == "call_function" else node.name
        problem = Problem(place=self.draft.where(node), operation=str(target), reason=reason)
        self.problems.setdefault(node, problem)

    def _move(self, node: Node) -> None:
        """Carry out a call that moves elements on the indices of these elements."""
        draft, target = self.draft, node.target
        if target in DROPOUTS and node.args[2]:
            raise Unsupported("it is in training mode; call module.eval() first")
        source: Any = node.args[0]
        value, given = node.meta["val"], node.all_input_nodes[0].meta["val"]
        tensors = isinstance(value, torch.Tensor) and isinstance(given, torch.Tensor)
        if tensors and given.is_floating_point() and value.dtype == torch.bool:
            return pointwise.as_truth(draft, node)
        truth = tensors and given.dtype == torch.bool
        crossing = tensors and value.is_floating_point() != given.is_floating_point() and not truth
        if crossing and not draft.are_counted(draft.contents.get(source)):
            return token_places.cast(draft, node)
        if truth and is_ids(value) and value.dtype != torch.bool and source in draft.contents:
            draft.count(draft.contents[source], 1)
        if tensors and is_ids(value) and value.dtype != given.dtype and value.dtype not in WIDE:
            raise Unsupported(f"it casts ids to {value.dtype}, which does not hold all of them")
        if target in RENAMES:
            if source in draft.partial:
                draft.partial[node] = draft.partial[source]
            else:
                draft.contents[node] = draft.contents[source]
            return
        if any(source in draft.partial for source in node.all_input_nodes):
            if target not in ALIKE or shape(node)[-2:] != shape(source)[-2:]:
                raise Unsupported(draft.partial[source].needed if source in draft.partial else "")
            draft.partial[node] = draft.partial[source]
            return
        constants = [n for n in node.all_input_nodes if not draft.knows(n) and shape(n).numel()]
        if target in JOINING and constants and is_ids(value) and value.dtype != torch.bool:
            raise Unsupported("it joins constants to ids; rows of a table can be joined to constants")
        if draft.elements.framed and target in JOINING and constants:
            return self._join(node)
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self._contents)
        function: Any = VIEWS.get(target, target)
        moved = function(*args, **kwargs)
        if moved is None:
            raise Unsupported(reductions.INTEGERS)
        draft.contents[node] = moved if isinstance(moved, torch.Tensor) else list(moved)

    def _join(self, node: Node) -> None:
        """Join constants to tokens, or to features of tokens."""
        draft = self.draft
        parts = [
            draft.form(node, source, lambda c: c)
            if draft.knows(source)
            else draft.constants.tensors[source].cpu().to(torch.float32).numpy()
            for source in arguments(node)["tensors"]
        ]
        dim = arguments(node).get("dim", 0 if len(shape(node)) == 1 else 1)
        draft.keep(node, draft.sequences.joined(node, parts, dim))

    def _contents(self, node: Node) -> Any:
        """The contents that a move reads; a constant is only allowed if it is empty or values are one row."""
        if node in self.draft.contents:
            return self.draft.contents[node]
        if shape(node).numel():
            return index_moves.numbers(self.draft, node, self.draft.constants.tensors[node])
        return torch.empty(shape(node), dtype=torch.int64)


def _is_of_any_shape(node: Node) -> bool:
    """Whether the tensor of a call has an extent that no trace knows."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not all(type(extent) is int for extent in value.shape)


def _live(nodes: Sequence[Node]) -> set[Node]:
    """The nodes that an output or a change in place depends on."""
    live: set[Node] = set()
    for node in reversed(nodes):
        schema = getattr(node.target, "_schema", None)
        if node.op == "output" or node in live or (schema is not None and schema.is_mutable):
            live.update((node, *node.all_input_nodes))
    return live
