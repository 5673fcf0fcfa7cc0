"""A language model of one's own: any module that makes logits of ids, without a cache in its code.

The module is exported for a few tokens and read call by call, as all modules are. It must be causal: every
operation that mixes tokens is an attention with a causal mask, all others work row by row, and positions are
counted from 0 (`counted_tables`). Keys and values of earlier tokens then never change, so the graph for texts
that go on follows: they are kept in a `Cache`, and positions count from its end.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from streamgen.base.errors import UnsupportedOperationError
from streamgen.base.turns import one_at_a_time
from streamgen.model.frontend.counted_tables import CountedTables, LongProgram
from streamgen.model.frontend.draft import Draft
from streamgen.model.frontend.eager import EagerWhole, called, has_values
from streamgen.model.frontend.extents import decisions, one_token, unseen, untried
from streamgen.model.frontend.importer import MOVED, Importer
from streamgen.model.frontend.in_place import is_in_place, memory
from streamgen.model.frontend.layers import folded
from streamgen.model.frontend.module_kinds import kept_buffers, unchanged
from streamgen.model.frontend.plain_calls import plain_calls
from streamgen.model.frontend.quiet import quiet
from streamgen.model.frontend.refusals import first_line
from streamgen.model.frontend.self_check import require_equal_text
from streamgen.model.frontend.sourced import NEEDED, READERS, SourceCalls, SourcePart
from streamgen.model.frontend.text_call import NoLanguageModel, TextCall, UnclearLogits, logits_of
from streamgen.model.frontend.trace import (
    OF_EXTENTS,
    Constants,
    Unsupported,
    aten,
    export_program,
    one_thread,
    plain_attention,
)
from streamgen.model.graph.logical import Input, LogicalGraph, Operation
from streamgen.model.graph.run import State
from streamgen.model.operations import Attention, Cache
from streamgen.model.source import SourceLayers, TextSource

TOKENS = 5  # of the short program: not as many as heads, pairs or neighbours are
WRAPPER = "model"
BUFFERS = (InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
WORK = 1 << 33  # products of the long text of an import's check: a second or two


class _OnIds(torch.nn.Module):
    """A module whose only inputs are ids and perhaps a source, and whose only result are the logits. Without
    a source given, it takes that of its call."""

    def __init__(self, model: torch.nn.Module, call: TextCall) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, ids: torch.Tensor, *source: torch.Tensor) -> torch.Tensor:
        arguments = self.call.arguments(ids.numel())
        return logits_of(self.model(ids, *arguments, *(source or self.call.source)))


@one_at_a_time
def import_own(
    module: torch.nn.Module, ids: torch.Tensor, others: Sequence[Any], context: int, name: str | None = None
) -> LogicalGraph:
    """The graph of the language model that a causal module computes.

    ids: integers [1, T], [T] or [T, 1], an example. others: further arguments, numbers or the positions of
    the ids. Buffers that the module writes at these positions, and reads under a mask, are its cache.
    context: positions that the graph is wanted for; it has fewer where the module does not run with so many.

    Raises TypeError or ValueError for other arguments, ids without an embedding and weights that are not
    finite, UnsupportedOperationError with every operation that cannot be compiled or that lets a token depend
    on later ones, ImportMismatchError for a graph that is not what the module computes.
    """
    return _imported(module, TextCall.of(ids, others), ids, context, name)[0]


@one_at_a_time
def import_sourced(
    module: torch.nn.Module, ids: torch.Tensor, source: Sequence[torch.Tensor], context: int, name: str
) -> tuple[LogicalGraph, SourcePart]:
    """The graph of a text, and the module that makes its source. The module is called with the ids and the
    tensors of the source.

    Raises the errors of `import_own`, and NoLanguageModel if the text reads no source.
    """
    call = replace(TextCall.of(ids, ()), source=tuple(source))
    graph, part = _imported(module, call, ids, context, name)
    if part is None:
        raise NoLanguageModel("no attention of the text reads keys and values of its source")
    return graph, part


def _imported(
    module: torch.nn.Module, call: TextCall, ids: torch.Tensor, context: int, name: str | None
) -> tuple[LogicalGraph, SourcePart | None]:
    wrapped = _OnIds(module, call)
    with one_thread():
        traced = _traced(wrapped, call, _most_tokens(wrapped, call, context))
        graph = traced.graph(type(module).__name__ if name is None else name)
    part = traced.source_part
    for rows in graph.vocabularies.values():
        wrong = ids[(ids < 0) | (ids >= rows)] if ids.device.type != "meta" else ids[:0]
        if wrong.numel():
            raise ValueError(f"the example holds the id {wrong.reshape(-1)[0]}; ids are 0 to {rows - 1}")

    def eager(floats: dict[str, torch.Tensor], kept: Sequence[int]) -> EagerWhole:
        def logits(ids: torch.Tensor) -> torch.Tensor:
            with plain_attention(), kept_buffers(module):
                results = called(module, floats, (call.ids(ids), *call.arguments(len(ids)), *call.source), {})
            rows = logits_of(results)
            return rows.reshape(-1, rows.shape[-1])

        return EagerWhole(logits)

    layers = sum(isinstance(operation.op, Attention) for _, operation in graph.walk())
    lengths = _lengths(wrapped, call, graph)
    state = {} if part is None or not has_values(module) else _source_of(graph, part, call.source)
    require_equal_text(graph, module, eager, layers=layers, lengths=lengths, source=state)
    return graph, part


def _source_of(graph: LogicalGraph, part: SourcePart, given: Sequence[torch.Tensor]) -> State:
    """The source of a text as floats, for the reference interpreter."""
    layers = SourceLayers.of(graph)
    assert layers is not None
    with quiet(), torch.no_grad(), one_thread():
        rows = [result.float().reshape(-1, result.shape[-1]).numpy() for result in part(*given)]
    return TextSource(layers, tuple(layers.checked(rows))).floats


def import_without_example(module: torch.nn.Module, context: int) -> LogicalGraph | None:
    """`import_own` with ids [1, T], [T] or [T, 1], the first of these shapes for which the module is a
    language model. None if it looks nothing up for any of them.

    Raises the error of the first shape with which the module runs, if no shape makes it a language model;
    NoLanguageModel if it runs with none.
    """
    refused: UnsupportedOperationError | None = None
    stopped = ""
    for shape in ((1, TOKENS), (TOKENS,), (TOKENS, 1)):
        ids = torch.zeros(shape, dtype=torch.int64)
        call, seen = TextCall.of(ids, ()), _Embeddings()
        with seen:
            reason = _refused(_OnIds(module, call), call, TOKENS)
        if reason and seen.rows:
            stopped = stopped or f"it does not run on {TOKENS} ids: {reason}"
        if reason or not seen.rows:
            continue
        try:
            return import_own(module, ids, (), context)
        except UnsupportedOperationError as error:
            refused = refused or error
    if refused is not None:
        raise refused
    if stopped:
        raise NoLanguageModel(stopped)
    return None


def makes_logits(module: torch.nn.Module, arguments: Sequence[Any]) -> bool:
    """Whether a result of a module has as many features as one of its tables of embeddings has rows."""
    seen = _Embeddings()
    with seen:
        results, _ = _ran(module, *arguments)
    leaves = pytree.tree_leaves(results)
    return any(leaf.shape[-1] in seen.rows for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.ndim)


class _Embeddings(TorchDispatchMode):
    """Notes the rows of each table that is looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if call == aten.embedding.default:
            self.rows.append(args[0].shape[0])
        return call(*args, **(kwargs or {}))


