"""Tables of a module that counts its tokens: masks, rotations and rows for positions 0, 1, 2 ...

Such a module is exported twice, for a few tokens and for a whole context. Both programs are the same calls,
or the module computes something else for another number of tokens. A constant with more rows in the longer
program is a table: there it has a row for each position of the context, and the first of these rows must be
those of the shorter program.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from streamgen.base.errors import UnsupportedOperationError
from streamgen.model.frontend.in_place import is_in_place
from streamgen.model.frontend.parts import parts_of
from streamgen.model.frontend.tables import Tables
from streamgen.model.frontend.trace import Constants, Unsupported, aten, is_constant_call, shape, where

NUMBER = "a graph holds for any number of tokens: only views, masks and tables of positions may depend on it"
SILENT = (aten.alias.default, aten._assert_tensor_metadata.default)  # calls that stand for their argument

LOOKUPS = (aten.embedding.default, aten.index.Tensor)


class LongProgram:
    """The program of a module for as many tokens as the context has; its constants are made when they are
    asked for."""

    def __init__(self, constants: Constants, tokens: int) -> None:
        self.constants, self.tokens = constants, tokens
        self.nodes = list(constants.program.graph.nodes)
        self._calls: dict[Node, None] = {}  # on constants, in order
        self._known: set[Node] = set()  # constants
        self._changing = False
        self.add(self.nodes)

    def add(self, nodes: Sequence[Node]) -> None:
        """Note nodes of the program, in order."""
        for node in nodes:
            if node.meta.get("val") is None:
                continue
            if node.op == "placeholder":
                if isinstance(node.meta["val"], torch.Tensor) and self.constants.placeholder(node):
                    self._known.add(node)
            elif is_constant_call(node, self._known):
                self._calls[node] = None
                self._known.add(node)
                self._changing = self._changing or is_in_place(node)

    def value(self, node: Node) -> Any:
        """The value of a constant, after all calls that change it in place."""
        tensors = self.constants.tensors
        for call in self._calls if self._changing else self._behind(node):
            if call not in tensors:
                self.constants.fold(call)
        return tensors[node]

    def tokens_with_rows(self) -> int | None:
        """The number of tokens for which the first table has rows that is asked for more of them; None when
        all tables have enough."""
        for call in self._calls:
            if call.target in LOOKUPS:
                try:
                    self.value(call)
                except (IndexError, RuntimeError):
                    given = call.args[1]
                    dims = (
                        [d for d, index in enumerate(given) if index is not None]
                        if isinstance(given, list)
                        else [0]
                    )
                    index = given[dims[0]] if isinstance(given, list) else given
                    last = int(self.constants.tensors[index].max())
                    behind = last + 1 - self.tokens  # rows before the first token's
                    return shape(call.args[0])[dims[0]] - max(behind, 0)
        return None

    def _behind(self, node: Node) -> Iterator[Node]:
        """The calls that make a constant, in their order."""
        needed, left = set(), [node]
        while left:
            call = left.pop()
            if call in self._calls and call not in needed:
                needed.add(call)
                left.extend(call.all_input_nodes)
        return (call for call in self._calls if call in needed)


class CountedTables(Tables):
    """Tables of the program of a few tokens, whose constants are given. long: the same calls for a whole
    context."""

    counts = True

    def __init__(self, constants: Constants, tokens: int, long: LongProgram) -> None:
        super().__init__(constants, torch.arange(tokens))
        self.long = long
        nodes = constants.program.graph.nodes
        self._numbers = f"for {long.tokens} tokens than for {tokens}"
        self._twins = paired(list(nodes), long.nodes, self._numbers, {})
        self._alike: set[Node] = set()
        self._shifted: dict[Node, Unsupported] = {}  # constants that may only be added to scores

    @property
    def context(self) -> int:
        return self.long.tokens

    def __contains__(self, node: object) -> bool:
        if not isinstance(node, Node) or node not in self.constants.tensors:
            return False
        return isinstance(node.meta["val"], torch.Tensor) and shape(node) != shape(self._twins[node])

    def is_uniform(self, node: Node) -> bool:
        rows: torch.Tensor = self.long.value(self._twins[node])
        for d, (few, many) in enumerate(zip(shape(node), rows.shape, strict=True)):
            if few != many and not torch.equal(rows, rows.narrow(d, 0, 1).expand(rows.shape)):
                return False
        return True

    def add_parts(self, node: Node, parts: Sequence[Node], readable: Collection[Any]) -> None:
        apart = parts_of(self.long.constants.program.graph, self._twins[node], readable)
        others = [] if apart is None else apart[0]
        try:
            self._twins = paired(parts, others, self._numbers, self._twins)
        except UnsupportedOperationError as error:
            raise Unsupported(str(error)) from None
        self.long.add(others)

    def masks(self, tokens: int, keys: int) -> tuple[int, int]:
        return self.context, max(self.context, keys)

    def at(self, node: Node, positions: torch.Tensor) -> torch.Tensor:
        rows = [
            d for d, (n, m) in enumerate(zip(shape(node), shape(self._twins[node]), strict=True)) if n != m
        ]
        if len(rows) != 1:
            raise Unsupported("a table with rows and columns for tokens can only be a mask of an attention")
        if node in self._shifted:
            raise self._shifted[node]
        table: torch.Tensor = self.long.value(self._twins[node])
        return table.index_select(rows[0], positions)

    def shown(self, node: Node) -> torch.Tensor:
        """The tensor of a constant; of a table with rows for all positions."""
        shown: torch.Tensor = self.long.value(self._twins[node])
        return shown

    def require_alike(self, node: Node, *, moves: bool) -> None:
        """Unsupported unless a call on values is the same for any number of tokens. moves: whether it only
        moves elements; which ones is seen in what it leaves."""
        twin = self._twins[node]
        for source in node.all_input_nodes:
            if source in self.constants.tensors and source not in self._alike:
                self._require_first_rows(source)
                self._alike.add(source)
        if moves:
            return
        plain, others = (
            torch.fx.node.map_arg((one.args, one.kwargs), lambda _: None) for one in (node, twin)
        )
        if plain != others:
            raise Unsupported(f"it depends on the number of tokens; {NUMBER}")

    def _require_first_rows(self, node: Node) -> None:
        """Unsupported unless a constant is what the longer program has of these positions. A number that is
        added to a whole row may differ: no share of a softmax changes with it."""
        few, many = self.constants.tensors[node], self.long.value(self._twins[node])
        if not isinstance(few, torch.Tensor):
            return  # several of a call, each of which is compared
        if few.data_ptr() == many.data_ptr() and few.shape == many.shape:
            return  # a parameter
        tokens, context = len(self.traced), self.context
        by_key = few.is_floating_point() and few.ndim > 0 and few.shape[-1] != many.shape[-1]
        for d, (n, m) in enumerate(zip(few.shape, many.shape, strict=True)):
            if n != m:
                if (n, m) != (tokens, context):
                    raise Unsupported(
                        f"a constant has {n} rows for {tokens} tokens and {m} for {context}; a row for each "
                        "token is needed"
                    )
                many = many.narrow(d, 0, n)
        if torch.equal(few.nan_to_num(), many.nan_to_num()):
            return
        other = Unsupported(
            f"a constant is another for {tokens} tokens than for {context}: its rows must be those of "
            f"positions 0, 1, 2 ...; {NUMBER}"
        )
        if not by_key or not torch.allclose(few - few[..., :1], many - many[..., :1]):
            raise other
        self._shifted[node] = other


def paired(
    nodes: Sequence[Node], others: Sequence[Node], numbers: str, known: Mapping[Node, Node]
) -> dict[Node, Node]:
    """For each node of a program its own in a program for another number of rows, which may lack slices that
    take all rows. numbers: of both programs, for the UnsupportedOperationError if their calls differ. known:
    pairs of earlier nodes."""
    twins = dict(known)

    def is_pair(node: Node, other: Node) -> bool:
        if node.op != other.op or (node.op == "call_function" and node.target != other.target):
            return False
        return [twins[n] for n in node.all_input_nodes] == [*map(_origin, other.all_input_nodes)]

    left = iter(other for other in others if other.target not in SILENT)
    other = next(left, None)
    for node in nodes:
        if other is not None and is_pair(node, other):
            twins[node], other = other, next(left, None)
        elif node.target in (*SILENT, aten.slice.Tensor):
            twins[node] = twins[node.all_input_nodes[0]]
        else:
            raise UnsupportedOperationError(
                f"the module makes other calls {numbers}, from {where(node)} on; {NUMBER}"
            )
    return twins


def _origin(node: Node) -> Node:
    """What a silent call stands for."""
    while node.target in SILENT:
        node = node.all_input_nodes[0]
    return node
