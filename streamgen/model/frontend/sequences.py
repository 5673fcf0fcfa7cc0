"""Values of sequences in a draft: one row for all tokens of a sequence, and rows that differ by place."""

from typing import Any, Protocol

import numpy as np
import torch
from torch.fx import Node

from streamgen.model.frontend.elements import Elements
from streamgen.model.graph.logical import Operator
from streamgen.model.operations import PlaceRows, ReduceTokens, TokenRow
from streamgen.model.operations.place_rows import PLACES


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
        self._made: dict[tuple[str, str], str] = {}  # by reduction and value
        self._sums: dict[str, str] = {}  # by name of a sum over tokens: the value that it sums

    def taken(self, node: Node, contents: torch.Tensor) -> torch.Tensor:
        """Contents that hold only the first token of each sequence, or only the last one, as single values;
        other contents, and ids, as they are."""
        elements = self.draft.elements
        rows, columns = contents % elements.stride, contents // elements.stride
        for place, offset in (("first", 0), ("last", elements.run - 1)):
            tokens = elements.starts + offset
            if not contents.numel() or not torch.isin(rows, tokens).all():
                continue
            if contents.numel() % len(tokens) or elements.are_single(columns):
                break
            parts = elements.parts(columns.unique())
            if any(name in self.ids for name, _ in parts):
                break
            new = columns.clone()
            for name, features in parts:
                size = elements.size(name)
                taken = self.draft.columns(self.reduced(node, place, name), size)[features]
                old = self.draft.columns(name, size)[features]
                for one, other in zip(old.tolist(), taken.tolist(), strict=True):
                    new[columns == one] = other
            return elements.indices(new, rows - offset)
        return contents

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

    def by_place(self, node: Node, rows: np.ndarray) -> torch.Tensor | None:
        """The columns of a value that has these constant rows [N, features], the same in each sequence; None
        if they differ between sequences."""
        draft, run = self.draft, self.draft.elements.run
        if not run or len(rows) != draft.elements.rows:
            return None
        by_run = rows.reshape(-1, run, rows.shape[1])
        if (by_run != by_run[:1]).any():
            return None
        if self.places is None:
            self.places = draft.name(PLACES)
        name = draft.add(node, f"{PLACES}_of_{node.name}", PlaceRows(by_run[0].copy()), self.places)
        return draft.columns(name, rows.shape[1])
