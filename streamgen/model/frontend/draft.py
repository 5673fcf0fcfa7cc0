"""A logical graph under construction from an exported program, call by call.

The tensor of a call is one of four things: a constant (`constants`), a table made from positions (`tables`),
elements of values (`contents`, see `elements`), or half of an operation that takes several calls (`partial`),
such as the scores of an attention or the mean of a norm. Some values are computed only where an operation
reads them (`later`): products with one number, which attention takes into its scale, and rotated features.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from streamgen.kernels.moves.rearrange import LONGEST
from streamgen.model.frontend.elements import ElementOrder, Elements, OtherRows
from streamgen.model.frontend.in_place import change, is_in_place, is_seen, memory
from streamgen.model.frontend.moves import RENAMES, renamed
from streamgen.model.frontend.partial import Partial
from streamgen.model.frontend.refusals import Place
from streamgen.model.frontend.sequences import Sequences
from streamgen.model.frontend.sourced import SourceCalls
from streamgen.model.frontend.tables import Tables
from streamgen.model.frontend.trace import Constants, Mismatch, Unsupported, shape, where
from streamgen.model.graph.logical import Operation, Operator
from streamgen.model.operations import (
    Binary,
    Concat,
    Constant,
    Linear,
    PositionRows,
    Rearrange,
    ReduceTokens,
    Scalar,
    Slice,
    TokenRow,
    as_expression,
)
from streamgen.numbers.quantisation import GroupGrid, is_uniform

MOST_PIECES = 16  # that may be joined to one value; more are rearranged
MOST_COUNTED = (1 << 16) - 1  # the greatest of the whole numbers that count elements
MOST_VALUES = 256  # whose features may be rearranged together


class Later:
    """Values that are computed when an operation reads them."""

    def make(self, draft: "Draft") -> str:
        """Add the operations and return the name of their value; Unsupported if that is impossible."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Scaled(Later):
    """factor · columns, computed by the call `node`."""

    node: Node
    columns: torch.Tensor
    factor: float

    def make(self, draft: "Draft") -> str:
        name = draft.value(self.node, self.columns)
        return draft.add(self.node, self.node.name, Scalar("scale", self.factor), name)


