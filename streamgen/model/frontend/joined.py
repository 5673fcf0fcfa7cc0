"""Readings of example inputs: which of their dimensions are tokens, and which are joined to features.

All dimensions but the last are usually tokens. A module that flattens images, such as [B, 1, 28, 28] to 784
features, needs fewer of them: its inputs are read as rows of joined features, which `Joined` gives back
to the module in their own shape. In the last reading no dimension is tokens: each input is one row, *whole*,
and the graph holds for these shapes alone.

Integers are ids. Either all dimensions of theirs are tokens, or the last ones are columns, such as categories
[B, 3]. Each column is an input by itself, [tokens, 1].
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import islice
from math import prod
from types import MappingProxyType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from streamgen.base.errors import GraphError
from streamgen.model.frames import Frame
from streamgen.model.frontend.frames import framed, result_frame, unframed
from streamgen.model.frontend.imported import Imported, Structure
from streamgen.model.frontend.masks import Mask
from streamgen.model.frontend.trace import is_ids
from streamgen.model.nests import ALL, leading_rule

WRAPPER = "inner"  # attribute of Joined
MOST_COLUMNS = 64  # of ids that become an input each
MOST_ELEMENTS = 1 << 13  # of all inputs that are read whole


@dataclass(frozen=True, eq=False)
class Reading:
    """Example arguments, with the last dimensions of their tensors joined.

    own: the nest of the module. leaves, spec: as the importer takes them, with a tuple of columns in the
    place of ids that have several. trailing: for each leaf of `own`, the extents that are joined; None for a
    leaf that stays as it is. columns: for each leaf of `own`, how many of `leaves` it becomes. whole: no
    dimension is tokens. masks: by number the leaves of `own` that are masks; their leaves are None, and the
    module gets masks without padding. kinds: by number of a leaf of `own` that the importer takes as floats,
    the type that the module takes. frames: by number of a leaf of `own`, how it lies in a frame.
    """

    own: pytree.TreeSpec
    leaves: Sequence[Any]
    spec: pytree.TreeSpec
    trailing: Sequence[tuple[int, ...] | None]
    columns: Sequence[int]
    whole: bool = False
    masks: Mapping[int, Mask] = field(default_factory=dict)
    kinds: Mapping[int, torch.dtype] = field(default_factory=dict)
    frames: Mapping[int, Frame] = field(default_factory=dict)

    @classmethod
    def of_frames(
        cls,
        leaves: Sequence[Any],
        own: pytree.TreeSpec,
        frames: Mapping[int, Frame],
        masks: Mapping[int, Mask],
        kinds: Mapping[int, torch.dtype],
    ) -> "Reading":
        """Each tensor in its frame. masks, kinds: of the leaves, by number."""
        rows = [framed(frames[p], leaf) if p in frames else leaf for p, leaf in enumerate(leaves)]
        tokens = [
            leaf.ndim - (not is_ids(leaf)) if isinstance(leaf, torch.Tensor) and p not in masks else None
            for p, leaf in enumerate(rows)
        ]
        return replace(cls.of(rows, own, tokens, masks), frames=frames, kinds=kinds)

    @classmethod
    def of(
        cls,
        leaves: Sequence[Any],
        own: pytree.TreeSpec,
        tokens: Sequence[int | None],
        masks: Mapping[int, Mask] = MappingProxyType({}),
    ) -> "Reading":
        """tokens: for each leaf, how many of its dimensions are tokens; None for a leaf that is no tensor, or
        a mask."""
        trailing: list[tuple[int, ...] | None] = []
        given: list[Any] = []
        for position, (leaf, count) in enumerate(zip(leaves, tokens, strict=True)):
            if position in masks:
                trailing.append(None)
                given.append(None)
                continue
            joined = count is not None and (is_ids(leaf) or leaf.ndim != count + 1)
            trailing.append(tuple(leaf.shape[count:]) if joined else None)
            rows = leaf.reshape(*leaf.shape[:count], prod(leaf.shape[count:])) if joined else leaf
            columns = rows.split(1, dim=-1) if joined and is_ids(leaf) else [rows]
            given.append(columns[0] if len(columns) == 1 else tuple(columns))
        counts = [len(value) if isinstance(value, tuple) else 1 for value in given]
        flat, spec = pytree.tree_flatten(pytree.tree_unflatten(given, own))
        return cls(own, flat, spec, trailing, counts, masks=masks)

    @classmethod
    def of_whole(cls, leaves: Sequence[Any], own: pytree.TreeSpec) -> "Reading":
        """Each tensor as one row, with a column for each id."""
        trailing = [tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
        given: list[Any] = []
        for leaf in leaves:
            rows = leaf.reshape(-1) if isinstance(leaf, torch.Tensor) else leaf
            columns = rows.split(1) if is_ids(leaf) else (rows,)
            given.append(columns[0] if len(columns) == 1 else tuple(columns))
        counts = [len(value) if isinstance(value, tuple) else 1 for value in given]
        flat, spec = pytree.tree_flatten(pytree.tree_unflatten(given, own))
        return cls(own, flat, spec, trailing, counts, whole=True)

    def rejoined(self, leaves: Sequence[Any], hidden: int = 0) -> list[Any]:
        """The leaves of `own` from those that the importer takes. hidden: tokens that masks hide at the end
        of a sequence."""
        rest = iter(leaves)
        pieces = [list(islice(rest, count)) for count in self.columns]
        own = [
            some[0] if extents is None else _joined(some).reshape((*some[0].shape[:-1], *extents))
            for some, extents in zip(pieces, self.trailing, strict=True)
        ]
        for position, kind in self.kinds.items():
            own[position] = _of_kind(own[position], kind)
        tensors = [leaf for leaf in own if isinstance(leaf, torch.Tensor)]
        shapes = [leaf.shape if is_ids(leaf) else leaf.shape[:-1] for leaf in tensors]
        for position, mask in self.masks.items():
            lead = next(shape for shape in shapes if len(shape) >= len(mask.lead))
            own[position] = mask.of(lead, hidden)
        for position, frame in self.frames.items():
            rows = own[position]
            ones = position in self.masks
            own[position] = rows.narrow(frame.dimension, 0, frame.tokens) if ones else unframed(frame, rows)
        return own


def _of_kind(numbers: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Floats as truth values or integers."""
    if kind == torch.bool:
        return numbers > 0.5
    bits = torch.iinfo(kind)
    return (numbers.clamp(bits.min, bits.max) if bits.bits <= 16 else numbers).to(kind)