def _most_tokens(wrapped: _OnIds, call: TextCall, wanted: int) -> int:
    """Tokens with which a module runs, up to those that are wanted; ValueError when it runs with none."""
    if reason := _refused(wrapped, call, TOKENS):
        raise NoLanguageModel(f"the module does not run on {TOKENS} ids as a language model: {reason}")
    runs, not_more = TOKENS, max(wanted, TOKENS + 1)
    trial = not_more
    while runs < not_more:
        if _refused(wrapped, call, trial):
            not_more = trial - 1
        else:
            runs = trial
        trial = (runs + not_more + 1) // 2
    return runs


def _refused(wrapped: _OnIds, call: TextCall, tokens: int) -> str:
    """What a module says against so many tokens; empty when it runs with them."""
    logits, error = _ran(wrapped, call.ids(torch.zeros(tokens, dtype=torch.int64)))
    if isinstance(error, UnclearLogits):
        raise error
    if error is not None:
        return first_line(error)
    rows = logits.numel() // logits.shape[-1] if logits.ndim and logits.numel() else 0
    return "" if rows in (1, tokens) else f"it makes logits for {rows} of {tokens} ids"


def _ran(module: torch.nn.Module, *arguments: Any) -> tuple[Any, Exception | None]:
    """The results of a module on tensors without contents, or the error that it raises."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with quiet(), plain_attention(), plain_calls(), unchanged(module), torch.no_grad(), fake:
            return module(*arguments), None
    except Exception as error:  # noqa: BLE001 - a module may raise anything
        return None, error


def _lengths(wrapped: _OnIds, call: TextCall, graph: LogicalGraph) -> list[int]:
    """Lengths of texts for which a module compares their number of tokens otherwise than for `TOKENS` of
    them, and one that is long. Numbers made of it are seen by `CountedTables`."""
    ids, (d, _) = call.ids(torch.arange(TOKENS)), call.lead
    with quiet(), plain_attention(), plain_calls(), unchanged(wrapped):
        decided = decisions(wrapped, [ids], pytree.tree_structure(((0,), {})), [d])
    compared = unseen(d) if decided is None else [decision for decision in decided if decision.compares]
    known = [one_token(d), *compared]
    lengths: list[int] = []
    while chosen := untried(known, d, list(ids.shape), [TOKENS, *lengths], graph.context):
        lengths.append(chosen[0])
    weights = sum(math.prod(matmul.extents) for _, matmul in graph.matmuls())
    return [*lengths, min(graph.context, max(WORK // max(weights, 1), TOKENS))]


def _traced(wrapped: _OnIds, call: TextCall, context: int) -> "_OwnImporter":
    """The module, exported for a few tokens and for its context."""

    def exported(tokens: int) -> Constants:
        with plain_attention():
            program = export_program(wrapped, (call.ids(torch.arange(tokens) % 2), *call.source))
        return Constants(wrapped, program, changing=True)

    short, long = exported(TOKENS), LongProgram(exported(context), context)
    while (fewer := long.tokens_with_rows()) is not None:
        if fewer >= context:
            raise NoLanguageModel(
                f"the module looks up other rows of a table than {context} ids have positions"
            )
        context = fewer
        long = LongProgram(exported(context), context)
    if context <= TOKENS:
        raise NoLanguageModel(f"the module has {context} positions; at least {TOKENS + 1} are needed")
    tables = CountedTables(short, TOKENS, long)
    draft = Draft(short, TOKENS, tables, WRAPPER, last=True)
    draft.source = SourceCalls() if call.source else None
    return _OwnImporter(short.program, draft, tables)


class _OwnImporter(Importer):
    """A program whose input are ids and whose output are logits."""

    def __init__(self, program: torch.export.ExportedProgram, draft: Draft, tables: CountedTables) -> None:
        super().__init__(program, draft)
        self.tables = tables
        self.states = _states(program)
        self.logits = 0  # of a token

    def graph(self, name: str) -> LogicalGraph:
        """The graph of the language model."""
        (logits,) = self._walk()
        assert logits is not None
        for operation in self.draft.operations:
            rows = operation.op.vocabulary
            if rows is not None and rows != self.logits:
                raise NoLanguageModel(
                    f"the module makes {self.logits} logits and {rows} ids have an embedding; a language "
                    "model makes a logit for each id"
                )
        graph = folded(name, self._with_caches(self.draft.operations), logits, self.tables.context)
        source = self.draft.source
        return graph if source is None or not source.reads else replace(graph, source=source.rows)

    @property
    def source_part(self) -> SourcePart | None:
        """The module that makes the source; None if the text reads none."""
        source = self.draft.source
        return None if source is None or not source.reads else source.part(self.draft.constants.tensors)

    def _placeholder(self, node: Node) -> None:
        if not isinstance(node.meta.get("val"), torch.Tensor):
            return
        if self.draft.constants.placeholder(node):
            if memory(node) in self.states:
                self._forget(node)
            return
        if self.inputs and self.draft.source is not None:
            self.draft.source.inputs.append(node)
            return
        self.draft.lines(node, self.draft.name("ids"), self.draft.elements.tokens, 1)
        self.inputs.append(Input("ids", 1, "ids"))

    def _call(self, node: Node) -> None:
        sources = node.all_input_nodes
        if self.draft.source is not None and self._read_source(node, self.draft.source):
            return
        values = [source for source in sources if self.draft.knows(source)]
        written = node.args[0] if is_in_place(node) else None
        if values and isinstance(written, Node) and written in self.draft.constants.tensors:
            self._forget(written)
        if values and self.failed.isdisjoint(sources) and node.target not in OF_EXTENTS:
            moves = node.target in MOVED
            try:
                self.tables.require_alike(node, moves=moves)
            except Unsupported as reason:
                self.failed.add(node)
                return self._note(node, str(reason))
        super()._call(node)

    def _read_source(self, node: Node, source: SourceCalls) -> bool:
        """Whether a call is on the source alone. Elements of the source that another call reads become
        contents."""
        read = [other for other in node.all_input_nodes if other in source]
        others = [other for other in node.all_input_nodes if other not in source]
        if read and all(o in self.draft.constants.tensors and o not in self.tables for o in others):
            source.add(node)
            return True
        if read and not self.failed.isdisjoint(node.all_input_nodes):
            return False
        if read and node.target in READERS:
            self.draft.contents |= {other: source.contents(other) for other in read}
        elif read:
            self.failed.add(node)
            self._note(node, NEEDED)
            return True
        return False

    def _forget(self, constant: Node) -> None:
        """Turn a constant that the module writes to, and its views, into elements that nothing has written
        yet. What an earlier call has left in a buffer is thus never read."""
        draft, constants = self.draft, self.draft.constants
        storage = constants.tensors[constant].untyped_storage()
        unwritten = draft.elements.unwritten(storage.nbytes() // constants.tensors[constant].element_size())
        for node, tensor in [*constants.tensors.items()]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() == storage.data_ptr():
                places = tensor.shape, tensor.stride(), tensor.storage_offset()
                draft.contents[node] = unwritten.as_strided(*places)
                draft.protected.discard(memory(node))
                del constants.tensors[node]

    def _outputs(self, node: Node) -> list[str | None]:
        (logits,) = node.args[0]
        if logits in self.failed:
            return [None]
        try:
            if not self.draft.knows(logits):
                raise Unsupported("the logits do not depend on the ids")
            return [self.draft.form(node, logits, self._logits)]
        except Unsupported as reason:
            self._note(getattr(reason, "node", logits), str(reason))
            return [None]

    def _logits(self, contents: torch.Tensor) -> str:
        """Name of logits of all tokens, or of the last one."""
        elements = self.draft.elements
        rows, columns = elements.lines(contents.reshape(-1, contents.shape[-1]))
        if not torch.equal(rows, elements.tokens[-len(rows) :]):
            raise Unsupported("logits must come in the order of the ids")
        self.logits = columns.numel()
        return self.draft.value(self.program.graph.find_nodes(op="output")[0], columns)

    def _with_caches(self, operations: Sequence[Operation]) -> list[Operation]:
        """The operations for texts that go on: keys and values out of caches.

        UnsupportedOperationError names the operations in which a token depends on later ones.
        """
        kept: dict[tuple[str, int], str] = {}
        cached: list[Operation] = []
        problems = []
        for operation in operations:
            op = operation.op
            if op.mixes_tokens and not (isinstance(op, Attention) and op.causal):
                problems.append(_looks_ahead(operation))
            if isinstance(op, Attention):
                queries, *rows = operation.inputs
                inputs = [queries]
                for kind, value in zip(("keys", "values"), rows[:2], strict=True):
                    if (value, op.kv_heads) not in kept:
                        name = kept[value, op.kv_heads] = self.draft.name(kind)
                        cache = Cache(op.kv_heads, op.head_dim)
                        cached.append(Operation(name, cache, (value,), operation.where))
                    inputs.append(kept[value, op.kv_heads])
                inputs += rows[2:]
                operation = replace(operation, inputs=tuple(inputs))
            cached.append(operation)
        if problems:
            raise UnsupportedOperationError(
                "the module is no language model: a token depends on later tokens in "
                f"{problems[0]}. Give its attention a causal mask; if tokens are the first dimension of the "
                "module, give ids [T, 1] as its example; if it is an encoder, give ids of two texts, [2, T]",
                problems,
            )
        return cached


def _states(program: torch.export.ExportedProgram) -> set[int]:
    """Memory of the buffers that calls on the ids write to."""
    specs = {spec.arg.name: spec.kind for spec in program.graph_signature.input_specs}
    computed: set[Node] = set()
    written: set[int] = set()
    for node in program.graph.nodes:
        if node.op == "placeholder" and specs[node.name] == InputKind.USER_INPUT:
            computed.add(node)
        elif node.op == "call_function" and not computed.isdisjoint(node.all_input_nodes):
            if node.target not in OF_EXTENTS:
                computed.add(node)
            if is_in_place(node):
                written.add(memory(node.args[0]))
    buffers = (node for node in program.graph.nodes if specs.get(node.name) in BUFFERS)
    return {memory(node) for node in buffers} & written


def _looks_ahead(operation: Operation) -> str:
    return f"{operation.where}: {operation.op}" if operation.where else str(operation.op)
