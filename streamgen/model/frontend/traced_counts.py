"""A module traced with different numbers of tokens, whose graphs must be alike."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from streamgen.base.errors import ImportMismatchError, UnsupportedOperationError
from streamgen.model.frontend.alike import alike, alike_for
from streamgen.model.frontend.draft import Draft
from streamgen.model.frontend.extents import Decision, decisions, one_token, unseen, untried
from streamgen.model.frontend.imported import Imported, Structure, of_sequences, places_of
from streamgen.model.frontend.importer import Importer
from streamgen.model.frontend.joined import WRAPPER, Joined
from streamgen.model.frontend.module_kinds import changed_state
from streamgen.model.frontend.self_check import require_equal_extents
from streamgen.model.frontend.trace import Constants, export_program, is_ids, one_thread, plain_attention


class ChangesError(UnsupportedOperationError):
    """What the module computes changes from call to call."""


class DependsOnTokensError(UnsupportedOperationError):
    """What the module computes depends on the number of tokens."""


class _OtherFormError(DependsOnTokensError):
    """The number of dimensions of a result depends on the number of tokens."""


class _DoesNotRun(ValueError):  # noqa: N818 - callers see a ValueError
    """The module raises an error for its inputs."""


class Counts:
    """A module and its example inputs, traced with different numbers of tokens."""

    def __init__(
        self,
        module: torch.nn.Module,
        leaves: Sequence[Any],
        spec: pytree.TreeSpec,
        longest: int,
        *,
        within: bool = False,
        torn: list[bool] | None = None,
    ) -> None:
        """within: whether lines of features within a row may be multiplied. torn: takes whether such a
        product was refused, for each trace."""
        self.within, self.torn = within, [] if torn is None else torn
        self.module, self.leaves, self.spec, self.longest = module, leaves, spec, longest
        self.arrays: dict[tuple[Any, ...], Any] = {}  # constants, which all traces share
        self.decided: dict[tuple[tuple[int, int], ...], list[Decision]] = {}  # by leading extents
        self.wrapper = WRAPPER if isinstance(module, Joined) else ""

    def imported(self) -> Imported:
        """The import of the module. Raises UnsupportedOperationError if it does not hold for any number of
        tokens, and ValueError if the module does not run."""
        return self._widened(self._trace({}), 0)

    def _widened(self, first: Imported, dimension: int) -> Imported:
        """The import, given that of the example. Longer sequences are tried from a leading dimension on."""
        leads = {leaf.shape[:-1] for leaf in self.leaves if isinstance(leaf, torch.Tensor)}
        lead = next(iter(leads))
        if len(leads) > 1 or not lead:
            return first
        return self._by_sequence(self._of_any_extents(first, lead, dimension))

    def _by_sequence(self, imported: Imported) -> Imported:
        """The import; an error unless its sequences are those of the last dimension of more than one token
        that the module does not fix."""
        if not of_sequences(imported.graph):
            return imported
        lead = next(shape[:-1] for shape in imported.arguments.shapes if shape is not None)
        traced = next((d for d in reversed(range(len(lead))) if lead[d] != 1), None)
        if traced != imported.sequence:
            raise UnsupportedOperationError(
                f"the module reduces dimension {traced} of its inputs, or tells its places apart; that must "
                "be the last of their leading dimensions"
            )
        return imported

    def _of_any_extents(self, first: Imported, lead: Sequence[int], dimension: int) -> Imported:
        if first.graph.mixes_tokens:
            for d in range(dimension, len(lead)):
                if wide := self._with_window(first, d, lead[d]):
                    return wide
        longer = {d: n + 1 if n > 1 else 3 for d, n in enumerate(lead)}
        try:
            if alike(first.graph, self._trace(longer).graph):
                return self._decided(first)
        except (_DoesNotRun, UnsupportedOperationError):
            pass
        return self._decided(self._by_dimension(first, lead))

    def _decided(self, imported: Imported) -> Imported:
        """The import; an error if any number of tokens at which the module decides gives another graph. A
        dimension of extent 1 that the module removes stays 1."""
        lead = next(shape[:-1] for shape in imported.arguments.shapes if shape is not None)
        for d in range(len(lead)):
            if d in imported.only:
                continue
            try:
                self._decided_by(imported, d, list(lead))
            except _OtherFormError:
                if lead[d] != 1:
                    raise
                imported = replace(imported, only={**imported.only, d: 1})
        return imported

    def _decided_by(self, imported: Imported, d: int, lead: list[int]) -> None:
        """Raise UnsupportedOperationError if another extent of a leading dimension leads to another graph."""
        most = max(lead[d], self.longest) if imported.graph.mixes_tokens and d == len(lead) - 1 else None
        tried = [lead[d]]
        known = [one_token(d), *self._decisions(lead, imported.only)]
        while chosen := untried(known, d, lead, tried, most):
            other, line = chosen
            tried.append(other)
            extents = [*lead[:d], other, *lead[d + 1 :]]
            try:
                self._require_alike(imported, extents, d, lead[d], line)
            except _DoesNotRun:
                continue
            if other > 1:  # torch sees no symbol in 1
                known += [more for more in self._decisions(extents, imported.only) if more not in known]

    def _require_alike(self, imported: Imported, extents: list[int], d: int, known: int, line: str) -> None:
        """Raise UnsupportedOperationError unless these extents, with another extent in dimension d, give the
        same graph, and results nested in the same way, with as many dimensions."""
        if extents[d] == 1 and of_sequences(imported.graph):  # a trace of one token reduces none
            leaves = self._run(dict(enumerate(extents)))
            try:
                return require_equal_extents(imported, self.module, leaves, self.spec)
            except ImportMismatchError as error:
                depends = self._depends(d, extents[d], known, line)
                raise type(depends)(f"{depends}\n{error}") from None
        try:
            traced = self._trace(dict(enumerate(extents)))
        except UnsupportedOperationError as error:
            raise UnsupportedOperationError(f"{self._inputs(d, extents[d])}: {error}") from None
        if traced.results.form != imported.results.form:
            raise _OtherFormError(
                f"{self._inputs(d, extents[d])}, results are {traced.results.form}; with {known} they are "
                f"{imported.results.form}: the number of their dimensions must not depend on the number of "
                "tokens, and a squeeze must name the dimension that it removes"
            )
        graph = traced.graph
        longer, shorter = (graph, imported.graph) if extents[d] > known else (imported.graph, graph)
        if not alike_for(min(extents[d], known), longer, shorter):
            raise self._depends(d, extents[d], known, line)

    def _decisions(self, lead: Sequence[int], only: Mapping[int, int]) -> list[Decision]:
        """The decisions of the module by its leading dimensions, except by those that it fixes."""
        extents = dict(only)
        for d, n in enumerate(lead):
            if d not in only:  # torch tells symbols apart by their extents, and 1 is none
                extents[d] = next(m for m in range(max(n, 2), n + 99) if m not in extents.values())
        key = tuple(sorted(extents.items()))
        if key not in self.decided:
            free = [d for d in range(len(lead)) if d not in only]
            try:
                leaves = self._run(extents)
                with plain_attention():
                    decided = decisions(self.module, leaves, self.spec, free)
            except _DoesNotRun:
                decided = None
            self.decided[key] = (
                [decision for d in free for decision in unseen(d)] if decided is None else decided
            )
        return self.decided[key]

    def _by_dimension(self, imported: Imported, lead: Sequence[int]) -> Imported:
        """Test each leading dimension by itself: either any extent works, or only the one that the module
        fixes."""
        base: dict[int, int] = {}
        only: dict[int, int] = {}
        for d, n in enumerate(lead):
            for other in (n + 1, n - 1, 2 * n):
                if other in (0, n):
                    continue
                try:
                    changed = self._trace(base | {d: other})
                except _DoesNotRun:
                    continue
                except UnsupportedOperationError as error:
                    if n == 1 and len(lead) > 1:  # as in [tokens, 1, features]
                        continue
                    raise UnsupportedOperationError(f"{self._inputs(d, other)}: {error}") from None
                if not alike_for(other, imported.graph, changed.graph):
                    more = self._trace(base | {d: 3}) if n == 1 else imported
                    if not alike(changed.graph, more.graph):
                        raise self._depends(d, other, n)
                    imported, base = changed, base | {d: other}  # one token does not show a mask
                break
            else:
                only[d] = n
        return replace(imported, only=only)

    def _with_window(self, imported: Imported, dimension: int, extent: int) -> Imported | None:
        """The import of longer sequences along a dimension, if these show a mask or its window; else None."""
        longest = self._longest(dimension, extent)
        if longest <= extent:
            return None
        try:
            wide = self._trace({dimension: longest})
        except UnsupportedOperationError as error:
            if extent == 1:  # as in [tokens, 1, features]
                return None
            raise UnsupportedOperationError(f"{self._inputs(dimension, longest)}: {error}") from None
        if alike(imported.graph, wide.graph):
            if extent >= self.longest or places_of(wide.graph) <= places_of(imported.graph):
                return None
        elif not alike_for(extent, wide.graph, imported.graph):
            if extent == 1:
                return None
            raise self._depends(dimension, longest, extent)
        counts = Counts(
            self.module,
            self._leaves({dimension: longest}),
            self.spec,
            longest,
            within=self.within,
            torn=self.torn,
        )
        counts.arrays, counts.decided = self.arrays, self.decided
        return counts._widened(wide, dimension)

    def _longest(self, dimension: int, extent: int) -> int:
        """The greatest extent for which the module runs: at most the longest sequence, or one more than the
        example."""
        runs, not_more = extent, max(extent + 1, self.longest)
        trial = not_more
        while runs < not_more:
            try:
                self._run({dimension: trial})
                runs = trial
            except _DoesNotRun:
                not_more = trial - 1
            trial = (runs + not_more + 1) // 2
        return runs

    def _depends(self, dimension: int, extent: int, other: int, line: str = "") -> UnsupportedOperationError:
        if state := changed_state(self.module, lambda: self._run({})):
            return ChangesError(
                f"the module changes in every call: {state}. "
                + (
                    "It is in training mode; call module.eval() first"
                    if self.module.training
                    else "A graph has no state: its results may depend only on weights and inputs"
                )
            )
        where = f", read at {line}" if line else ""
        return DependsOnTokensError(
            f"the result of the module depends on the extent of dimension {dimension} of its inputs{where}: "
            f"the result for {extent} differs from the result for {other}. A graph holds for any number of "
            "tokens, so only views and masks may depend on x.shape"
        )

    def _inputs(self, dimension: int, extent: int) -> str:
        return f"with an extent of {extent} of dimension {dimension} of its inputs"

    def _leaves(self, extents: Mapping[int, int]) -> list[Any]:
        """The example inputs, with other extents of some leading dimensions."""
        return [_resized(leaf, extents) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]

    def _run(self, extents: Mapping[int, int]) -> list[Any]:
        """Run the module on the example inputs with these extents; return the inputs."""
        leaves = self._leaves(extents)
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        try:
            own = self.module.reading.rejoined(leaves) if isinstance(self.module, Joined) else leaves
        except ValueError as error:  # a frame has one number of tokens
            raise _DoesNotRun(str(error)) from error
        with plain_attention():
            _run(self.module, args, kwargs, [leaf for leaf in own if isinstance(leaf, torch.Tensor)])
        return leaves

    def _trace(self, extents: Mapping[int, int]) -> Imported:
        """Export and import the module, with other extents of some leading dimensions."""
        leaves = self._run(extents)
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        with plain_attention():
            program = export_program(self.module, args, kwargs)
        first = next(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        rows = first.numel() // first.shape[-1]
        owner = getattr(self.module, self.wrapper) if self.wrapper else self.module
        prefix = self.wrapper and f"{self.wrapper}."
        constants = Constants(owner, program, self.arrays, changing=True, prefix=prefix)
        run = next((extent for extent in reversed(first.shape[:-1]) if extent != 1), 0)
        reading = self.module.reading if isinstance(self.module, Joined) else None
        draft = Draft(
            constants,
            rows,
            wrapper=self.wrapper,
            run=run,
            masked=reading is not None and bool(reading.masks),
            within=self.within,
            framed=reading is not None and bool(reading.frames),
        )
        padding: dict[str, set[int]] = {}
        draft.sequences.padding = padding
        if isinstance(self.module, Joined):
            draft.sequences.results = self.module.results
        importer = Importer(program, draft)
        try:
            with one_thread():
                graph, results = importer.run()
        finally:
            self.torn.append(draft.torn)
        names = iter([value.name for value in importer.inputs])
        arguments = [next(names) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
        nodes = program.graph.find_nodes(op="output")[0].args[0]
        spec = program.call_spec.out_spec
        assert spec is not None
        return Imported(
            graph,
            Structure(self.spec, tuple(arguments), tuple(map(_shape, leaves))),
            Structure(spec, tuple(results), tuple(_shape(n and n.meta["val"]) for n in nodes)),
            {},
            padding={name: frozenset(numbers) for name, numbers in padding.items()},
            types=_types(results, nodes),
            unused={v.name: v.features for v in importer.inputs if v not in graph.inputs},
        )


def _types(results: Sequence[str | None], nodes: Sequence[Any]) -> dict[str, str]:
    """The types of results that are no floats."""
    values = {name: node.meta["val"] for name, node in zip(results, nodes, strict=True) if name is not None}
    return {n: str(value.dtype).removeprefix("torch.") for n, value in values.items() if is_ids(value)}


def _shape(leaf: Any) -> tuple[int, ...] | None:
    return tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else None


def _resized(tensor: torch.Tensor, extents: Mapping[int, int]) -> torch.Tensor:
    """A copy with other extents; elements are repeated as needed."""
    for dimension, extent in extents.items():
        tensor = tensor.index_select(dimension, torch.arange(extent) % tensor.shape[dimension])
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _run(module: torch.nn.Module, args: Any, kwargs: Any, tensors: Sequence[torch.Tensor]) -> None:
    shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
    given = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
    try:
        with torch.no_grad():
            module(*given[0], **given[1])
    except Exception as error:  # a module may raise anything, such as an AssertionError for too many tokens
        outside = isinstance(error, IndexError) and any(map(is_ids, tensors))
        reason = f"{error}; an id may be outside its table" if outside else str(error)
        raise _DoesNotRun(f"the module does not run on inputs of shape {shapes}: {reason}") from error
