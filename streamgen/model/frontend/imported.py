"""A graph made of a torch module, and how torch nests its arguments and results."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree as pytree

from streamgen.model.graph.logical import LogicalGraph


@dataclass(frozen=True, eq=False)
class Structure:
    """Arguments or results of a module as torch nests them (tuples, lists, dicts).

    names: of inputs or outputs of the graph, leaf by leaf, None for a leaf that is no tensor. shapes: of the
    example.
    """

    spec: pytree.TreeSpec
    names: tuple[str | None, ...]
    shapes: tuple[tuple[int, ...] | None, ...]

    @property
    def form(self) -> str:
        """How they are nested, and of how many dimensions each is: what no number of tokens may change."""
        ranks = [None if shape is None else f"{len(shape)}-d" for shape in self.shapes]
        return str(pytree.tree_unflatten(ranks, self.spec)).replace("'", "")

    def rebuilt(self, values: Mapping[str, Any]) -> Any:
        """The nest around values by name; None stands for what is no tensor."""
        return pytree.tree_unflatten([None if n is None else values[n] for n in self.names], self.spec)

    def taken(self, nest: Any) -> dict[str, Any]:
        """Values by name out of such a nest; ValueError when it is another."""
        leaves, spec = pytree.tree_flatten(nest)
        if spec != self.spec:
            raise ValueError(f"the nest is {spec}; {self.spec} is needed")
        return {name: leaf for name, leaf in zip(self.names, leaves, strict=True) if name is not None}


@dataclass(frozen=True, eq=False)
class Imported:
    """graph: of the module. arguments: ((positional ...), {keyword ...}). results: what it returns.

    only: leading dimensions of the inputs that the module fixes, with their extents: it does not run with
    others.
    """

    graph: LogicalGraph
    arguments: Structure
    results: Structure
    only: Mapping[int, int]
