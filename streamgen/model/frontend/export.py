"""A torch module becomes a LogicalGraph: exported without decomposition, then read call by call (`importer`).

A graph holds for any number of tokens. The module is therefore traced for its example inputs and again for
other numbers of tokens: the largest number, and numbers for which the module takes other decisions
(`extents`). A graph that depends on the number is refused, except for a window of attention, which only shows
with enough tokens.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from streamgen.base.errors import UnsupportedOperationError
from streamgen.base.turns import one_at_a_time
from streamgen.model.frames import Frame
from streamgen.model.frontend.elements import NEEDED
from streamgen.model.frontend.frames import frames_of, grown, layouts_of, may_help, stacked
from streamgen.model.frontend.hidden_tokens import hides_padding
from streamgen.model.frontend.imported import Imported
from streamgen.model.frontend.joined import MOST_COLUMNS, Joined, Reading, as_given, readings
from streamgen.model.frontend.masks import Mask, masks_of, possible_masks, without_padding
from streamgen.model.frontend.module_kinds import require_readable
from streamgen.model.frontend.self_check import require_equal_module
from streamgen.model.frontend.sequences import FewRows, ResultAhead
from streamgen.model.frontend.token_places import IDS_COMPUTED
from streamgen.model.frontend.trace import is_ids
from streamgen.model.frontend.traced_counts import ChangesError, Counts, DependsOnTokensError
from streamgen.model.graph.logical import LogicalGraph

PLAIN = (bool, int, str, type(None))  # types of arguments that are not tensors


@dataclass(frozen=True, eq=False)
class _Asked:
    """A module and its example. longest, framed: as for `import_structured`. options: of `Counts`. numbers:
    the leaves of integers that are numbers and no ids. kinds: by number, the types of leaves that are given
    as floats."""

    module: torch.nn.Module
    leaves: Sequence[Any]
    spec: pytree.TreeSpec
    longest: int
    framed: bool
    options: Mapping[str, Any]
    numbers: frozenset[int] = frozenset()
    kinds: Mapping[int, torch.dtype] = field(default_factory=dict)

    def of_floats(self, masks: Collection[int]) -> "_Asked":
        """The same with truth values and numbers as floats."""
        tensors = {p: leaf for p, leaf in enumerate(self.leaves) if p not in masks and is_ids(leaf)}
        kinds = {p: x.dtype for p, x in tensors.items() if x.dtype == torch.bool or p in self.numbers}
        leaves = [leaf.float() if p in kinds else leaf for p, leaf in enumerate(self.leaves)]
        return replace(self, leaves=leaves, kinds=kinds)

    def counts(self, wrapped: torch.nn.Module, reading: Reading) -> Counts:
        """The module as a reading has it."""
        return Counts(wrapped, reading.leaves, reading.spec, self.longest, **self.options)


@one_at_a_time
def import_module(module: torch.nn.Module, example_inputs: Any) -> LogicalGraph:
    """The graph of a module for inputs of these shapes; the leading dimensions of each input are its tokens:
    all but the last, or fewer if the module flattens the others to features.

    Integers are ids, which choose rows of tables: all of their dimensions are tokens, or the last ones are
    columns, each of which is an input of the graph.

    Attention is among the tokens of the last leading dimension, or of the one that the module chooses; the
    dimensions before it are separate sequences.

    Raises TypeError or ValueError if the module does not run on the inputs or a weight is not finite. Raises
    UnsupportedOperationError with every operation that cannot be compiled, or if the results depend on the
    number of tokens in another way. Raises GraphError if a result is no tensor, and ImportMismatchError if
    the graph does not compute what the module computes. An argument that no result depends on is no input.
    """
    return import_structured(module, example_inputs).graph


@one_at_a_time
def import_structured(
    module: torch.nn.Module,
    example_inputs: Any,
    keywords: Mapping[str, Any] | None = None,
    longest: int = 1,
    within: bool = True,
    framed: bool = True,
) -> Imported:
    """`import_module` with the nests of arguments and results. longest: the number of tokens of the longest
    sequence that will be given, if longer than the example.

    If rows do not stay whole when all dimensions but the last are tokens, more of the last dimensions are
    joined to features, as few as possible. If that does not do either, each input becomes one row, and the
    graph holds for these shapes alone. If no reading does, lines of features within a row may be multiplied
    (`within`): Linears of columns, products of columns, attention among columns. framed: whether the graph
    may hold for the number of tokens of the example alone, if no other does.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module is {type(module).__name__}; a torch.nn.Module is needed")
    require_readable(module)
    given = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    leaves, spec = pytree.tree_flatten((given, dict(keywords or {})))
    masks = masks_of(module, leaves, spec)
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, PLAIN):
            continue
        if not isinstance(leaf, torch.Tensor):
            raise TypeError(f"example input {position} is {type(leaf).__name__}; a torch.Tensor is needed")
        if leaf.is_complex():
            raise TypeError(
                f"example input {position} is {leaf.dtype}; floats, integers or truth values are needed"
            )
        if not leaf.numel() or (is_ids(leaf) and not leaf.ndim):
            raise ValueError(f"example input {position} has shape {list(leaf.shape)}; it must hold tokens")
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise ValueError("no example inputs are given")
    torn: list[bool] = []
    plain = without_padding(leaves, masks)
    asked = _Asked(module, plain, spec, longest, framed, {"torn": torn})
    try:
        return _with_padding(asked, leaves, masks)
    except UnsupportedOperationError as error:
        if not (within and any(torn)) or isinstance(error, DependsOnTokensError):
            raise
        try:
            return _with_padding(replace(asked, options={"within": True}), leaves, masks)
        except UnsupportedOperationError as other:
            raise (other if len(other.operations) < len(error.operations) else error) from None


