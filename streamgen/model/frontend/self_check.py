"""The import check: a graph is compared with the module that it was made from, on random inputs.

A language model gets texts of random ids: passes of several tokens and of one, beginning with an empty cache,
and a pass at the end of the context, after random keys and values. A module without a cache computes each
text again in every pass, and texts of other lengths in one pass. Other modules get random numbers in the
shape of their example, and in other shapes with which they run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from streamgen.base.errors import ImportMismatchError
from streamgen.model.frontend.check_switch import is_checking
from streamgen.model.frontend.difference import BOUND, ComparedPass, gap_of, require_equal
from streamgen.model.frontend.eager import (
    HALVES,
    EagerText,
    EagerWhole,
    called,
    fewer_layers,
    floats_of,
    has_values,
)
from streamgen.model.frontend.imported import Imported, places_of
from streamgen.model.frontend.trace import is_ids, plain_attention
from streamgen.model.graph.interpret import Interpreter
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.graph.run import State
from streamgen.model.operations import Attention, Cache, Embedding

TOKENS = (7, 1, 4)  # of the passes of a text: a prompt, a step, several behind a cache
LARGE = 1 << 28  # weights of a language model that is compared with all of its layers, in about 2 seconds
CACHED = 1 << 26  # random numbers in keys and values: 256 MiB


EagerOf = Callable[[dict[str, torch.Tensor], Sequence[int]], EagerText | EagerWhole]


def require_equal_text(
    graph: LogicalGraph,
    module: torch.nn.Module,
    eager_of: EagerOf,
    *,
    layers: int,
    lengths: Sequence[int] = (),
    source: State | None = None,
) -> None:
    """Raise ImportMismatchError unless a language model of so many layers computes what its decoder computes.

    eager_of: makes the module as torch runs it, from parameters by name that replace its own and the numbers
    of its layers. lengths: of texts that are also computed in one pass. source: the state of a text
    before its first pass.

    Of a model of transformers with more than 2^28 weights, only the first layer of each form, the middle
    layer and the last layer are computed, one after the other. Nothing is compared within `checking(False)`,
    or if weights have no values (on the meta device).
    """
    if not is_checking() or not has_values(module):
        return
    with fewer_layers(module, graph, layers, LARGE) as (some, kept, left_out):
        floats = floats_of(module, left_out)

        def passes(interpreter: Interpreter) -> Iterator[ComparedPass]:
            return _Text(some, interpreter, eager_of(floats, kept), source or {}).passes(lengths)

        require_equal(some, passes, module, kept)


class _Text:
    """One text, in a graph and in a module."""

    def __init__(
        self,
        graph: LogicalGraph,
        interpreter: Interpreter,
        eager: EagerText | EagerWhole,
        source: State,
    ) -> None:
        self.graph, self.interpreter, self.eager = graph, interpreter, eager
        self.random = np.random.default_rng(1)
        self.position, self.source = 0, source
        self.state = source
        tables = (o.op.extents[0] for _, o in graph.walk() if isinstance(o.op, Embedding))
        self.ids = np.setdiff1d(
            np.arange(next(tables)), eager.padding
        )  # padding has no positions in some models

    def passes(self, lengths: Sequence[int]) -> Iterator[ComparedPass]:
        """Passes from the beginning of the text, then a pass at the end of the context, then texts of these
        lengths."""
        for tokens in TOKENS:
            left = self.graph.context - self.position
            if left:
                yield self._next(min(tokens, (left + 1) // 2))  # leave some of a short context for each pass
        if self._to_the_end(TOKENS[-1]):
            yield self._next(TOKENS[-1])
        for length in lengths:
            self.position, self.state = 0, self.source
            self.eager.begin()
            yield self._next(length)

    def _next(self, tokens: int) -> ComparedPass:
        ids = self.random.choice(self.ids, tokens)
        ids[-1] = self.ids[-1]
        logits, position = self.graph.outputs[0], self.position
        computed, self.state = self.interpreter(
            {"ids": ids}, position=position, state=self.state, every_row=True, outputs=(logits,)
        )
        self.position += tokens
        label = f"{tokens} token{'s' * (tokens > 1)} at position {position}"
        try:
            wanted = self.eager(ids)
            computed = {**computed, logits: computed[logits][-len(wanted) :]}
            if gap_of(computed[logits], wanted) > BOUND and (whole := self.eager.at_once(tokens)) is not None:
                wanted = min(whole, wanted, key=lambda rows: gap_of(computed[logits], rows))
            return ComparedPass(label=label, graph=computed, module={logits: wanted})
        except Exception as error:  # a module may raise anything
            raise ImportMismatchError(
                f"the imported graph runs on {label}; the module does not: {error}\n"
                "A text begins with an empty cache and continues in passes of any number of tokens, at "
                "positions 0, 1, 2 ...\n"
                "CompileConfig.check_import=False compiles the graph as it is."
            ) from error

    def _to_the_end(self, tokens: int) -> bool:
        """Move to the place where `tokens` tokens of the context are left, after random keys and values
        instead of those of earlier passes. False if that place is already passed, or for a module without a
        cache."""
        if isinstance(self.eager, EagerWhole):
            return False
        pairs = self._pairs(self.eager)
        caches = {path: o.op for path, o in self.graph.walk() if isinstance(o.op, Cache)}
        numbers = sum(op.heads * op.head_dim for op in caches.values())
        past = min(self.graph.context - tokens, CACHED // max(numbers, 1))
        if not pairs or past < 1 or self.position == self.graph.context:
            return False
        state = {
            path: self.random.standard_normal((past, op.heads, op.head_dim), np.float32)
            for path, op in caches.items()
        }
        self.eager.go_on_behind(*([state[pair[side]] for pair in pairs] for side in (0, 1)))
        self.state = {path: rows.reshape(past, -1) for path, rows in state.items()}
        self.position = past
        return True

    def _pairs(self, eager: EagerText) -> list[tuple[str, str]]:
        """Paths of the keys and values of each layer of the module, in its order; empty if the layers cannot
        be told apart by them."""
        layers: dict[tuple[str, str], int] = {}
        for path, operation in self.graph.walk():
            if isinstance(operation.op, Attention):
                prefix = path.removesuffix(operation.name)
                keys, values = (f"{prefix}{name}" for name in operation.inputs[1:])
                if not self.state.keys() >= {keys, values}:
                    return []
                layers.setdefault((keys, values), eager.layer_of(self.state[keys], len(layers)))
        whole = sorted(layers.values()) == list(range(eager.count))
        return sorted(layers, key=layers.__getitem__) if whole else []


def require_equal_module(
    imported: Imported, module: torch.nn.Module, leaves: Sequence[Any], spec: pytree.TreeSpec, longest: int
) -> None:
    """Raise ImportMismatchError unless a graph computes what its module computes.

    leaves, spec: the example arguments of the module. Their tensors are replaced by random numbers of the
    same shapes, and then with another extent of the last leading dimension that the module does not fix: the
    first with which it runs of the longest sequence, one token more, one less, or twice as many. Nothing is
    compared within `checking(False)`, or if weights have no values (on the meta device).
    """
    if not is_checking() or not has_values(module):
        return
    both = _Both(imported, module, leaves, spec)
    others = both.others(longest)
    require_equal(imported.graph, lambda interpreter: both.passes(interpreter, others), module)


def require_equal_extents(
    imported: Imported, module: torch.nn.Module, leaves: Sequence[Any], spec: pytree.TreeSpec
) -> None:
    """`require_equal_module` for the extents of these arguments alone. Also raises ImportMismatchError if a
    result has another number of dimensions."""
    if not has_values(module):
        return
    both = _Both(imported, module, leaves, spec)
    both.require_form()
    if is_checking():
        require_equal(imported.graph, lambda interpreter: both.passes(interpreter, [{}]), module)


def _as_float(leaf: Any) -> Any:
    """A tensor of halves as one of float32; anything else as it is."""
    return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype in HALVES else leaf


class _Both:
    """A module and its graph."""

    def __init__(
        self, found: Imported, module: torch.nn.Module, leaves: Sequence[Any], spec: pytree.TreeSpec
    ) -> None:
        self.found, self.module, self.leaves, self.spec = found, module, leaves, spec
        self.floats = floats_of(module)
        self.rows = found.graph.vocabularies
        self.leads = {leaf.shape[:-1] for leaf in leaves if isinstance(leaf, torch.Tensor)}

    def passes(
        self, interpreter: Interpreter, extents: Sequence[Mapping[int, int]]
    ) -> Iterator[ComparedPass]:
        """Passes with these leading extents instead of the example's. A module that refuses random numbers
        gets the numbers of the example, in the extents of the example alone."""
        for changed in extents:
            yield self._pass(interpreter, *self._ran(changed))

    def _ran(self, changed: Mapping[int, int]) -> tuple[list[Any], Any]:
        leaves = self._random(changed)
        try:
            return leaves, self._run(leaves)
        except Exception:  # whatever a module raises, such as of numbers that are no probabilities
            if changed:  # with which it has run already
                raise
            leaves = [_as_float(leaf) for leaf in self.leaves]
            return leaves, self._run(leaves)

    def require_form(self) -> None:
        """Raise ImportMismatchError if a result has another number of dimensions than with other extents."""
        leaves = pytree.tree_leaves(self._ran({})[1])
        shapes = tuple(tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else None for leaf in leaves)
        single = replace(self.found.results, shapes=shapes)
        if single.form != self.found.results.form:
            raise ImportMismatchError(
                "the number of dimensions of a result depends on the number of tokens: "
                f"{self.found.results.form} with several, {single.form} with one. A squeeze must name the "
                "dimension that it removes"
            )

    def others(self, longest: int) -> list[Mapping[int, int]]:
        """The example's extents, and other extents with which the module runs."""
        lead = next(iter(self.leads))
        free = [d for d in range(len(lead)) if d not in self.found.only]
        if len(self.leads) > 1 or not free:
            return [{}]
        d, n, most = free[-1], lead[free[-1]], places_of(self.found.graph)
        for other in (max(longest, n + 1), n + 1, n - 1, 2 * n):
            try:
                if other and (not most or other <= most):
                    self._run(self._random({d: other}))
                    return [{}, {d: other}]
            except Exception:  # noqa: BLE001 - whatever a module raises of too many tokens
                continue
        return [{}]

    def _random(self, extents: Mapping[int, int]) -> list[Any]:
        """The example with random numbers, the same in each call."""
        generator = torch.Generator().manual_seed(1)
        taken = []
        for name, leaf in zip(self.found.arguments.names, self.leaves, strict=True):
            if isinstance(leaf, torch.Tensor):
                shape = [*(extents.get(d, n) for d, n in enumerate(leaf.shape[:-1])), leaf.shape[-1]]
                if name is not None and name in self.rows:
                    leaf = self.found.drawn(name, shape, generator).to(leaf.dtype)
                elif is_ids(leaf):  # no result depends on them
                    leaf = torch.zeros(shape, dtype=leaf.dtype)
                else:
                    leaf = torch.randn(shape, generator=generator).to(leaf.dtype)
            taken.append(_as_float(leaf))
        return taken

    def _run(self, leaves: Sequence[Any]) -> Any:
        args, keywords = pytree.tree_unflatten(
            pytree.tree_map_only(torch.Tensor, torch.clone, leaves), self.spec
        )
        with plain_attention():
            return called(self.module, self.floats, args, keywords)

    def _pass(self, interpreter: Interpreter, leaves: Sequence[Any], results: Any) -> ComparedPass:
        given = self.found.arguments.taken(pytree.tree_unflatten(leaves, self.spec))
        wanted = self.found.results.taken(results)
        shapes = [list(tensor.shape) for tensor in given.values()]
        sequences, tokens = self._sequences(shapes[0][:-1])
        graph = self.found.graph
        rows = {
            name: tensor.numpy().reshape(sequences, tokens)
            if name in self.rows
            else tensor.double().numpy().reshape(sequences, tokens, -1)
            for name, tensor in given.items()
            if name not in self.found.unused
        }
        for value in graph.inputs:
            if value.name not in given:  # the places of tokens
                rows[value.name] = np.tile(np.arange(tokens), (sequences, 1))
        passes = [interpreter({name: x[i] for name, x in rows.items()})[0] for i in range(sequences)]
        return ComparedPass(
            label="random inputs of shape " + ", ".join(map(str, shapes)),
            graph={name: np.concatenate([results[name] for results in passes]) for name in graph.outputs},
            module={
                name: tensor.double().numpy().reshape(-1, graph.features(name))
                for name, tensor in wanted.items()
            },
        )

    def _sequences(self, lead: Sequence[int]) -> tuple[int, int]:
        """The number of separate sequences, and the tokens of each."""
        own = [n for d, n in enumerate(lead) if self.found.only.get(d) != 1] or [1]
        return prod(own[:-1]), own[-1]
