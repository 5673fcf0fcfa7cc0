"""Records which elements of which values a tensor holds; views, transposes and slices act on these indices.

Values of a logical graph are [N, features], where N is the number of tokens of all inputs. Each feature of
each value is a column with a number of its own, and element (row, column) has the index column · S + row. A
tensor of the module is then a tensor of indices, its *contents*, and a call that only moves elements is run
on the contents. The rows are those of tokens and S is N; in a language model the rows are positions, the
tokens are the last of these, and S is the number of all positions. A *single* value has one row for each
sequence of `run` tokens, such as a mean over tokens; that row has the number of the sequence's first token.

Operations read contents in one of these forms:

    lines     the last dimension holds features of one token      -> rows [N], columns [features]
    spread    any layout with the same features of every token    -> `ElementOrder`, columns [features]
    heads     [.., tokens, features]: runs of tokens, heads       -> `HeadOrder`
    cached    [.., positions, features]: heads of all positions   -> columns [heads, features]

Sequences of different numbers of tokens share a *frame* (`frames`): contents may hold a part of the tokens of
each sequence, the same part of each.
"""

from dataclasses import dataclass
from typing import Any

import torch

from streamgen.model.frontend.trace import Unsupported

CACHED = "rows of earlier passes can only be keys and values of an attention"
MIXED = "an operation joins a row for all tokens of a sequence with rows for each of them"
NEEDED = "rows must stay whole: each row holds features of one token, and every token has one row"
UNWRITTEN = (
    "it reads places of a buffer that this call of the module has not written; a text has no state but the "
    "keys and values of an attention, whose mask hides such places"
)
IN_TURN = "attention needs inputs whose tokens are consecutive: [batch, tokens, features]"


class OtherRows(Unsupported):
    """Rows of an earlier pass."""


@dataclass(frozen=True, eq=False)
class ElementOrder:
    """Where contents hold the features of rows. places: [rows, features], flat. rows: [rows]. single: whether
    they are rows of single values."""

    places: torch.Tensor
    rows: torch.Tensor
    single: bool = False

    def taken(self, flat: Any) -> Any:
        """The elements of a flat tensor or array, [rows, features]."""
        return flat.reshape(-1)[self.places if isinstance(flat, torch.Tensor) else self.places.numpy()]

    def moved(self, places: torch.Tensor) -> "ElementOrder":
        """The same rows in other places."""
        return ElementOrder(places, self.rows, self.single)


@dataclass(frozen=True, eq=False)
class HeadOrder:
    """Which tensor index is which head. order: [runs, heads], the flat leading index of each head of each run
    of tokens. columns: [heads, features]. places: [tokens] in their sequence, neighbours in some order. rows:
    [runs, tokens]."""

    order: torch.Tensor
    columns: torch.Tensor
    places: torch.Tensor
    rows: torch.Tensor

    @property
    def first(self) -> int:
        """The least place."""
        return int(self.places.min())