class Draft:
    """The graph so far.

    rows: tokens of all inputs. tables: of a language model, whose tokens may follow those of a cache.
    wrapper: a module around the user's module, which messages leave out. last: whether the module may go on
    with the last token alone. run: tokens of a sequence; 0 if values have a row for each token (`Elements`).
    masked: whether constants of ones may come from masks, which hide no token. framed: whether calls may read
    a part of the tokens of each sequence. within: whether lines of features within a row may be multiplied,
    by weights or by one another.

    The importers report the results of calls with `lines`, `spread`, `keep`, `late` and `half`.
    """

    def __init__(
        self,
        constants: Constants,
        rows: int,
        tables: Tables | None = None,
        wrapper: str = "",
        *,
        last: bool = False,
        run: int = 0,
        masked: bool = False,
        framed: bool = False,
        within: bool = False,
    ) -> None:
        self.constants = constants
        self.tables = Tables(constants) if tables is None else tables
        self.wrapper = wrapper
        self.elements = Elements(
            rows, int(tables.traced[0]) if tables else 0, last=last, run=run, framed=framed
        )
        self.masked = masked
        self.within = within
        self.source: SourceCalls | None = None
        self.torn = False  # whether a product within rows was refused
        self.sequences = Sequences(self)
        self._single: set[str] = set()  # values with one row for each sequence
        self._every: set[str] = set()  # constants, whose row stands for all rows
        self.contents: dict[Node, Any] = {}
        self.partial: dict[Node, Partial] = {}
        self.plainly: set[Node] = set()  # calls that are no halves of operations
        self.squares: dict[Node, torch.Tensor] = {}  # by a call that squares: the contents of its argument
        self.cuts: dict[str, Callable[[torch.Tensor], str]] = {}  # by name of a value that is made in part
        self.later: dict[str, Later] = {}
        self.operations: list[Operation] = []
        self.protected: set[int] = set()  # memory of inputs and parameters
        self._most: dict[str, int] = {}  # by name of a value of whole numbers: none is below 0 or above this
        self._columns: dict[str, torch.Tensor] = {}
        self._linears: dict[str, tuple[Linear, Operation]] = {}
        self._views: dict[tuple[Any, ...], str] = {}
        self._numbers: dict[str, float] = {}  # by name of a column that is a number
        self._made: dict[str, torch.Tensor] = {}  # columns of values that were computed later
        self._names: set[str] = set()

    def knows(self, value: Any) -> bool:
        """Whether a value is computed at run time."""
        return value in self.contents or value in self.partial

    # Operations.

    def add(self, node: Node, wanted: str, op: Operator, *inputs: str) -> str:
        """Add an operation; return its name: `wanted`, with a number after it if it is taken."""
        return self._add(wanted, op, inputs, "" if node.op == "output" else self.where(node).short)

    def linear(self, node: Node, wanted: str, op: Linear, source: str) -> str:
        """Add a Linear; other Linears may be made from its rows."""
        return self._linear(wanted, op, (source,), self.where(node).short)

    def _linear(self, wanted: str, op: Linear, inputs: tuple[str, ...], place: str) -> str:
        name = self._add(wanted, op, inputs, place)
        self._linears[name] = op, self.operations[-1]
        return name

    def _add(self, wanted: str, op: Operator, inputs: tuple[str, ...], place: str) -> str:
        name = self.name(wanted)
        computed = [source for source in inputs if source not in self._every]
        single = [source for source in computed if source in self._single]
        if isinstance(op, ReduceTokens | TokenRow) or (single and len(single) == len(computed)):
            self._single.add(name)
        elif isinstance(op, Constant):
            self._every.add(name)
        elif single and isinstance(op, Binary):
            op = as_expression(op)
        self.operations.append(Operation(name, op, inputs, place))
        return name

    def name(self, wanted: str) -> str:
        """`wanted`, with a number after it if it is taken."""
        wanted = re.sub(r"\W", "_", wanted, flags=re.ASCII)
        wanted = f"m_{wanted}" if wanted[:1].isdigit() else wanted
        name, number = wanted, 0
        while name in self._names:
            number += 1
            name = f"{wanted}_{number}"
        self._names.add(name)
        return name

    def named(self, node: Node) -> str:
        """The name for the value of a call: the name of its module, or else of the call."""
        return self.where(node).path or node.name

    def where(self, node: Node) -> Place:
        """The place of a call, for messages."""
        return where(node, self.wrapper)

    def may_multiply_within(self) -> bool:
        """Whether lines of features within a row may be multiplied; notes a refusal."""
        self.torn = self.torn or not self.within
        return self.within

    # Values that calls read.

    def form(self, node: Node, source: Any, read: Callable[[torch.Tensor], Any]) -> Any:
        """The result of `read` for the contents of a source. If it is refused, the error names the call that
        moved the elements there."""
        if source in self.partial:
            raise Unsupported(self.partial[source].needed)
        if source not in self.contents:
            raise Unsupported("it needs a value that is computed at run time")
        if self.elements.framed and isinstance(self.contents[source], torch.Tensor):
            self.contents[source] = self.sequences.merged(node, self.contents[source])
        if self.elements.run and isinstance(self.contents[source], torch.Tensor):
            self.contents[source] = self.sequences.taken(node, self.contents[source])
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
        """The name of a value with these columns: an existing value, a part of one, or several joined.

        If all parts are from Linears that read the same value, the result is a Linear with these rows of
        their weights.
        """
        columns = self.settled(columns)
        parts = self.elements.parts(columns)
        if len(parts) == 1 and self.elements.is_whole(*parts[0]) and parts[0][0] not in self._numbers:
            return parts[0][0]
        key = tuple(columns.tolist())
        if key not in self._views:
            repeats = self.within and len(set(key)) < len(key)  # products of the same rows are no better
            if self._of_linears(parts) and not repeats:
                self._views[key] = self._rows_of_linears(parts)
            else:
                pieces = [piece for part in parts for piece in self._pieces(*part)]
                numbers = any(name in self._numbers for name, _ in parts)
                many = numbers or repeats or len(pieces) > MOST_PIECES
                join = self._rearranged if many else self._joined
                self._views[key] = join(node, pieces)
        return self._views[key]

    def settled(self, columns: torch.Tensor) -> torch.Tensor:
        """The columns; values that are computed later are computed now."""
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
        """The columns before a product with one number, and the number."""
        parts = self.elements.parts(columns.reshape(-1))
        values = [self.later.get(name) for name, _ in parts]
        factors = {value.factor for value in values if isinstance(value, Scaled)}
        if len(factors) != 1 or not all(isinstance(value, Scaled) for value in values):
            return columns, 1.0
        inner = torch.cat([value.columns[f] for value, (_, f) in zip(values, parts, strict=True)])  # type: ignore[union-attr]
        before, factor = self.unscaled(inner.reshape(columns.shape))
        return before, factor * factors.pop()

    def is_simple(self, columns: torch.Tensor) -> bool:
        """Whether `value` needs neither a slice nor a join for these columns."""
        parts = self.elements.parts(columns)
        whole = len(parts) == 1 and self.elements.is_whole(*parts[0])
        return (whole and parts[0][0] not in self._numbers) or self._of_linears(parts)

    def _of_linears(self, parts: Sequence[tuple[str, torch.Tensor]]) -> bool:
        """Whether all parts are results of Linears that read one value."""
        sources = {self._linears[name][1].inputs if name in self._linears else None for name, _ in parts}
        return len(sources) == 1 and None not in sources

    def pieces(self, *operands: torch.Tensor) -> list[slice]:
        """Ranges of features that an operation may compute separately, so that no values need to be joined
        for it."""
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
        """Features of a value, cut where they are not consecutive, unless the value can be computed for any
        features."""
        if name in self._linears or name in self.cuts:
            return [(name, features)]
        cuts = (1 + (features.diff() != 1).nonzero().reshape(-1)).tolist()
        return [(name, piece) for piece in features.tensor_split(cuts)]

    def _joined(self, node: Node, pieces: Sequence[tuple[str, torch.Tensor]]) -> str:
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

    def _rearranged(self, node: Node, pieces: Sequence[tuple[str, torch.Tensor]]) -> str:
        """The pieces as places of one value, which is joined from all values that they are part of."""
        names = list(dict.fromkeys(name for name, _ in pieces if name not in self._numbers))
        if not names:  # a value of floats gives the rows
            other = self._numbers.keys() | self.sequences.ids
            names = [name for name in self.elements.names if name not in other][:1]
        if not names:
            raise Unsupported(
                "it holds constants alone; a result must depend on floats or on rows of a table"
            )
        if len(names) > MOST_VALUES:
            raise Unsupported(f"its features are of {len(names)} values; {MOST_VALUES} are allowed")
        sizes = [self.elements.size(name) for name in names]
        numbers = list(dict.fromkeys(name for name, _ in pieces if name in self._numbers))
        first = dict(zip(names, np.cumsum([0, *sizes]).tolist(), strict=False))
        first |= {name: -1 - k for k, name in enumerate(numbers)}
        places = [first[name] + feature for name, part in pieces for feature in part.tolist()]
        if (longest := max(len(places), sum(sizes))) > LONGEST:
            raise Unsupported(f"it rearranges rows of {longest} features; at most {LONGEST} are allowed")
        while len(names) > 1:
            some = min(MOST_PIECES, len(names))
            parts = tuple(sizes[:some])
            joined = self.add(node, f"{node.name}_joined", Concat(parts), *names[:some])
            names, sizes = [joined, *names[some:]], [sum(parts), *sizes[some:]]
        op = Rearrange(tuple(places), tuple(self._numbers[name] for name in numbers))
        return self.add(node, node.name, op, names[0])

    def number(self, value: float) -> int:
        """A column that is a number in every row."""
        if not np.isfinite(value):
            raise Unsupported(f"it puts {value} into its result; a finite number is needed")
        name = f"number {value}"
        if name not in self._numbers:
            self._numbers[name] = float(value)
        return int(self.columns(name, 1))

    def numbers(self, columns: torch.Tensor) -> np.ndarray | None:
        """The numbers of columns, float32; None unless all are numbers."""
        names = [(name, len(features)) for name, features in self.elements.parts(columns)]
        if any(name not in self._numbers for name, _ in names):
            return None
        return np.repeat([self._numbers[name] for name, _ in names], [n for _, n in names]).astype(np.float32)

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
        """A Linear with some rows of the weights of Linears that read the same value."""
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
            bias = np.concatenate([values[rows] for values, (*_, rows) in zip(given, sources, strict=True)])
        grids = [op.grid for op in ops if op.grid is not None]
        grid = None
        if len(grids) == len(ops) and len({grid.group for grid in grids}) == 1:
            cut = list(zip(grids, (rows for *_, rows in sources), strict=True))
            grid = GroupGrid(
                *(
                    np.concatenate([getattr(grid, part)[rows] for grid, rows in cut])
                    for part in ("codes", "scale", "minimum")
                )
            )
        first = sources[0][1]
        asked = max((op.asked for op in ops if op.asked), default=None)  # the widest
        op = Linear(weight, bias, grid, asked)
        return self._linear(f"{first.name}_part", op, first.inputs, first.where)

    # Results of calls.

    def columns(self, name: str, features: int) -> torch.Tensor:
        """The columns of a value that an operation computes."""
        if name not in self._columns:
            self._columns[name] = self.elements.add(name, features, single=name in self._single)
        return self._columns[name]

    def lines(self, node: Node, name: str, rows: torch.Tensor, features: int) -> None:
        """Set the result of a call: a value, with its rows in this order."""
        contents = self.elements.indices(self.columns(name, features), rows[:, None])
        self.keep(node, contents.reshape(shape(node)))

    def late(self, node: Node, later: Later, features: int, order: ElementOrder) -> None:
        """Set the result of a call: features in the layout `order`, of a value that is computed where it is
        read."""
        name = self.name(f"{node.name}_later")
        if isinstance(later, Scaled) and self.elements.are_single(later.columns):
            self._single.add(name)
        self.later[name] = later
        self.spread(node, [(name, features)], order)

    def spread(self, node: Node, features_of: Sequence[tuple[str, int]], order: ElementOrder) -> None:
        """Set the result of a call: values and their features, side by side in the layout `order`."""
        columns = torch.cat([self.columns(name, features) for name, features in features_of])
        contents = torch.empty(order.places.numel(), dtype=torch.int64)
        contents[order.places] = self.elements.indices(columns, order.rows[:, None])
        self.keep(node, contents.reshape(shape(node)))

    def keep(self, node: Node, contents: Any) -> None:
        """Set the contents of a call's tensor; a change in place also changes all views of the tensor."""
        if is_in_place(node):
            if memory(node.args[0]) in self.protected:
                raise Unsupported("it changes an input or a parameter in place")
            if node.args[0] in self.contents:
                change(self.contents, node.args[0], contents)
            elif is_seen(node):
                raise Unsupported("it writes values that are computed at run time into a constant in place")
        self.contents[node] = contents

    def count(self, contents: torch.Tensor, most: int = MOST_COUNTED) -> None:
        """Say that elements are whole numbers from 0 to `most`; not if that is above 2^16 - 1, since f24 does
        not hold all of these. most: -1 if they may be any whole numbers that f24 holds."""
        if most <= MOST_COUNTED:
            parts = self.elements.parts(contents.reshape(-1) // self.elements.stride)
            self._most.update((name, most) for name, _ in parts)

    def counted(self, contents: Any) -> int | None:
        """The number that elements, if these are contents of one tensor, are at most; None unless they are
        whole numbers below 2^16."""
        if not isinstance(contents, torch.Tensor):
            return None
        names = {name for name, _ in self.elements.parts(contents.reshape(-1) // self.elements.stride)}
        most = [self._numbers.get(name, self._most.get(name, -1)) for name in names]
        whole = all(number % 1 == 0 and 0 <= number <= MOST_COUNTED for number in most)
        return int(max(most, default=0)) if whole else None

    def are_counted(self, contents: Any) -> bool:
        """Whether elements, if these are contents of one tensor, are whole numbers below 2^16."""
        return self.counted(contents) is not None

    def is_whole(self, contents: Any) -> bool:
        """Whether elements, if these are contents of one tensor, are whole numbers, maybe below 0 or above
        2^16."""
        if not isinstance(contents, torch.Tensor):
            return False
        names = {name for name, _ in self.elements.parts(contents.reshape(-1) // self.elements.stride)}
        return all(name in self._most or self._numbers.get(name, 0.5) % 1 == 0 for name in names)

    def rows_for_positions(self, table: Node) -> None:
        """Add a table [.., tokens, features] as a value with a row for each position of the context."""
        if table in self.contents:
            return
        tokens, context = self.elements.rows, self.tables.context
        extents = shape(table)
        truth_or_float = table.meta["val"].dtype == torch.bool or table.meta["val"].is_floating_point()
        if not truth_or_float or extents.numel() != tokens * extents[-1]:
            raise Unsupported(
                f"it reads a table {list(extents)} of positions; [1, tokens, features] is needed"
            )
        positions = torch.arange(-(-context // tokens) * tokens).clamp(max=context - 1)
        pieces = [self.tables.at(table, some).reshape(tokens, -1) for some in positions.split(tokens)]
        op = PositionRows(torch.cat(pieces)[:context].detach().to(torch.float32).numpy())
        name = self.add(table, "position_rows", op)
        self.lines(table, name, self.elements.tokens, extents[-1])

    def half(self, node: Node, partial: Partial) -> None:
        """Set the result of a call to half of an operation."""
        if is_in_place(node):
            for other in [n for n in self.partial if memory(n) == memory(node)]:
                self.partial[other] = partial
        self.partial[node] = partial
