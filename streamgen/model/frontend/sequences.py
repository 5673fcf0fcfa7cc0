"""Values of sequences in a draft: one row for all tokens of a sequence, and rows that differ by place."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch.fx import Node

from streamgen.gateware.pointwise import FormulaBuilder
from streamgen.model.frames import Frame
from streamgen.model.frontend.elements import Elements
from streamgen.model.frontend.trace import Unsupported
from streamgen.model.graph.logical import Operator
from streamgen.model.operations import Expression, PlaceRows, ReduceTokens, TokenRow
from streamgen.model.operations.place_rows import PLACES

MOST_KINDS = 8  # of rows in one value, each from another value


class Values(Protocol):
    """The part of a draft that makes values."""

    elements: Elements
    later: dict[str, Any]

    def name(self, wanted: str) -> str:
        """A new name."""

    def add(self, node: Node, wanted: str, op: Operator, *inputs: str) -> str:
        """The name of the value that an operation computes."""

    def columns(self, name: str, features: int) -> torch.Tensor:
        """The columns of a value that an operation computes."""

    def value(self, node: Node, columns: torch.Tensor) -> str:
        """The name of a value with these columns."""

    def number(self, value: float) -> int:
        """A column that is a number in every row."""

    def numbers(self, columns: torch.Tensor) -> np.ndarray | None:
        """The numbers of columns; None unless all are numbers."""


class FewRows(Exception):  # noqa: N818 - asks for a longer frame, never leaves the frontend
    """A frame has too few places. size: the number that it needs. behind: those behind the inputs."""

    def __init__(self, size: int, behind: int = 0) -> None:
        super().__init__(f"a frame of {size} tokens is needed, {behind} of them behind the inputs")
        self.size, self.behind = size, behind


class ResultAhead(Exception):  # noqa: N818 - asks for another frame of a result, never leaves the frontend
    """A result ends before the last places of its frame. position: its number. behind: these places."""

    def __init__(self, position: int, behind: int) -> None:
        super().__init__(f"result {position} has {behind} places behind it")
        self.position, self.behind = position, behind


class Sequences:
    """The values of a draft that reduce the tokens of a sequence or tell their places apart.

    ids: names of the inputs that are ids. places: name of the input with the place of each token; None if
    there is none. padding: by name of an input, the ids that the module takes for padding and that must not
    be given; None if nothing would keep them out.
    """

    def __init__(self, draft: Values) -> None:
        self.draft = draft
        self.ids: set[str] = set()
        self.places: str | None = None
        self.padding: dict[str, set[int]] | None = None
        self.results: Mapping[int, Frame] = {}  # results of fewer tokens than the frame, by number
        self.numbered: dict[
            tuple[int, ...], torch.Tensor
        ] = {}  # columns of 0, 1, 2 .. by places in a sequence
        self._made: dict[tuple[str, str], str] = {}  # by reduction and value
        self._sums: dict[str, str] = {}  # by name of a sum over tokens: the value that it sums

    def require_at_end(self, position: int, rows: torch.Tensor) -> None:
        """Raise `ResultAhead` if a result is tokens of each sequence in turn, with places behind them."""
        frame, elements = self.results.get(position), self.draft.elements
        if frame is None or frame.behind:
            return
        own = rows[: frame.size][-frame.tokens :] - elements.before
        behind = frame.size - 1 - int(own[-1])
        in_turn = torch.equal(own, own[0] + torch.arange(frame.tokens))
        if in_turn and 0 < behind <= frame.size - frame.tokens:
            raise ResultAhead(position, behind)

    def taken(self, node: Node, contents: torch.Tensor) -> torch.Tensor:
        """Contents that hold only the first token of each sequence, or only the last one, as single values;
        other contents, and ids, as they are."""
        elements = self.draft.elements
        if not contents.numel():
            return contents
        ends = contents.reshape(-1)[[0, -1]] % elements.stride % elements.run
        offset = int(ends[0])
        place = {0: "first", elements.run - 1: "last"}.get(offset, offset if elements.framed else None)
        if place is None or int(ends[1]) != offset:  # which most contents show
            return contents
        rows, columns = contents % elements.stride, contents // elements.stride
        if (rows % elements.run != offset).any():
            return contents
        if contents.numel() % len(elements.starts) or elements.are_single(columns):
            return contents
        parts = elements.parts(columns.unique())
        if any(name in self.ids for name, _ in parts):
            return contents
        new = columns.clone()
        for name, features in parts:
            size = elements.size(name)
            if isinstance(place, int):
                alone = self.only(node, name, torch.tensor([place]), 0.0)
                row = self.reduced(node, "sum", alone)
            else:
                row = self.reduced(node, place, name)
            taken = self.draft.columns(row, size)[features]
            old = self.draft.columns(name, size)[features]
            for one, other in zip(old.tolist(), taken.tolist(), strict=True):
                new[columns == one] = other
        return elements.indices(new, rows - offset)

    def reduced(self, node: Node, kind: str, source: str) -> str:
        """The value of one row that a reduction over tokens makes of a value, or that is its first or last
        row."""
        draft = self.draft
        if (kind, source) not in self._made:
            if source in draft.later:
                source = draft.later[source].make(draft)
            op = TokenRow(kind) if kind in ("first", "last") else ReduceTokens(kind)  # type: ignore[arg-type]
            name = draft.add(node, f"{kind}_of_tokens", op, source)
            self._made[kind, source] = name
            if kind == "sum":
                self._sums[name] = source
        return self._made[kind, source]

    def means(self, node: Node, contents: torch.Tensor) -> torch.Tensor | None:
        """Sums over tokens, divided by the number of tokens; None if contents hold anything else."""
        elements = self.draft.elements
        parts = elements.parts((contents // elements.stride).reshape(-1))
        if any(name not in self._sums for name, _ in parts):
            return None
        new = []
        for name, features in parts:
            mean = self.reduced(node, "mean", self._sums[name])
            new.append(self.draft.columns(mean, elements.size(name))[features])
        return elements.indices(torch.cat(new).reshape(contents.shape), contents % elements.stride)

    def by_place(self, node: Node, numbers: np.ndarray, rows: torch.Tensor) -> torch.Tensor | None:
        """The columns of a value that has these constant numbers [rows, features], the same in each sequence;
        None if they differ between sequences. rows: which rows they are; all, or part of a frame."""
        draft, run = self.draft, self.draft.elements.run
        elements = draft.elements
        if not run or (len(rows) != elements.rows and not elements.framed):
            return None
        given = np.zeros((elements.rows, numbers.shape[1]), np.float32)
        given[(rows - elements.before).numpy()] = numbers
        by_run = given.reshape(-1, run, numbers.shape[1])
        if (by_run != by_run[:1]).any():
            return None
        if self.places is None:
            self.places = draft.name(PLACES)
        name = draft.add(node, f"{PLACES}_of_{node.name}", PlaceRows(by_run[0].copy()), self.places)
        return draft.columns(name, numbers.shape[1])

    def constant(self, node: Node, array: np.ndarray) -> torch.Tensor:
        """Contents of a constant [.., heads, tokens, features], which lies at the end of each sequence.

        Raises `FewRows` if it has too many tokens, and Unsupported if it differs between sequences.
        """
        elements = self.draft.elements
        run = elements.run or elements.rows
        tokens, features = array.shape[-2:]
        if tokens > run:
            raise FewRows(tokens)
        sequences = elements.rows // run
        if array.size % (sequences * tokens * features):
            raise Unsupported(f"a constant of shape {list(array.shape)} is not the same for all sequences")
        heads = array.reshape(sequences, -1, tokens, features)
        places = elements.tokens.reshape(sequences, run)[:, run - tokens :]
        by_row = np.moveaxis(heads, 2, 1).reshape(sequences * tokens, -1)
        columns = self.by_place(node, by_row, places.reshape(-1))
        if columns is None:
            raise Unsupported(f"a constant of shape {list(array.shape)} is not the same for all sequences")
        contents = elements.indices(columns.reshape(-1, 1, features), places[:, None, :, None])
        return contents.reshape(array.shape)

    def joined(self, node: Node, parts: Sequence[torch.Tensor | np.ndarray], dim: int) -> torch.Tensor:
        """Contents of parts side by side in one dimension, contents or constants. If the dimension is tokens,
        constants take free places of their sequence, those in front the last ones before its tokens; else
        they are in the rows beside them.

        Raises `FewRows` if there are too few places.
        """
        elements = self.draft.elements
        run = elements.run or elements.rows
        values = [part for part in parts if isinstance(part, torch.Tensor)]
        dim %= values[0].ndim
        beside = values[0].select(dim, 0) % elements.stride
        rows = values[0] % elements.stride
        by_token = bool((rows != beside.unsqueeze(dim)).any())
        if rows.shape[dim] == 1:
            by_token = dim < rows.ndim - 1
        taken = set(torch.cat([(part % elements.stride % run).reshape(-1) for part in values]).tolist())
        free = [place for place in range(run) if place not in taken]
        sizes = [0 if isinstance(part, torch.Tensor) else part.shape[dim] for part in parts]
        front = sum(sizes[: next(n for n, part in enumerate(parts) if isinstance(part, torch.Tensor))])
        if by_token and sum(sizes) > len(free):
            raise FewRows(len(taken) + sum(sizes), sum(sizes) - front)
        before = [place for place in free if place < min(taken)]
        if len(before) >= front:
            free = before[len(before) - front :] + free[len(before) :]
        places, contents = iter(free), []
        for part in parts:
            if isinstance(part, torch.Tensor):
                contents.append(part)
                continue
            for index in range(part.shape[dim]):
                given, where = np.unique(np.take(part, index, dim), return_inverse=True)
                columns = torch.tensor([self.draft.number(float(number)) for number in given])
                there = beside // run * run + next(places) if by_token else beside
                made = elements.indices(columns[torch.from_numpy(where.reshape(beside.shape))], there)
                contents.append(made.unsqueeze(dim))
        return torch.cat(contents, dim)

    def only(self, node: Node, source: str, places: torch.Tensor, other: float) -> str:
        """A value with a number in all places of a sequence but these."""
        features = self.draft.elements.size(source)
        return self._either(node, places, (source, features), other, f"{node.name}_of_places")

    def merged(self, node: Node, contents: torch.Tensor) -> torch.Tensor:
        """Contents whose rows are parts of one value, if they are of several values, or of constants, in
        different places of a sequence; other contents as they are."""
        draft, elements = self.draft, self.draft.elements
        flat = contents.reshape(-1)
        rows, columns = flat % elements.stride, flat // elements.stride
        present = rows.unique()
        if not len(flat) or len(flat) % len(present) or elements.are_single(columns):
            return contents
        if any(name in self.ids for name, _ in elements.parts(columns.unique())):
            return contents
        places = rows.argsort(stable=True).reshape(len(present), -1)
        if (rows[places] != present[:, None]).any():
            return contents
        by_row = columns[places]
        if (by_row == by_row[:1]).all():
            return contents
        elements.part(present)
        run = elements.run or elements.rows
        by_place = by_row.reshape(elements.rows // run, -1, by_row.shape[1])
        if (by_place != by_place[:1]).any():
            return contents
        name = self._chosen(node, present[: by_place.shape[1]] % run, by_place[0])
        new = torch.empty_like(flat)
        new[places] = elements.indices(draft.columns(name, by_row.shape[1]), present[:, None])
        return new.reshape(contents.shape)

    def _chosen(self, node: Node, places: torch.Tensor, columns: torch.Tensor) -> str:
        """The value that has, in each of these places of a sequence, the given columns [places, features]."""
        draft = self.draft
        numbers = [draft.numbers(row) for row in columns]
        constant = [index for index, given in enumerate(numbers) if given is not None]
        others = columns[[index for index, given in enumerate(numbers) if given is None]]
        kinds = others.unique(dim=0)
        if len(kinds) + bool(constant) > MOST_KINDS:
            raise Unsupported(
                f"its tokens are of {len(kinds)} values; at most {MOST_KINDS} may share a sequence"
            )
        result = ""
        if constant:
            table = np.stack([given for given in numbers if given is not None])
            result = self._by_places(node, places[constant], table)
        for kind in kinds:
            value = draft.value(node, kind)
            if not result:
                result = value
                continue
            here = [index for index in range(len(columns)) if torch.equal(columns[index], kind)]
            result = self._either(node, places[here], (value, len(kind)), result, f"{node.name}_by_place")
        return result

    def _either(
        self, node: Node, places: torch.Tensor, chosen: tuple[str, int], other: str | float, name: str
    ) -> str:
        """A value, with its features, in some places of each sequence, another one or a number in the
        others."""
        value, features = chosen
        names = {"here": self._by_places(node, places, np.ones((len(places), features), np.float32))}
        names |= {"value": value, "other": str(other)}
        builder = FormulaBuilder()
        here, there = builder.value("here"), builder.value("value")
        rest = builder.value("other") if isinstance(other, str) else builder.constant(other)
        found = builder.formula(builder.apply("where", here, there, rest))
        assert not isinstance(found, float)
        formula, keys = found
        return self.draft.add(node, name, Expression(formula), *(names[str(key)] for key in keys))

    def _by_places(self, node: Node, places: torch.Tensor, numbers: np.ndarray) -> str:
        """The value with constant numbers [places, features] in some places of each sequence, 0 in others."""
        elements = self.draft.elements
        tokens = elements.tokens.reshape(-1, elements.run or elements.rows)[:, places]
        made = self.by_place(node, np.tile(numbers, (len(tokens), 1)), tokens.reshape(-1))
        if made is None:
            raise Unsupported("its tokens are of several values, and a sequence is one token")
        return self.draft.value(node, made)