class Elements:
    """The columns of all values. rows: N. before: the number of positions before the first token. last:
    whether contents may hold the last token alone in place of all tokens. run: tokens of a sequence; 0 or 1
    if there are no single values. framed: whether contents may hold a part of the tokens."""

    def __init__(
        self, rows: int, before: int = 0, *, last: bool = False, run: int = 0, framed: bool = False
    ) -> None:
        self.rows = rows
        self.framed = framed
        self.run = run if run > 1 else 0
        self.before = before
        self.last = last
        self.stride = before + rows
        self.tokens = torch.arange(before, self.stride)
        self.starts = self.tokens[:: self.run] if self.run else self.tokens[:0]
        self._single: list[bool] = []
        self._firsts: list[int] = []
        self._names: list[str] = []
        self._sizes: dict[str, int] = {}
        self._unwritten: list[tuple[int, int]] = []  # first columns and their number
        self._end = 0
        self._owners = torch.zeros(0, dtype=torch.int64)

    def add(self, name: str, features: int, *, single: bool = False) -> torch.Tensor:
        """Number the columns of a new value."""
        self._single.append(single)
        self._firsts.append(self._end)
        self._names.append(name)
        self._sizes[name] = features
        self._end += features
        return torch.arange(self._end - features, self._end)

    def unwritten(self, count: int) -> torch.Tensor:
        """Contents [count] of places that nothing has written yet."""
        columns = self.add(f"unwritten {len(self._names)}", count)
        self._unwritten.append((int(columns[0]), count))
        return self.indices(columns, torch.zeros((), dtype=torch.int64))

    def refusal(self, contents: torch.Tensor, reason: str) -> Unsupported:
        """Why contents do not fit: places that nothing has written, or else the given reason."""
        columns = contents // self.stride
        first = any(((columns >= at) & (columns < at + n)).any() for at, n in self._unwritten)
        return Unsupported(UNWRITTEN if first else reason)

    def indices(self, columns: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Contents with these columns and rows, which broadcast."""
        return columns * self.stride + rows

    def parts(self, columns: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        """Split columns into runs that belong to one value: its name and the features."""
        firsts = torch.tensor(self._firsts)
        owners = self._owners_of(columns)
        owned, counts = torch.unique_consecutive(owners, return_counts=True)
        parts = (columns - firsts[owners]).split(counts.tolist())
        return [(self._names[owner], part) for owner, part in zip(owned.tolist(), parts, strict=True)]

    def _owners_of(self, columns: torch.Tensor) -> torch.Tensor:
        """The number of the value that each column belongs to."""
        known = len(self._owners)
        if known < self._end:  # a table, because millions of columns are looked up
            first = int(self._owners[-1]) + 1 if known else 0
            numbers = torch.arange(first, len(self._firsts))
            sizes = torch.tensor([*self._firsts[first + 1 :], self._end]) - torch.tensor(self._firsts[first:])
            self._owners = torch.cat([self._owners, numbers.repeat_interleave(sizes)])
        return self._owners[columns]

    @property
    def names(self) -> list[str]:
        """All values in the order in which they were added."""
        return self._names

    def are_single(self, columns: torch.Tensor) -> bool:
        """Whether columns are of single values; Unsupported if only some are."""
        if not any(self._single):
            return False
        single = torch.tensor(self._single)[self._owners_of(columns)]
        if single.any() != single.all():
            raise Unsupported(MIXED)
        return bool(single.all())

    def rows_of(self, count: int) -> torch.Tensor:
        """The rows of a value of that many rows: the last tokens, or one for each sequence."""
        return self.starts if self.run and count == len(self.starts) else self.tokens[-count:]

    def part(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows, each once, of a part of the tokens of each sequence; Unsupported for different parts."""
        found = rows.unique()
        run = self.run or self.rows
        sequences = self.rows // run
        places = found.reshape(sequences, -1) if len(found) % sequences == 0 else found[None]
        if not torch.equal(places, places[:1] % run + run * torch.arange(sequences)[:, None]):
            raise Unsupported("it holds other tokens of one sequence than of another one")
        return found

    def size(self, name: str) -> int:
        """The number of features of a value."""
        return self._sizes[name]

    def is_whole(self, name: str, features: torch.Tensor) -> bool:
        """Whether these are all features of a value, in order."""
        return torch.equal(features, torch.arange(self._sizes[name]))

    def tokens_of(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """The tokens that rows must be: all, or the last one, or a part of those of a frame; of single values
        the first of each sequence."""
        if self.are_single(columns):
            return self.starts
        if self.framed:
            return self.part(rows)
        only_last = self.last and bool((rows == self.stride - 1).all())
        return self.tokens[-1:] if only_last else self.tokens

    def lines(self, contents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The row of each line and the features of all lines; Unsupported unless each line is one token."""
        matrix = contents.reshape(-1, contents.shape[-1])
        rows, columns = matrix % self.stride, matrix // self.stride
        if (rows < self.before).any():
            raise OtherRows(CACHED)
        same = (columns == columns[:1]).all() and (rows == rows[:, :1]).all()
        if not same or not torch.equal(rows[:, 0].sort().values, self.tokens_of(rows, columns)):
            raise self.refusal(contents, NEEDED)
        return rows[:, 0], columns[0]

    def spread(self, contents: torch.Tensor) -> tuple[ElementOrder, torch.Tensor]:
        """The places of each feature of each row in the flat contents; Unsupported if tokens have different
        features."""
        flat = contents.reshape(-1)
        rows, columns = flat % self.stride, flat // self.stride
        if (rows < self.before).any():
            raise OtherRows(CACHED)
        tokens = self.tokens_of(rows, columns)
        if len(flat) % len(tokens):
            raise self.refusal(contents, NEEDED)
        if torch.equal(rows.reshape(len(tokens), -1), tokens[:, None].expand(-1, len(flat) // len(tokens))):
            places = torch.arange(len(flat)).reshape(len(tokens), -1)  # as most contents are
        else:
            places = rows.argsort(stable=True).reshape(len(tokens), -1)
        order = ElementOrder(places, tokens, self.are_single(columns))
        if not self.matches(contents, order):
            raise self.refusal(contents, NEEDED)
        return order, columns[places[0]]

    def matches(self, contents: torch.Tensor, order: ElementOrder) -> bool:
        """Whether contents in this order have the same features in every row."""
        indices = order.taken(contents)
        rows, columns = indices % self.stride, indices // self.stride
        if not ((rows == order.rows[:, None]).all() and (columns == columns[:1]).all()):
            return False
        return not self.run or len(order.rows) == self.rows or self.are_single(columns) == order.single

    def columns_in(self, contents: torch.Tensor, order: ElementOrder, reason: str) -> torch.Tensor:
        """The columns [features] of contents in an order, in which the row of a single value may stand beside
        each token of its sequence; Unsupported, for this reason, unless all rows have the same."""
        if not self.run or order.single or not self.are_single(contents // self.stride):
            if not self.matches(contents, order):
                raise self.refusal(contents, reason)
            return order.taken(contents)[0] // self.stride
        indices = order.taken(contents)
        rows, columns = indices % self.stride, indices // self.stride
        starts = order.rows - (order.rows - self.before) % self.run
        if (rows != starts[:, None]).any() or (columns != columns[:1]).any():
            raise Unsupported("it joins a row for all tokens of a sequence with rows of another sequence")
        return columns[0]

    def heads(self, contents: torch.Tensor, order: torch.Tensor | None = None) -> HeadOrder:
        """The heads of contents [.., tokens, features]. order: that of the queries, which keys and values
        must share."""
        tokens, features = contents.shape[-2:]
        if tokens > self.rows:
            raise self.refusal(contents, IN_TURN)
        indices = contents.reshape(-1, tokens, features)
        rows, columns = indices % self.stride, indices // self.stride
        run = (self.run or self.rows) if self.framed else tokens
        places = rows[0, :, 0] % run if self.framed else torch.arange(tokens)
        starts = rows[:, 0, 0] - self.before - places[0]
        in_turn = torch.equal(places.sort().values, places.min() + torch.arange(tokens))
        if (
            not in_turn
            or (rows != starts[:, None, None] + self.before + places[:, None]).any()
            or (starts % run).any()
            or self.rows % run
        ):
            raise self.refusal(contents, IN_TURN)
        runs = self.rows // run
        if len(starts) % runs:
            raise self.refusal(contents, IN_TURN)
        if order is None:
            order = starts.argsort(stable=True).reshape(runs, -1)
        wanted = torch.arange(runs) * run
        same = torch.equal(starts[order], wanted[:, None].expand(order.shape))
        by_run = columns[order]
        if not same or (by_run != by_run[:1, :, :1]).any():
            raise Unsupported("every head must hold the same features for all tokens of its sequence")
        return HeadOrder(order, by_run[0, :, 0], places, wanted[:, None] + self.before + places)

    def cached(self, contents: torch.Tensor) -> torch.Tensor:
        """Columns [heads, features] of contents that hold a row for every position, from first to last."""
        indices = contents.reshape(-1, *contents.shape[-2:])
        rows, columns = indices % self.stride, indices // self.stride
        if (
            not torch.equal(rows, torch.arange(self.stride)[:, None].expand_as(rows))
            or (columns != columns[:, :1]).any()
        ):
            raise Unsupported("keys and values must cover all positions, in order")
        return columns[:, 0]