def _with_padding(asked: _Asked, leaves: Sequence[Any], masks: Mapping[int, Mask]) -> Imported:
    """The import with these masks. Masks become inputs of numbers where that is possible, if they may not
    hide padding, or if each token is computed by itself. leaves: of the example, whose masks may hide
    padding. ValueError if they do and may not.
    """
    imported = _with_masks(asked, masks)
    tokens = {p: mask for p, mask in masks.items() if not mask.rule.of_scores}
    rigid = [p for p, mask in tokens.items() if not imported.masks[mask.name].pads]
    given = rigid if imported.graph.mixes_tokens else list(tokens)
    if given and all(is_ids(leaves[p]) for p in given):
        others = {p: mask for p, mask in masks.items() if p not in given}
        try:
            return _first_reading(replace(asked, leaves=leaves, numbers=frozenset(given)), others)
        except (UnsupportedOperationError, ValueError):
            pass
    for position in rigid:
        if masks[position].hides(leaves[position]).any():
            raise ValueError(
                f"example input {position} ({masks[position].name}) hides tokens, and a result depends on "
                "them, or holds integers for each token; an example of one sequence without padding is needed"
            )
    return imported


def _with_masks(asked: _Asked, masks: Mapping[int, Mask]) -> Imported:
    """The import with these masks; or else with all inputs as masks that may be some, or with integers as
    numbers if the module computes with them."""
    try:
        return _first_reading(asked, masks)
    except (UnsupportedOperationError, ValueError) as error:
        attempts: list[tuple[_Asked, Mapping[int, Mask]]] = []
        if IDS_COMPUTED in str(error):
            integers = [p for p, leaf in enumerate(asked.leaves) if p not in masks and is_ids(leaf)]
            some = [*([p] for p in integers if len(integers) > 1), integers]
            attempts += [(replace(asked, numbers=frozenset(numbers)), masks) for numbers in some]
        possible = possible_masks(asked.module, asked.leaves, asked.spec)
        if possible.keys() - masks.keys():
            attempts.append((asked, possible | dict(masks)))
        more = ""
        for other, taken in attempts:
            try:
                return _first_reading(other, taken)
            except UnsupportedOperationError as refused:
                more = "; ".join(refused.operations) if other.numbers else more
            except ValueError:
                continue
        if more and isinstance(error, UnsupportedOperationError):
            message = f"{error}\nIf the integers are numbers: {more}"
            raise UnsupportedOperationError(message, error.operations) from None
        raise