def _joined(columns: Sequence[torch.Tensor]) -> torch.Tensor:
    """Columns side by side; one column is itself, so that a change in place is seen."""
    return columns[0] if len(columns) == 1 else torch.cat(tuple(columns), -1)


class Joined(torch.nn.Module):
    """A module whose inputs come as a reading has them."""

    def __init__(self, module: torch.nn.Module, reading: Reading) -> None:
        super().__init__()
        setattr(self, WRAPPER, module)
        self.reading, self.training = reading, module.training
        self.results: dict[int, Frame] = {}  # of the last run, by number
        self.behind: dict[int, int] = {}  # by number of a result: places of the frame behind it

        @wraps(module.forward)  # whose parameters name the inputs
        def forward(*args: Any, **keywords: Any) -> Any:
            leaves = [x for x in pytree.tree_leaves((args, keywords)) if isinstance(x, torch.Tensor)]
            own = reading.rejoined(pytree.tree_leaves((args, keywords)))
            args, keywords = pytree.tree_unflatten(own, reading.own)
            results = module(*args, **keywords)
            return self._in_frame(results, leaves[0]) if reading.frames else results

        self.forward = forward

    def _in_frame(self, results: Any, first: torch.Tensor) -> Any:
        """The results of the module, those with fewer tokens in the frame."""
        frame = next(iter(self.reading.frames.values()))
        given, spec = pytree.tree_flatten(results)
        lead, behind = first.shape[:-1], self.behind
        frames = {p: result_frame(frame, r, lead, behind.get(p, 0)) for p, r in enumerate(given)}
        self.results = {p: own for p, own in frames.items() if own is not None}
        rows = [framed(self.results[p], r) if p in self.results else r for p, r in enumerate(given)]
        return pytree.tree_unflatten(rows, spec)


def readings(
    leaves: Sequence[Any],
    spec: pytree.TreeSpec,
    masks: Mapping[int, Mask] = MappingProxyType({}),
    kinds: Mapping[int, torch.dtype] = MappingProxyType({}),
) -> Iterator[Reading]:
    """The readings of example arguments.

    First all dimensions of ids and all but the last of others are tokens, if the inputs then hold equal
    numbers of tokens. Then fewer and fewer leading dimensions are tokens. The last reading is whole, unless
    there are too many ids or elements. masks: the leaves that are masks, by number. kinds: as of a reading;
    all dimensions of these leaves are tokens if they then hold as many as others.
    """
    for reading in _readings(leaves, spec, masks, kinds):
        yield replace(reading, kinds=kinds)


