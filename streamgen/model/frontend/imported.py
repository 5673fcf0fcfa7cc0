"""A graph made from a torch module, and the way torch nests its arguments and results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from streamgen.model.frames import Frame
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.operations import PlaceRows, ReduceTokens, TokenRow
from streamgen.model.padding import MaskRule


@dataclass(frozen=True, eq=False)
class Structure:
    """Arguments or results of a module as torch nests them (tuples, lists, dicts).

    names: of inputs or outputs of the graph, one per leaf; None for a leaf that is not a tensor. shapes: of
    the example.
    """

    spec: pytree.TreeSpec
    names: tuple[str | None, ...]
    shapes: tuple[tuple[int, ...] | None, ...]

    @property
    def form(self) -> str:
        """The nesting and the dimensions of each leaf. The number of tokens must not change either."""
        ranks = [None if shape is None else f"{len(shape)}-d" for shape in self.shapes]
        return str(pytree.tree_unflatten(ranks, self.spec)).replace("'", "")

    def rebuilt(self, values: Mapping[str, Any]) -> Any:
        """The nest with values by name; leaves that are not tensors become None."""
        return pytree.tree_unflatten([None if n is None else values[n] for n in self.names], self.spec)

    def taken(self, nest: Any) -> dict[str, Any]:
        """The values by name from such a nest; ValueError if the nest is different."""
        leaves, spec = pytree.tree_flatten(nest)
        if spec != self.spec:
            raise ValueError(f"the nest is {spec}; {self.spec} is needed")
        return {name: leaf for name, leaf in zip(self.names, leaves, strict=True) if name is not None}


@dataclass(frozen=True, eq=False)
class Imported:
    """A graph and the nests of its module. arguments: ((positional ...), {keyword ...}). results: the
    returned values.

    only: leading dimensions of the inputs that the module fixes, with their extents; the module does not run
    with other extents. trailing: by name of an input or a result, the extents that are joined to its
    features; empty for ids without columns and for a result without a dimension of features. ids: by name of
    an argument that holds ids, the inputs of the graph that take its columns, each with the number of rows
    that its ids choose from. whole: every input is one row, so that the graph holds for these shapes alone.
    masks: by name of an argument that is a mask, its rule; the graph computes sequences without padding.
    padding: by name of an input of the graph, the ids that the module takes for padding; the graph is right
    for all others. types: by name of a result that torch gives as truth values or as integers, that type.
    unused: by name of an argument of floats that no result depends on, the extent of its last dimension.
    frames: by name of an argument or a result, how it lies in a frame. kinds: by name of an argument of truth
    values or integers that are numbers, their type.
    """

    graph: LogicalGraph
    arguments: Structure
    results: Structure
    only: Mapping[int, int]
    trailing: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ids: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    whole: bool = False
    masks: Mapping[str, MaskRule] = field(default_factory=dict)
    padding: Mapping[str, frozenset[int]] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    unused: Mapping[str, int] = field(default_factory=dict)
    frames: Mapping[str, Frame] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)

    def drawn(self, name: str, extents: Sequence[int], generator: torch.Generator) -> torch.Tensor:
        """Random ids for an input, int64, none of which is padding; the last one is the greatest."""
        rows = self.graph.vocabularies[name]
        drawn = torch.randint(rows, tuple(extents), generator=generator)
        padding = self.padding.get(name, frozenset())
        if allowed := [n for n in range(rows) if n not in padding] if padding else []:
            drawn = torch.tensor(allowed)[drawn % len(allowed)]
        drawn.view(-1)[-1] = allowed[-1] if allowed else rows - 1
        return drawn

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading dimensions of the example inputs."""
        return next(shape[:-1] for shape in self.arguments.shapes if shape is not None)

    @property
    def sequence(self) -> int | None:
        """The leading dimension that is the tokens of a sequence: the last one that is not fixed at 1."""
        return next((d for d in reversed(range(len(self.lead))) if self.only.get(d) != 1), None)

    def outer(self, name: str) -> tuple[int, ...]:
        """The leading dimensions of the inputs that a result has: all, or those without the tokens of a
        sequence."""
        if self.graph.shapes[name].rows != "one" or self.sequence is None:
            return self.lead
        return self.lead[: self.sequence] + self.lead[self.sequence + 1 :]


def of_sequences(graph: LogicalGraph) -> bool:
    """Whether a graph reduces the tokens of a sequence, or tells them apart."""
    return any(isinstance(o.op, ReduceTokens | TokenRow | PlaceRows) for _, o in graph.walk())


def places_of(graph: LogicalGraph) -> int:
    """The number of places for which a graph has rows; 0 if it does not tell places apart."""
    return max((o.op.extents[0] for _, o in graph.walk() if isinstance(o.op, PlaceRows)), default=0)