def _first_reading(asked: _Asked, masks: Mapping[int, Mask]) -> Imported:
    """The import with the first of the `readings` of the inputs that is possible, and if there is one, that
    leaves the leading dimensions of its results as they are.

    If there is none, raise the error of the reading in which the fewest rows are torn, with the fewest
    problems.
    """
    asked = asked.of_floats(masks)
    module, leaves, spec = asked.module, asked.leaves, asked.spec
    refused: list[UnsupportedOperationError] = []
    others: list[Imported] = []
    depends: UnsupportedOperationError | None = None
    for reading in readings(leaves, spec, masks, asked.kinds):
        joins = bool(masks or asked.kinds) or any(extents is not None for extents in reading.trailing)
        wrapped = Joined(module, reading) if joins else module
        try:
            imported = asked.counts(wrapped, reading).imported()
        except ChangesError:
            raise
        except UnsupportedOperationError as error:
            depends = depends or (error if isinstance(error, DependsOnTokensError) else None)
            if not reading.whole or not (refused or others):
                refused.append(error)
            continue
        _require_no_padding(imported, reading.leaves)
        require_equal_module(imported, wrapped, reading.leaves, reading.spec, asked.longest)
        pads = bool(masks) and hides_padding(imported, wrapped, reading)
        placed = as_given(imported, wrapped, reading, pads=pads)
        if placed is not None:
            return placed
        others.append(imported)
    if others:
        return others[0]
    least = min(refused, key=_badness, default=None)
    layouts = layouts_of(module, leaves, spec) if asked.framed else {}
    if asked.framed and (least is None or may_help(least) or layouts):
        try:
            if (imported_so := _in_any_frames(asked, masks, frames_of(leaves, layouts))) is not None:
                return imported_so
        except ChangesError:
            raise
        except UnsupportedOperationError as error:
            refused.append(error)
    if depends is not None:
        raise depends
    if refused:
        least = min(refused, key=_badness)
        if not any(is_ids(leaf) and leaf.ndim > 1 and leaf.shape[-1] > MOST_COLUMNS for leaf in leaves):
            raise least
        raise UnsupportedOperationError(
            f"{least}\nIf the last dimension of ids is columns with a table each: at most {MOST_COLUMNS} "
            "are allowed, because each is an input of its own",
            least.operations,
        )
    shapes = ", ".join(str(list(leaf.shape)) for leaf in leaves if isinstance(leaf, torch.Tensor))
    raise ValueError(
        "the inputs must hold the same number of tokens, or numbers that differ in one dimension alone; "
        f"their shapes are {shapes}"
    )


def _badness(refusal: UnsupportedOperationError) -> tuple[int, int]:
    """The number of torn rows, then that of problems."""
    return sum(NEEDED in line for line in refusal.operations), len(refusal.operations)


def _in_any_frames(
    asked: _Asked, masks: Mapping[int, Mask], frames: Mapping[int, Frame] | None
) -> Imported | None:
    """The import with inputs in the same places of a frame, or else in places of their own."""
    try:
        return _in_frames(asked, masks, frames)
    except UnsupportedOperationError as error:
        if not may_help(error):
            raise
        for longer in stacked(frames or {}, masks):
            try:
                return _in_frames(asked, masks, longer)
            except UnsupportedOperationError:
                continue
        raise


def _in_frames(
    asked: _Asked, masks: Mapping[int, Mask], frames: Mapping[int, Frame] | None
) -> Imported | None:
    """The import with inputs in frames, or in longer ones if the module needs them; None if there are no
    frames, or a result cannot be given."""
    behind: dict[int, int] = {}
    while frames is not None:
        reading = Reading.of_frames(asked.leaves, asked.spec, frames, masks, asked.kinds)
        wrapped = Joined(asked.module, reading)
        wrapped.behind = behind
        try:
            imported = asked.counts(wrapped, reading).imported()
        except FewRows as few:
            frames = grown(frames, few.size, few.behind)
            continue
        except ResultAhead as ahead:
            behind[ahead.position] = ahead.behind
            continue
        _require_no_padding(imported, reading.leaves)
        require_equal_module(imported, wrapped, reading.leaves, reading.spec, asked.longest)
        size = next(iter(frames.values())).size
        imported = replace(imported, graph=replace(imported.graph, tokens=size))
        return as_given(imported, wrapped, reading)
    return None


def _require_no_padding(imported: Imported, leaves: Sequence[Any]) -> None:
    """Raise ValueError for an example that holds padding."""
    for name, leaf in zip(imported.arguments.names, leaves, strict=True):
        wrong = [number for number in sorted(imported.padding.get(name or "", ())) if (leaf == number).any()]
        if wrong:
            raise ValueError(
                f"the example of {name!r} holds the id {wrong[0]}, which the module takes for padding; an "
                "example without padding is needed"
            )
