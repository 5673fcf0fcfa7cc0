"""A logical graph that is being made of an exported program, call after call.

A call's tensor is a constant (`constants`), made of positions (`tables`), elements of values (`contents`, see
`elements`), or half of an operation that takes several calls (`partial`): scores of an attention, the mean of
a norm. Some values are made only where something reads them (`later`): products with one number, which
attention takes into its scale, and rotated features.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from streamgen.model.frontend.elements import Elements, OtherRows
from streamgen.model.frontend.in_place import change, is_in_place, memory
from streamgen.model.frontend.moves import RENAMES, renamed
from streamgen.model.frontend.refusals import Place
from streamgen.model.frontend.tables import Tables
from streamgen.model.frontend.trace import Constants, Mismatch, Unsupported, module_path, shape, where
from streamgen.model.graph.logical import Operation, Operator
from streamgen.model.operations import Cache, Concat, Linear, PositionRows, Scalar, Slice
from streamgen.numbers.quantisation import GroupGrid, is_uniform

MOST_PIECES = 16  # of a value that is put together


class Partial:
    """Half of an operation, and what calls may make of it; each raises Unsupported unless it fits."""

    needed = "it is half of an operation that is not known"

    def times(self, factor: float) -> "Partial":
        raise Unsupported(self.needed)

    def plus(self, constant: torch.Tensor) -> "Partial":
        raise Unsupported(self.needed)

    def turned(self, table: Node) -> "Partial":
        """Times a table of positions."""
        raise Unsupported(self.needed)

    def square(self) -> "Partial":
        raise Unsupported(self.needed)

    def root(self, *, inverse: bool) -> "Partial":
        raise Unsupported(self.needed)

    def softmax(self) -> "Partial":
        raise Unsupported(self.needed)

    def tanh(self) -> "Partial":
        raise Unsupported(self.needed)

    def hidden(self, mask: torch.Tensor, fill: float) -> "Partial":
        """Filled where the mask, which broadcasts, is true."""
        raise Unsupported(self.needed)

    def multiplied(self, draft: "Draft", node: Node, other: Node, *, divides: bool = False) -> None:
        """`node` is other * self, or other / self."""
        raise Unsupported(self.needed)

    def taken(self, draft: "Draft", node: Node, other: Node) -> None:
        """`node` is other - self."""
        raise Unsupported(self.needed)

    def added(self, draft: "Draft", node: Node, other: Node) -> None:
        """`node` is other + self."""
        raise Unsupported(self.needed)

    def joined(self, draft: "Draft", node: Node, other: "Partial", sign: int) -> None:
        """`node` is self + sign * other."""
        raise Unsupported(self.needed)

    def summed(self, draft: "Draft", node: Node, other: Node) -> None:
        """`node` is self @ other."""
        raise Unsupported(self.needed)


class Later:
    """Values that are made when an operation reads them."""

    def make(self, draft: "Draft") -> str:
        """Add the operations; the name of the value they make. Unsupported when they cannot be."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Scaled(Later):
    """factor · columns, made by the call `node`."""

    node: Node
    columns: torch.Tensor
    factor: float

    def make(self, draft: "Draft") -> str:
        name = draft.value(self.node, self.columns)
        return draft.add(self.node, self.node.name, Scalar("scale", self.factor), name)