def _readings(
    leaves: Sequence[Any],
    spec: pytree.TreeSpec,
    masks: Mapping[int, Mask],
    kinds: Mapping[int, torch.dtype],
) -> Iterator[Reading]:
    ranks = [
        leaf.ndim - (not is_ids(leaf)) if isinstance(leaf, torch.Tensor) and p not in masks else None
        for p, leaf in enumerate(leaves)
    ]
    others = {
        prod(leaf.shape[:rank])
        for p, (leaf, rank) in enumerate(zip(leaves, ranks, strict=True))
        if rank is not None and p not in kinds
    }
    for p in kinds:
        if leaves[p].numel() in others:
            ranks[p] = leaves[p].ndim
    tensors = [(leaf, rank) for leaf, rank in zip(leaves, ranks, strict=True) if rank is not None]
    if (
        min(rank for _, rank in tensors) >= 0
        and len({prod(leaf.shape[:rank]) for leaf, rank in tensors}) == 1
    ):
        yield Reading.of(leaves, spec, ranks, masks)
    if masks:
        return
    for tokens in range(max(rank for _, rank in tensors), 0, -1):
        if any(rank < tokens for _, rank in tensors) or all(rank == tokens for _, rank in tensors):
            continue
        columns = [prod(leaf.shape[tokens:]) for leaf, _ in tensors if is_ids(leaf)]
        if len({leaf.shape[:tokens] for leaf, _ in tensors}) == 1 and max(columns, default=0) <= MOST_COLUMNS:
            yield Reading.of(leaves, spec, [None if rank is None else tokens for rank in ranks])
    elements = sum(leaf.numel() for leaf, _ in tensors)
    if (
        elements <= MOST_ELEMENTS
        and sum(leaf.numel() for leaf, _ in tensors if is_ids(leaf)) <= MOST_COLUMNS
        and any(r for _, r in tensors)
    ):
        yield Reading.of_whole(leaves, spec)


def as_given(
    imported: Imported, wrapped: torch.nn.Module, reading: Reading, *, pads: bool = False
) -> Imported | None:
    """The import with the arguments of a module in their own nest, and with the extents that are joined in
    them and in the results. None if the leading dimensions of a result are not those of the inputs. pads:
    whether masks may hide padding. wrapped: the module that was imported."""
    imported = _in_own_nest(imported, reading)
    joined = {
        name: extents
        for name, extents in zip(imported.arguments.names, reading.trailing, strict=True)
        if name is not None and extents is not None
    }
    shapes = list(imported.results.shapes)
    for position, (name, shape) in enumerate(zip(imported.results.names, shapes, strict=True)):
        if name is None or shape is None:
            continue
        outer = imported.outer(name)
        tokens = _leading(shape, outer, apart=outer != imported.lead)
        if tokens is None:
            return None
        if tokens != len(shape) - 1:
            joined[name] = shape[tokens:]
            shapes[position] = (*shape[:tokens], prod(shape[tokens:]))
    results = replace(imported.results, shapes=tuple(shapes))
    masks = {
        mask.name: replace(mask.rule, pads=pads and not mask.rule.of_scores)
        for mask in reading.masks.values()
    }
    frames = {imported.arguments.names[p]: frame for p, frame in reading.frames.items()}
    kinds = {imported.arguments.names[p]: kind for p, kind in reading.kinds.items()}
    if isinstance(wrapped, Joined):
        frames |= {imported.results.names[p]: frame for p, frame in wrapped.results.items()}
    return replace(
        imported,
        results=results,
        trailing=joined,
        whole=reading.whole,
        masks=masks,
        kinds={name: str(kind).removeprefix("torch.") for name, kind in kinds.items() if name is not None},
        frames={name: frame for name, frame in frames.items() if name is not None},
    )


def _in_own_nest(imported: Imported, reading: Reading) -> Imported:
    """The import with ids by the names of their arguments."""
    names: list[str | None] = []
    shapes: list[tuple[int, ...] | None] = []
    ids: dict[str, dict[str, int]] = {}
    unused = dict(imported.unused)
    inputs = iter(zip(imported.arguments.names, imported.arguments.shapes, reading.leaves, strict=True))
    vocabularies, taken = imported.graph.vocabularies, set(imported.arguments.names)
    for position, columns in enumerate([list(islice(inputs, count)) for count in reading.columns]):
        name, shape, leaf = columns[0]
        if (mask := reading.masks.get(position)) is not None:
            names.append(mask.name)
            shapes.append((*imported.lead, 1))
            continue
        rows = {column: vocabularies.get(column, 0) for column, *_ in columns if column and is_ids(leaf)}
        for column in rows:
            unused.pop(column, None)
        if name is not None and shape is not None and len(columns) > 1:
            name, shape = name.removesuffix("_0"), (*shape[:-1], len(columns))
            while name in taken:
                name += "_"
            taken.add(name)
        if name is not None and any(rows.values()):
            ids[name] = rows
        elif name is not None and rows:
            unused[name] = len(rows)
        names.append(name)
        shapes.append(shape)
    arguments = Structure(reading.own, tuple(names), tuple(shapes))
    return replace(imported, arguments=arguments, ids=ids, unused=unused)


def _leading(shape: Sequence[int], lead: Sequence[int], *, apart: bool) -> int | None:
    """How many dimensions of a result are those of tokens; None if none are. apart: they must not be
    joined."""
    for tokens in (*range(len(shape) - 1, 0, -1), len(shape), 0):
        try:
            rule = leading_rule(shape[:tokens], lead)
        except GraphError:
            continue
        if apart and ALL in (rule or ()) and len(lead) > 1:
            continue
        if prod(shape[:tokens]) == prod(lead):
            return tokens
    return None
