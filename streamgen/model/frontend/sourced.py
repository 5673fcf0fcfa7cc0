"""The source of a text: what a module computes from its other arguments than the ids.

    text     calls that depend on the ids: the graph of a language model
    source   calls that depend on other arguments alone: a module of its own, `SourcePart`

The two parts meet where attention of the text reads keys and values of the source. Their elements are
numbered as those of other contents are (`elements`), from BASE on: value k of the source has the numbers from
BASE + k · EACH on, in the order of its elements. Views of the source are thus carried out on numbers.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from streamgen.model.frontend.moves import MOVES, RENAMES
from streamgen.model.frontend.trace import Unsupported, aten, shape

BASE = 1 << 50
EACH = 1 << 36
READERS = {
    aten.baddbmm.default,
    aten.bmm.default,
    aten.einsum.default,
    aten.matmul.default,
    aten.scaled_dot_product_attention.default,
}
NEEDED = "the text can read its source only as keys and values of an attention"


@dataclass(frozen=True, eq=False)
class SourceRead:
    """Keys or values: rows are dimension `rows` of the result of a call; of the other elements of a row,
    those in `columns`, in this order; None for all."""

    call: Node
    rows: int
    columns: torch.Tensor | None

    def taken(self, result: torch.Tensor) -> torch.Tensor:
        """[rows, features] of the result of the call; with the dimensions around them where these are 1."""
        lead = result.shape[:-1]
        if self.rows != result.ndim - 2 or lead.numel() != lead[self.rows]:
            result = result.movedim(self.rows, 0).reshape(result.shape[self.rows], -1)
        return result if self.columns is None else result.index_select(-1, self.columns)


class SourceCalls:
    """The calls of a program on its source, and the keys and values that the text reads, each layer's in
    turn."""

    def __init__(self) -> None:
        self.reads: list[SourceRead] = []
        self.inputs: list[Node] = []
        self._calls: dict[Node, None] = {}  # in order
        self._values: list[Node] = []
        self._contents: dict[Node, torch.Tensor] = {}

    def __contains__(self, node: object) -> bool:
        return node in self._calls or node in self.inputs

    def add(self, node: Node) -> None:
        """Add a call on the source."""
        self._calls[node] = None

    def contents(self, node: Node) -> torch.Tensor:
        """The numbers of the elements of a result."""
        if node not in self._contents:
            if node.target in RENAMES and node.all_input_nodes:
                self._contents[node] = self.contents(node.all_input_nodes[0])
            elif _is_view(node):
                target: Any = node.target
                target = aten.reshape.default if target == aten.view.default else target
                args = (self.contents(node.all_input_nodes[0]), *node.args[1:])
                self._contents[node] = target(*args, **node.kwargs)
            else:
                first = BASE + EACH * len(self._values)
                self._values.append(node)
                self._contents[node] = first + torch.arange(shape(node).numel()).reshape(shape(node))
        return self._contents[node]

    def heads(self, contents: torch.Tensor, order: torch.Tensor) -> tuple[Node, int, torch.Tensor]:
        """The call that makes heads of keys or values [.., rows, features], its dimension of rows, and for
        each head, in the order of the queries, the places [heads, features] of its elements in a row."""
        count, features = contents.shape[-2:]
        numbers = contents.reshape(-1, count, features)[order.reshape(-1)] - BASE
        value = self._values[int(numbers.reshape(-1)[0]) // EACH]
        extents = shape(value)
        for dimension in (d for d, extent in enumerate(extents) if extent == count):
            places = torch.arange(extents.numel()).reshape(extents).movedim(dimension, 0).reshape(count, -1)
            where = torch.zeros(extents.numel(), dtype=torch.int64)
            where[places.reshape(-1)] = torch.arange(places.numel())
            if (numbers // EACH != self._values.index(value)).any():
                break
            found = where[numbers % EACH]
            row, column = found // places.shape[1], found % places.shape[1]
            if (row == torch.arange(count)[:, None]).all() and (column == column[:, :1]).all():
                return value, dimension, column[:, 0]
        raise Unsupported("every head of its keys and values must hold the same features for all rows")

    def read(self, call: Node, rows: int, columns: torch.Tensor) -> None:
        """Add keys or values."""
        every = columns.numel() == shape(call).numel() // shape(call)[rows]
        whole = every and torch.equal(columns.reshape(-1), torch.arange(columns.numel()))
        self.reads.append(SourceRead(call, rows, None if whole else columns.reshape(-1)))

    @property
    def rows(self) -> int:
        """Rows of the source; Unsupported if attentions read different numbers of them."""
        counts = {shape(read.call)[read.rows] for read in self.reads}
        if len(counts) != 1:
            raise Unsupported(f"attentions read sources of {sorted(counts)} rows; one number is needed")
        return counts.pop()

    def part(self, tensors: dict[Node, Any]) -> "SourcePart":
        """The module of the source. tensors: constants."""
        needed, left = set(self.inputs), [read.call for read in self.reads]
        while left:
            node = left.pop()
            if node not in needed and node in self._calls:
                needed.add(node)
                left.extend(node.all_input_nodes)
        return SourcePart(self.inputs, [node for node in self._calls if node in needed], self.reads, tensors)


def _is_view(node: Node) -> bool:
    """Whether a call moves the elements of one tensor into one tensor."""
    moves = node.target in MOVES and isinstance(node.args[0], Node)
    return moves and node.target != operator.getitem and isinstance(node.meta["val"], torch.Tensor)


def is_of_source(contents: torch.Tensor) -> bool:
    """Whether contents are of the source; Unsupported if only some are."""
    of_source = contents >= BASE
    if of_source.any() != of_source.all():
        raise Unsupported(NEEDED)
    return bool(of_source.any())


class SourcePart(torch.nn.Module):
    """The keys and the values of each layer in turn, from the arguments of the source."""

    def __init__(
        self,
        inputs: Sequence[Node],
        calls: Sequence[Node],
        reads: Sequence[SourceRead],
        tensors: dict[Node, Any],
    ) -> None:
        super().__init__()
        self._inputs, self._calls, self._reads = list(inputs), list(calls), list(reads)
        self._constants: dict[Node, str] = {}
        for node in dict.fromkeys(n for call in calls for n in call.all_input_nodes if n in tensors):
            self._constants[node] = f"constant_{len(self._constants)}"
            self.register_buffer(self._constants[node], tensors[node].detach())
        for number, read in enumerate(reads):
            self.register_buffer(f"columns_{number}", read.columns)

    def forward(self, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """[rows, features] each, perhaps with dimensions of extent 1 around the rows. Raises ValueError for
        other shapes than those of the example, for which the module may make other calls."""
        for node, argument in zip(self._inputs, arguments, strict=True):
            if argument.shape != shape(node):
                raise ValueError(
                    f"the source has shape {list(argument.shape)}; {list(shape(node))}, that of the example, "
                    "is needed"
                )
        values: dict[Node, Any] = dict(zip(self._inputs, arguments, strict=True))
        values |= {node: getattr(self, name) for node, name in self._constants.items()}
        for call in self._calls:
            args, kwargs = torch.fx.node.map_arg((call.args, call.kwargs), values.__getitem__)
            values[call] = call.target(*args, **kwargs)
        return tuple(read.taken(values[read.call]) for read in self._reads)