class Draft:
    """rows: tokens of all inputs. tables: of a language model, whose tokens may follow those of a cache.
    wrapper: a module around the user's, which messages leave out. last: whether the module may go on with the
    last token alone.

    Results of calls are told to it by `lines`, `spread`, `keep`, `late` and `half`.
    """

    def __init__(
        self,
        constants: Constants,
        rows: int,
        tables: Tables | None = None,
        wrapper: str = "",
        *,
        last: bool = False,
    ) -> None:
        self.constants = constants
        self.tables = Tables(constants) if tables is None else tables
        self.wrapper = wrapper
        self.elements = Elements(rows, int(tables.traced[0]) if tables else 0, last=last)
        self.contents: dict[Node, Any] = {}
        self.partial: dict[Node, Partial] = {}
        self.squares: dict[Node, torch.Tensor] = {}  # calls that square, and the contents of what they do
        self.cuts: dict[str, Callable[[torch.Tensor], str]] = {}  # of values that can be made in part
        self.later: dict[str, Later] = {}
        self.operations: list[Operation] = []
        self.protected: set[int] = set()  # memory of inputs and parameters
        self._columns: dict[str, torch.Tensor] = {}
        self._linears: dict[str, tuple[Linear, Operation]] = {}
        self._views: dict[tuple[Any, ...], str] = {}
        self._made: dict[str, torch.Tensor] = {}  # columns of values that came later
        self._names: set[str] = set()

    def knows(self, value: Any) -> bool:
        """Whether a value is computed at run time."""
        return value in self.contents or value in self.partial

    # Operations.

    def add(self, node: Node, wanted: str, op: Operator, *inputs: str) -> str:
        """Add an operation; its name, which is another when this one is taken."""
        return self._add(wanted, op, inputs, "" if node.op == "output" else self.where(node).short)

    def linear(self, node: Node, wanted: str, op: Linear, source: str) -> str:
        """Add a Linear, of which others may be cut."""
        return self._linear(wanted, op, (source,), self.where(node).short)

    def _linear(self, wanted: str, op: Linear, inputs: tuple[str, ...], place: str) -> str:
        name = self._add(wanted, op, inputs, place)
        self._linears[name] = op, self.operations[-1]
        return name

    def _add(self, wanted: str, op: Operator, inputs: tuple[str, ...], place: str) -> str:
        name = self.name(wanted)
        self.operations.append(Operation(name, op, inputs, place))
        return name

    def name(self, wanted: str) -> str:
        """`wanted`, or with a number after it when it is taken."""
        wanted = re.sub(r"\W", "_", wanted, flags=re.ASCII)
        wanted = f"m_{wanted}" if wanted[:1].isdigit() else wanted
        name, number = wanted, 0
        while name in self._names:
            number += 1
            name = f"{wanted}_{number}"
        self._names.add(name)
        return name

    def named(self, node: Node) -> str:
        """A name for what a call makes: its module's, or its own."""
        return module_path(node)[0] or node.name

    def where(self, node: Node) -> Place:
        """The place of a call, for messages."""
        return where(node, self.wrapper)

    # Values that calls read.

    def form(self, node: Node, source: Any, read: Callable[[torch.Tensor], Any]) -> Any:
        """What `read` finds in contents; what it refuses is said of the call that moved them there."""
        if source in self.partial:
            raise Unsupported(self.partial[source].needed)
        if source not in self.contents:
            raise Unsupported("it needs a value that is computed at run time")
        try:
            return read(self.contents[source])
        except (Mismatch, OtherRows):
            raise
        except Unsupported as reason:
            moved = renamed(source)
            if moved.op != "call_function" or moved.target in RENAMES:
                raise
            raise Mismatch(moved, str(reason)) from None

    def value(self, node: Node, columns: torch.Tensor) -> str:
        """Name of a value with these columns: one that is there, part of one, or several put together.

        Parts of results of Linears that read one value are a Linear of their rows of the weights.
        """
        columns = self.settled(columns)
        parts = self.elements.parts(columns)
        if len(parts) == 1 and self.elements.is_whole(*parts[0]):
            return parts[0][0]
        key = tuple(columns.tolist())
        if key not in self._views:
            if self._of_linears(parts):
                self._views[key] = self._rows_of_linears(parts)
            else:
                self._views[key] = self._joined(
                    node, [piece for part in parts for piece in self._pieces(*part)]
                )
        return self._views[key]

    def settled(self, columns: torch.Tensor) -> torch.Tensor:
        """The columns, those of values that come later made now."""
        parts = self.elements.parts(columns)
        if not any(name in self.later for name, _ in parts):
            return columns
        settled = []
        for (name, features), own in zip(parts, columns.split([len(f) for _, f in parts]), strict=True):
            if name in self.later and name not in self._made:
                produced = self.later[name].make(self)
                self._made[name] = self.columns(produced, self.elements.size(name))
            settled.append(self._made[name][features] if name in self.later else own)
        return torch.cat(settled)

    def unscaled(self, columns: torch.Tensor) -> tuple[torch.Tensor, float]:
        """What columns are before a product with one number, and the number."""
        parts = self.elements.parts(columns.reshape(-1))
        values = [self.later.get(name) for name, _ in parts]
        factors = {one.factor for one in values if isinstance(one, Scaled)}
        if len(factors) != 1 or not all(isinstance(one, Scaled) for one in values):
            return columns, 1.0
        inner = torch.cat([one.columns[f] for one, (_, f) in zip(values, parts, strict=True)])  # type: ignore[union-attr]
        before, factor = self.unscaled(inner.reshape(columns.shape))
        return before, factor * factors.pop()

    def is_simple(self, columns: torch.Tensor) -> bool:
        """Whether `value` needs no slice and nothing put together for it."""
        parts = self.elements.parts(columns)
        return (len(parts) == 1 and self.elements.is_whole(*parts[0])) or self._of_linears(parts)

    def _of_linears(self, parts: Sequence[tuple[str, torch.Tensor]]) -> bool:
        """Whether all are results of Linears that read one value."""
        sources = {self._linears[name][1].inputs if name in self._linears else None for name, _ in parts}
        return len(sources) == 1 and None not in sources

    def pieces(self, *operands: torch.Tensor) -> list[slice]:
        """Features that an operation may compute by themselves, so that nothing is put together for it."""
        features = len(operands[0])
        if all(map(self.is_simple, operands)):
            return [slice(0, features)]
        cuts = {0, features}
        for columns in operands:
            sizes = [len(part) for _, part in self.elements.parts(columns)]
            cuts |= {sum(sizes[:index]) for index in range(len(sizes))}
        ordered = sorted(cuts)
        return [slice(a, b) for a, b in pairwise(ordered)]

    def _pieces(self, name: str, features: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        """Features of a value, cut where they do not follow one another unless any can be made of it."""
        if name in self._linears or name in self.cuts:
            return [(name, features)]
        cuts = (1 + (features.diff() != 1).nonzero().reshape(-1)).tolist()
        return [(name, piece) for piece in features.tensor_split(cuts)]

    def _joined(self, node: Node, pieces: Sequence[tuple[str, torch.Tensor]]) -> str:
        if len(pieces) > MOST_PIECES:
            raise Unsupported(
                f"its features are {len(pieces)} pieces of others; at most {MOST_PIECES} can be joined"
            )
        names = []
        for name, features in pieces:
            if self.elements.is_whole(name, features):
                names.append(name)
            elif name in self._linears:
                names.append(self._rows_of_linears([(name, features)]))
            else:
                names.append(self._cut(node, name, features))
        if len(names) == 1:
            return names[0]
        return self.add(node, node.name, Concat(tuple(len(features) for _, features in pieces)), *names)

    def _cut(self, node: Node, name: str, features: torch.Tensor) -> str:
        key = (name, *features.tolist())
        if key not in self._views:
            if name in self.cuts:
                self._views[key] = self.cuts[name](features)
            else:
                op = Slice(int(features[0]), len(features))
                self._views[key] = self.add(node, f"{name}_part", op, name)
        return self._views[key]

    def _rows_of_linears(self, parts: Sequence[tuple[str, torch.Tensor]]) -> str:
        """A Linear with some rows of the weights of others that read the same value."""
        sources = [(*self._linears[name], features.numpy()) for name, features in parts]
        ops = [op for op, _, _ in sources]
        weight = sources[0][0].floats
        if len(sources) > 1 or not is_uniform(weight):
            weight = np.concatenate([op.floats[rows] for op, _, rows in sources])
        else:
            weight = weight[: len(sources[0][2])]
        bias = None
        if any(op.bias is not None for op in ops):
            given = [np.zeros(len(op.floats), np.float32) if op.bias is None else op.bias for op in ops]
            bias = np.concatenate([one[rows] for one, (*_, rows) in zip(given, sources, strict=True)])
        grids = [op.grid for op in ops if op.grid is not None]
        grid = None
        if len(grids) == len(ops) and len({one.group for one in grids}) == 1:
            cut = list(zip(grids, (rows for *_, rows in sources), strict=True))
            grid = GroupGrid(
                *(
                    np.concatenate([getattr(one, part)[rows] for one, rows in cut])
                    for part in ("codes", "scale", "minimum")
                )
            )
        first = sources[0][1]
        asked = max((op.asked for op in ops if op.asked), default=None)  # the widest
        op = Linear(weight, bias, grid, asked)
        return self._linear(f"{first.name}_part", op, first.inputs, first.where)

    def require_caches(self, names: Sequence[str], heads: int) -> None:
        """Unsupported unless keys and values are whole caches."""
        caches = {o.name: o.op for o in self.operations if isinstance(o.op, Cache)}
        if not caches.keys() >= set(names):
            group = heads // max(op.heads for op in caches.values())
            raise Unsupported(f"query head h must read the keys and values of head h // {group}")

    # Results of calls.

    def columns(self, name: str, features: int) -> torch.Tensor:
        """Columns of a value that an operation makes."""
        if name not in self._columns:
            self._columns[name] = self.elements.add(name, features)
        return self._columns[name]

    def lines(self, node: Node, name: str, rows: torch.Tensor, features: int) -> None:
        """The result of a call: a value, its rows in this order."""
        contents = self.elements.indices(self.columns(name, features), rows[:, None])
        self.keep(node, contents.reshape(shape(node)))

    def late(self, node: Node, later: Later, features: int, order: torch.Tensor) -> None:
        """The result of a call: features in the layout `order`, of a value that is made where it is read."""
        name = self.name(f"{node.name}_later")
        self.later[name] = later
        self.spread(node, [(name, features)], order)

    def spread(self, node: Node, features_of: Sequence[tuple[str, int]], order: torch.Tensor) -> None:
        """The result of a call: values, with their features, side by side in the layout `order`."""
        columns = torch.cat([self.columns(name, features) for name, features in features_of])
        contents = torch.empty(order.numel(), dtype=torch.int64)
        rows = self.elements.tokens[-len(order) :, None]
        contents[order] = self.elements.indices(columns, rows)
        self.keep(node, contents.reshape(shape(node)))

    def keep(self, node: Node, contents: Any) -> None:
        """The contents of a call's tensor; of one in place, all views of the tensor see the change."""
        if is_in_place(node):
            if memory(node.args[0]) in self.protected:
                raise Unsupported("it changes an input or a parameter in place")
            change(self.contents, node.args[0], contents)
        self.contents[node] = contents

    def rows_for_positions(self, node: Node, table: Node) -> None:
        """Have a table [.., tokens, features] as a value: a row for each position of the context."""
        if table in self.contents:
            return
        tokens, context = self.elements.rows, self.tables.context
        extents = shape(table)
        if not table.meta["val"].is_floating_point() or extents.numel() != tokens * extents[-1]:
            raise Unsupported(
                f"a table {list(extents)} of positions is added; [1, tokens, features] is needed"
            )
        positions = torch.arange(-(-context // tokens) * tokens).clamp(max=context - 1)
        pieces = [self.tables.at(table, some).reshape(tokens, -1) for some in positions.split(tokens)]
        op = PositionRows(torch.cat(pieces)[:context].detach().to(torch.float32).numpy())
        name = self.add(table, "position_rows", op)
        self.lines(table, name, self.elements.tokens, extents[-1])

    def half(self, node: Node, partial: Partial) -> None:
        """A call that makes half of an operation."""
        if is_in_place(node):
            for other in [n for n in self.partial if memory(n) == memory(node)]:
                self.partial[other] = partial
        self.partial[node] = partial
