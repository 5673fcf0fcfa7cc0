"""A torch module becomes the graph of a language model, exported with its cache as inputs and outputs.

The module is traced once, without decomposition, for a few tokens at the end of its context, and read call by
call like any other module (`importer`). Beyond that module:

    ids           are looked up in an embedding
    positions     everything computed from them and from constants is a table: masks, rotations, rows to add
    cache         the given rows, followed by the rows of this pass, are a `Cache`, and are returned
    layers        pieces of the graph that are alike become a `Repeat` (`layers`)

The names of models, classes and modules have no effect on the graph; messages use them to say where a problem
is.
"""

import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from streamgen.base.errors import UnsupportedOperationError
from streamgen.base.turns import one_at_a_time
from streamgen.gateware.functions import TITLES
from streamgen.model.frontend.assembly import TRACED, UNASKED, traced_positions
from streamgen.model.frontend.causal_model import CacheSizes, adds_by_distance, offset_of, positions_of, probe
from streamgen.model.frontend.draft import Draft
from streamgen.model.frontend.eager import EagerText, has_values
from streamgen.model.frontend.importer import Importer
from streamgen.model.frontend.layers import folded
from streamgen.model.frontend.missing_parts import (
    DECISIONS,
    NO_CACHE,
    missing_parts,
    subject_of,
)
from streamgen.model.frontend.module_kinds import require_readable
from streamgen.model.frontend.moves import renamed
from streamgen.model.frontend.own_decoder import import_own
from streamgen.model.frontend.refusals import MissingPart, Problem, refusal
from streamgen.model.frontend.rotary import rotated
from streamgen.model.frontend.self_check import require_equal_text
from streamgen.model.frontend.tables import Tables
from streamgen.model.frontend.trace import (
    DECISION,
    Constants,
    Unsupported,
    aten,
    export_program,
    one_thread,
    shape,
)
from streamgen.model.graph.logical import Input, LogicalGraph
from streamgen.model.operations import Cache

SUPPORTED = (
    "an embedding of ids, learned or rotary positions or none; Linear; RMSNorm and LayerNorm, of heads too; "
    f"{TITLES}, soft-caps; +, * and gated products; grouped-query attention over the "
    "cache with one scale and a causal mask, over the whole context or a window; slices, concatenation, "
    "views and transposes that leave rows of features whole"
)
UNNAMED = 64  # positions of a trace that only finds problems
SIZES = ("layers", "kv_heads", "head_dim", "context")


class _Functional(torch.nn.Module):
    """A transformers model with its cache as plain inputs and outputs. offset: the first position by its own
    count. A model without the argument position_ids counts from the length of its cache, so the length is set
    to the first position."""

    def __init__(self, model: torch.nn.Module, offset: int) -> None:
        super().__init__()
        self.model, self.offset = model, offset
        self.counts = "position_ids" not in inspect.signature(model.forward).parameters

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        keys: Sequence[torch.Tensor],
        values: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        cache = sys.modules["transformers"].DynamicCache()
        given = {}
        if self.counts:
            before = positions[0, 0].item()
            cache.get_seq_length = lambda layer_idx=0: before
        else:
            given["position_ids"] = positions + self.offset if self.offset else positions
        for layer, pair in enumerate(zip(keys, values, strict=True)):
            cache.update(*pair, layer)
        out = self.model(input_ids=ids, past_key_values=cache, use_cache=True, **given)
        return out.logits, [layer.keys for layer in cache.layers], [layer.values for layer in cache.layers]


