"""GELU by tanh, written out: 0.5 · x · (1 + tanh(sqrt(2 / pi) · (x + 0.044715 · x ** 3)))."""

import math
from dataclasses import dataclass, replace

import torch
from torch.fx import Node

from streamgen.model.frontend.draft import Draft
from streamgen.model.frontend.partial import Partial
from streamgen.model.frontend.trace import Unsupported
from streamgen.model.operations import Unary

NEEDED = "a cube must be part of a GELU: 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))"
CUBIC, ROOT = 0.044715, math.sqrt(2 / math.pi)


@dataclass(frozen=True, eq=False)
class Cube(Partial):
    """An intermediate value of this GELU. x: contents. factor: of the whole value. step: the step that must
    follow."""

    x: torch.Tensor
    factor: float = 1.0
    step: str = "sum"
    needed = NEEDED

    def _require(self, step: str, factor: float | None = None) -> None:
        if self.step != step or (factor is not None and abs(self.factor / factor - 1) > 1e-6):
            raise Unsupported(NEEDED)

    def times(self, factor: float) -> "Cube":
        if self.step == "one":
            raise Unsupported(NEEDED)
        return replace(self, factor=self.factor * factor)

    def added(self, draft: Draft, node: Node, other: Node) -> None:
        self._require("sum", CUBIC)
        if not torch.equal(draft.form(node, other, lambda c: c), self.x):
            raise Unsupported(NEEDED)
        draft.half(node, replace(self, factor=1.0, step="tanh"))

    def tanh(self) -> "Cube":
        self._require("tanh", ROOT)
        return replace(self, factor=1.0, step="one")

    def plus(self, constant: torch.Tensor) -> "Cube":
        self._require("one", 1.0)
        if constant.numel() != 1 or float(constant) != 1:
            raise Unsupported(NEEDED)
        return replace(self, step="product")

    def multiplied(self, draft: Draft, node: Node, other: Node, *, divides: bool = False) -> None:
        self._require("product")
        order, columns = draft.form(node, other, draft.elements.spread)
        before, factor = draft.unscaled(columns)
        x = order.taken(self.x)[0] // draft.elements.stride
        if divides or abs(factor * self.factor - 0.5) > 1e-6 or not torch.equal(before, x):
            raise Unsupported(NEEDED)
        name = draft.add(node, node.name, Unary("gelu_tanh"), draft.value(node, x))
        draft.spread(node, [(name, len(x))], order)
