"""Operations on contents: a call that takes several of them is written as a formula of tensors of indices.

    centred = add(x, scaled(mean(x), -1))

Contents may be moved and broadcast between operations as torch tensors, since they are indices (`elements`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node

from streamgen.gateware.functions import FUNCTIONS
from streamgen.model.frontend.draft import Draft
from streamgen.model.frontend.elements import ElementOrder
from streamgen.model.frontend.trace import Unsupported
from streamgen.model.graph.logical import Operator
from streamgen.model.operations import Binary, Reduce, Scalar, Unary

OVER_TOKENS = (
    "it reduces over some tokens, or over tokens of several sequences; a reduction must be over features of "
    "one token, or over all tokens of a sequence, which are the last of the leading dimensions"
)
NEUTRAL = {"sum": 0.0, "mean": 0.0, "max": -math.inf, "min": math.inf}
"""Elements that leave a reduction over tokens as it is."""


@dataclass(frozen=True, eq=False)
class OnContents:
    """Adds operations for the call `node`. Each method takes and gives contents."""

    draft: Draft
    node: Node

    def each(self, op: Operator, first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        """An operation element by element; all operands have one shape and the same tokens in each place."""
        draft, elements = self.draft, self.draft.elements
        operands = (first, *others)
        lead = next((x for x in operands if not elements.are_single(x // elements.stride)), first)
        order, _ = elements.spread(lead)
        reason = "it joins elements of different tokens"
        names = [draft.value(self.node, elements.columns_in(operand, order, reason)) for operand in operands]
        name = draft.add(self.node, self.node.name, op, *names)
        return self._placed(name, order).reshape(first.shape)

    def add(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.each(Binary("add"), *torch.broadcast_tensors(a, b))

    def multiply(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.each(Binary("mul"), *torch.broadcast_tensors(a, b))

    def scaled(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return x if factor == 1 else self.each(Scalar("scale", factor), x)

    def negated(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(x, -1.0)

    def size(self, x: torch.Tensor) -> torch.Tensor:
        """Absolute values."""
        return self.each(Scalar("leaky", -1.0), x)

    def function(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """A function of one variable; Unsupported if there is none of this name."""
        if name not in FUNCTIONS:
            raise Unsupported(f"it needs the function {name} of each element, which is not computed yet")
        return self.each(Unary(name), x)

    def lines(self, x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
        """Contents [lines, length]: the elements that are reduced together, from the dimensions `dims`."""
        kept = [d for d in range(x.ndim) if d not in dims]
        length = int(torch.tensor([x.shape[d] for d in dims]).prod()) if dims else 1
        if not length:
            raise Unsupported("it reduces no elements")
        return x.permute(*kept, *dims).reshape(-1, length) if x.ndim else x.reshape(1, 1)

    def reduced(self, function: str, lines: torch.Tensor) -> torch.Tensor:
        """Contents [lines] of contents [lines, length]."""
        elements = self.draft.elements
        if self.is_over_tokens(lines):
            return self.over_tokens(function, lines)
        length = lines.shape[1]
        if length == 1:
            return self.multiply(lines, lines)[:, 0] if function == "squares" else lines[:, 0]
        order, columns = elements.spread(lines)
        op = Reduce(function, length)  # type: ignore[arg-type]
        name = self.draft.add(self.node, self.node.name, op, self.draft.value(self.node, columns))
        return self._placed(name, order.moved(order.places[:, ::length] // length))

    def is_over_tokens(self, lines: torch.Tensor) -> bool:
        rows = lines % self.draft.elements.stride
        return bool((rows != rows[:, :1]).any())

    def over_tokens(self, function: str, lines: torch.Tensor) -> torch.Tensor:
        """Contents [lines] of contents [lines, length], each line the same features of all tokens of a
        sequence: the features are reduced first."""
        if function == "squares":
            return self.over_tokens("sum", self.multiply(lines, lines))
        elements = self.draft.elements
        if not elements.run or elements.are_single(lines // elements.stride):
            raise Unsupported(OVER_TOKENS)
        run, width = elements.run, lines.shape[1]
        places = torch.arange(run)
        if elements.framed:
            places = (lines[0] % elements.stride % run).unique()
        if width % len(places):
            raise Unsupported(OVER_TOKENS)
        in_order = lines.gather(1, (lines % elements.stride).argsort(dim=1, stable=True))
        by_token = in_order.reshape(len(lines), len(places), -1)
        rows, columns = by_token % elements.stride, by_token // elements.stride
        starts = rows[:, 0, 0] - places[0]
        wanted = starts[:, None, None] + places[:, None]
        if (rows != wanted).any() or (starts % run).any() or (columns != columns[:, :1]).any():
            raise Unsupported(OVER_TOKENS)
        if width > len(places):
            features = by_token.reshape(-1, width // len(places))
            inner = self.mean(features) if function == "mean" else self.extreme_or_sum(function, features)
            return self.over_tokens(function, inner.reshape(len(lines), len(places)))
        order = starts.argsort(stable=True).reshape(len(elements.starts), -1)
        of_lines = columns[:, 0, 0][order]
        if not torch.equal(starts[order], elements.starts[:, None].expand(order.shape)) or (
            (of_lines != of_lines[:1]).any()
        ):
            raise Unsupported(OVER_TOKENS)
        source = self.draft.value(self.node, of_lines[0])
        if len(places) < run:
            source = self.draft.sequences.only(self.node, source, places, NEUTRAL[function])
            if function == "mean":
                total = self.draft.sequences.reduced(self.node, "sum", source)
                summed = self._placed(total, ElementOrder(order, elements.starts, single=True))
                return self.scaled(summed, 1 / len(places))
        reduced = self.draft.sequences.reduced(self.node, function, source)
        return self._placed(reduced, ElementOrder(order, elements.starts, single=True))

    def extreme_or_sum(self, function: str, lines: torch.Tensor) -> torch.Tensor:
        return self.least(lines) if function == "min" else self.reduced(function, lines)

    def mean(self, lines: torch.Tensor) -> torch.Tensor:
        if self.is_over_tokens(lines):
            return self.over_tokens("mean", lines)
        return self.scaled(self.reduced("sum", lines), 1 / lines.shape[1])

    def greatest(self, lines: torch.Tensor) -> torch.Tensor:
        return self.reduced("max", lines)

    def least(self, lines: torch.Tensor) -> torch.Tensor:
        if self.is_over_tokens(lines):
            return self.over_tokens("min", lines)
        return lines[:, 0] if lines.shape[1] == 1 else self.negated(self.greatest(self.negated(lines)))

    def variance(self, lines: torch.Tensor, correction: float) -> torch.Tensor:
        """The sum of squares of the elements less their mean, over their number less the correction."""
        if (count := lines.shape[1] - correction) <= 0:
            raise Unsupported(
                f"its {lines.shape[1]} elements have no variance with the correction {correction}"
            )
        centred = self.add(lines, self.negated(self.mean(lines))[:, None])
        return self.scaled(self.reduced("squares", centred), 1 / count)

    def folded(self, lines: torch.Tensor) -> torch.Tensor:
        """The product of each line: halves times halves."""
        while (length := lines.shape[1]) > 1:
            half = length // 2
            halves = self.multiply(lines[:, :half], lines[:, half : 2 * half])
            lines = torch.cat([halves, lines[:, 2 * half :]], 1)
        return lines[:, 0]

    def running(self, op: Operator, lines: torch.Tensor) -> torch.Tensor:
        """Running results of each line, in as many steps as the length has bits."""
        step = 1
        while step < lines.shape[1]:
            lines = torch.cat([lines[:, :step], self.each(op, lines[:, step:], lines[:, :-step])], 1)
            step *= 2
        return lines

    def _placed(self, name: str, order: ElementOrder) -> torch.Tensor:
        """Flat contents of a value, whose features have the places of `order`."""
        contents = torch.empty(order.places.numel(), dtype=torch.int64)
        columns = self.draft.columns(name, order.places.shape[1])
        contents[order.places] = self.draft.elements.indices(columns, order.rows[:, None])
        return contents