@one_at_a_time
def import_decoder(
    module: torch.nn.Module,
    *,
    layers: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    context: int | None = None,
    name: str | None = None,
) -> LogicalGraph:
    """The graph of the decoder that a module in eval mode computes.

    A module of your own is called as `module(ids, positions, keys, values) -> (logits, keys, values)`: ids
    and positions are int64 [1, T]; keys and values are lists with one tensor [1, kv_heads, P, head_dim] per
    layer, returned with P + T positions; logits are [1, T, vocabulary]. All four sizes must be given. A
    causal language model of transformers is called through its own cache, and missing sizes are read from its
    config. `context` is the number of positions that the trace covers, cache included: masks and rotary
    tables are verified up to there.

    Linear modules may have the attribute `weight_grid`, as those of `load_feed_forward` do.

    Raises TypeError or ValueError for wrong sizes and for weights that are not finite,
    UnsupportedOperationError with every operation that cannot be compiled, and ImportMismatchError if the
    graph does not compute what the module computes.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module is {type(module).__name__}; a torch.nn.Module is needed")
    require_readable(module)
    name = type(module).__name__ if name is None else name
    transformers = sys.modules.get("transformers")
    with one_thread():
        if transformers is not None and isinstance(module, transformers.PreTrainedModel):
            if adds_by_distance(module):  # a trace with a cache does not show all distances
                ids = torch.zeros(1, TRACED, dtype=torch.int64)
                return import_own(module, ids, (), UNASKED if context is None else context, name)
            traced = _of_transformers(module, layers, kv_heads, head_dim, context)
        else:
            given = dict(zip(SIZES, (layers, kv_heads, head_dim, context), strict=True))
            traced = _of_ones_own(module, given)
        graph = traced.graph(name)
    heads, dims = traced.sizes[0].keys

    def eager(floats: dict[str, torch.Tensor], kept: Sequence[int]) -> EagerText:
        return EagerText(module, floats, kept, heads, dims)

    require_equal_text(graph, module, eager, layers=len(traced.sizes))
    return graph


def traced_context(model: Any, wanted: int | None) -> int:
    """The number of positions to trace a transformers model for, for texts of `wanted` positions; `UNASKED`
    if nobody asks, because a trace takes time and memory for each position."""
    most, wanted = positions_of(model.config), UNASKED if wanted is None else wanted
    return traced_positions(wanted if most is None else most, wanted)


def _at_least(least: int, size: str, value: Any) -> int:
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{size} is {value!r}; an integer of at least {least} is needed")
    return value


def _of_ones_own(module: torch.nn.Module, given: Mapping[str, int | None]) -> "_TextImporter":
    """Trace a module that takes its cache as arguments."""
    if missing := [size for size in SIZES if given[size] is None]:
        raise TypeError(
            f"import_decoder needs {', '.join(missing)} for a module that is not a transformers model"
        )
    sizes = {n: _at_least(TRACED + 1 if n == "context" else 1, n, value) for n, value in given.items()}
    pair = sizes["kv_heads"], sizes["head_dim"]
    return _traced(module, sizes["layers"] * [CacheSizes(pair, pair)], sizes["context"])


def _of_transformers(
    model: Any, layers: int | None, kv_heads: int | None, head_dim: int | None, context: int | None
) -> "_TextImporter":
    """Trace a model of transformers."""
    if (empty := next((name for name, p in model.named_parameters() if not p.numel()), None)) is not None:
        raise UnsupportedOperationError(
            f"{empty} of {subject_of(model)} is empty; every size must be at least 1"
        )
    probed = probe(model)
    parts, subject = missing_parts(model, probed), subject_of(model)
    if probed.sizes is None:
        raise refusal(
            [], SUPPORTED, parts or [MissingPart(name="a cache of its own")], subject, probed.reason
        )
    sizes = probed.sizes if layers is None else probed.sizes[:1] * layers
    sizes = tuple(
        CacheSizes(*((kv_heads or heads, head_dim or dims) for heads, dims in (layer.keys, layer.values)))
        for layer in sizes
    )
    most = positions_of(model.config)
    if most is not None:  # the search for its own positions uses some, too
        _at_least(TRACED + 1, "context", most)
    offset = offset_of(model, len(sizes)) if has_values(model) else 0
    if most is not None:
        context = most - offset if context is None else min(context, most - offset)
    covered = _at_least(TRACED + 1, "context", UNNAMED if context is None else context)
    try:
        traced = _traced(_Functional(model, offset), sizes, covered, "model", parts, subject)
    except UnsupportedOperationError as error:
        name = DECISIONS if DECISION in str(error) else NO_CACHE
        told = parts or [MissingPart(name=name, detail=str(error).partition(": ")[2])]
        raise refusal([], SUPPORTED, told, subject, error.operations[0]) from error
    if context is None:
        traced.graph("")  # report operations that cannot be compiled first
        raise TypeError(f"context is missing: the configuration of {subject} names no number of positions")
    return traced


def _traced(
    module: torch.nn.Module,
    sizes: Sequence[CacheSizes],
    context: int,
    wrapper: str = "",
    parts: Sequence[MissingPart] = (),
    subject: str = "",
) -> "_TextImporter":
    """Export the module for the last tokens of its context. sizes: of the caches of its layers."""
    past = context - TRACED
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)

    def cache(heads: int, dims: int) -> torch.Tensor:  # one number in memory, for any context
        return torch.zeros((), dtype=dtype).expand(1, heads, past, dims)

    ids = torch.zeros(1, TRACED, dtype=torch.int64)
    positions = torch.arange(past, context)
    caches = [cache(*layer.keys) for layer in sizes], [cache(*layer.values) for layer in sizes]
    program = export_program(module, (ids, positions[None], *caches))
    constants = Constants(module, program, changing=True)
    draft = Draft(constants, TRACED, Tables(constants, positions), wrapper)
    return _TextImporter(program, draft, sizes, parts, subject)


class _TextImporter(Importer):
    """Imports a program whose inputs are ids, positions, and the keys and values of earlier passes."""

    supported = SUPPORTED

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        draft: Draft,
        sizes: Sequence[CacheSizes],
        parts: Sequence[MissingPart],
        subject: str,
    ) -> None:
        super().__init__(program, draft)
        self.parts, self.subject = parts, subject
        self.given: list[Node] = []
        self.past: dict[int, str] = {}  # by the first column of a given cache: its name
        self.caches: dict[str, Node] = {}  # by name: the call that appends this pass to it
        self.sizes, self.layers = sizes, len(sizes)
        (output,) = program.graph.find_nodes(op="output")
        self.results: list[Node] = list(output.args[0])
        calls = [node for node in program.graph.nodes if node is not output]
        self.last = {source: node for node in calls for source in node.all_input_nodes}
        self.last.pop(self.results[0], None)
        if len(self.results) != 1 + 2 * self.layers:
            raise ValueError(
                f"the module returns {len(self.results)} tensors; {1 + 2 * self.layers} are needed: logits, "
                f"and the keys and values of {self.layers} layers"
            )

    def graph(self, name: str) -> LogicalGraph:
        """The graph of the language model."""
        (logits,) = self._walk()
        assert logits is not None
        return folded(name, self.draft.operations, logits, self.draft.elements.stride)

    def _refusal(self, problems: Sequence[Problem]) -> UnsupportedOperationError:
        parts = [p for p in self.parts if not p.modules or any(p.holds(q.place.path) for q in problems)]
        return refusal(problems, self.supported, parts, self.subject)

    def _placeholder(self, node: Node) -> None:
        draft = self.draft
        if not isinstance(node.meta.get("val"), torch.Tensor):
            return
        if draft.constants.placeholder(node):
            return
        index = len(self.given)
        self.given.append(node)
        if index == 0:
            draft.lines(node, draft.name("ids"), draft.elements.tokens, 1)
            self.inputs.append(Input("ids", 1, "ids"))
        elif index == 1:
            draft.tables.source = node
        else:
            layer, kind = (index - 2) % self.layers, "keys" if index - 2 < self.layers else "values"
            _, heads, past, dims = shape(node)
            name = f"{kind}_{layer}"
            columns = draft.columns(f"past {name}", heads * dims)
            self.past[int(columns[0])] = name
            draft.contents[node] = draft.elements.indices(
                columns.reshape(1, heads, 1, dims), torch.arange(past)[:, None]
            )

    def _call(self, node: Node) -> None:
        derived = any(source in self.failed for source in node.all_input_nodes)
        super()._call(node)
        if node in self.failed and not derived:
            self._stand_in(node)
        for source in node.all_input_nodes:
            if self.last.get(source) is node:
                self.draft.contents.pop(source, None)  # contents of caches are large

    def _check(self, node: Node) -> None:
        """Does nothing: a call after a failed one is checked by itself, with the stand-in of `_stand_in`."""

    def _stand_in(self, node: Node) -> None:
        """Use a stand-in for a value that cannot be computed, to find the problems of all layers."""
        value = node.meta["val"]
        if (
            not isinstance(value, torch.Tensor)
            or value.ndim < 2
            or not all(type(n) is int for n in value.shape)
        ):
            return
        *lead, features = value.shape
        rows = self.draft.elements.tokens
        if value.numel() == len(rows) * features:
            columns = self.draft.columns(f"none {node.name}", features)
            contents = self.draft.elements.indices(columns, rows[:, None])
        elif lead[-1] == len(rows):
            columns = self.draft.columns(f"none {node.name}", value.numel() // len(rows))
            contents = self.draft.elements.indices(columns.reshape(-1, 1, features), rows[:, None])
        else:
            return
        self.draft.contents[node] = contents.reshape(value.shape)
        self.failed.discard(node)

    def _move(self, node: Node) -> None:
        super()._move(node)
        if node.target == aten.cat.default:
            self._grow(node)

    def _grow(self, node: Node) -> None:
        """Turn the rows of a cache, followed by the rows of this pass, into a `Cache`."""
        draft, elements = self.draft, self.draft.elements
        contents = draft.contents[node]
        if contents.ndim != 4 or contents.shape[-2] != elements.stride:
            return
        name = self.past.get(int(contents.reshape(-1)[0]) // elements.stride)
        if name is None:
            return
        rows, columns = contents[0] % elements.stride, contents[0] // elements.stride
        before = draft.columns(f"past {name}", 0).reshape(len(columns), 1, -1)
        new = columns[:, elements.before :]
        if (
            not torch.equal(rows, torch.arange(elements.stride)[:, None].expand_as(rows))
            or (columns[:, : elements.before] != before).any()
            or (new != new[:, :1]).any()
        ):
            raise Unsupported("the rows of this pass must follow the rows of the cache, for each head")
        heads, _, dims = new.shape
        try:
            taken = rotated(draft, node, new[:, 0])
        except Unsupported as reason:
            self._note(getattr(reason, "node", node), str(reason))
            taken = draft.columns(f"none {name}", heads * dims)
        cache = draft.add(node, name, Cache(heads, dims), draft.value(node, taken.reshape(-1)))
        grown = draft.columns(cache, heads * dims).reshape(1, heads, 1, dims)
        draft.contents[node] = elements.indices(grown, torch.arange(elements.stride)[:, None])
        self.caches[name] = node

    def _outputs(self, node: Node) -> list[str | None]:
        logits, *caches = self.results
        for index, result in enumerate(caches):
            kind, layer = ("keys", "values")[index // self.layers], index % self.layers
            if result not in self.failed and renamed(result) is not self.caches.get(f"{kind}_{layer}"):
                self._note(result, "the returned cache must be the given cache, followed by this pass")
        if logits in self.failed:
            return [None]
        try:
            if shape(logits)[:-1] != (1, TRACED):
                raise Unsupported(
                    f"the logits have shape {list(shape(logits))}; [1, T, vocabulary] is needed"
                )
            if not self.draft.knows(logits):
                raise Unsupported("the logits do not depend on the ids")
            return [self.draft.form(node, logits, self._rows)]
        except Unsupported as reason:
            self._note(getattr(reason, "node", logits), str(reason))
            return [None]
