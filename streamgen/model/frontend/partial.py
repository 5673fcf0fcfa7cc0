"""Half of an operation that takes several calls, such as the scores of an attention or the mean of a norm."""

from typing import Any

import torch
from torch.fx import Node

from streamgen.model.frontend.trace import Unsupported


class Partial:
    """Half of an operation, and the calls that may complete it. Each method raises Unsupported unless the
    call fits."""

    needed = "it is half of an operation that is not known"

    def times(self, factor: float) -> "Partial":
        raise Unsupported(self.needed)

    def plus(self, constant: torch.Tensor) -> "Partial":
        raise Unsupported(self.needed)

    def weighed(self, factors: torch.Tensor) -> "Partial":
        """Times a constant of several numbers, such as a mask of zeros and ones."""
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
        """The value, filled with a number where the mask is true; the mask broadcasts."""
        raise Unsupported(self.needed)

    def multiplied(self, draft: Any, node: Node, other: Node, *, divides: bool = False) -> None:
        """`node` is other * self, or other / self."""
        raise Unsupported(self.needed)

    def taken(self, draft: Any, node: Node, other: Node) -> None:
        """`node` is other - self."""
        raise Unsupported(self.needed)

    def added(self, draft: Any, node: Node, other: Node) -> None:
        """`node` is other + self."""
        raise Unsupported(self.needed)

    def joined(self, draft: Any, node: Node, other: "Partial", sign: int) -> None:
        """`node` is self + sign * other."""
        raise Unsupported(self.needed)

    def summed(self, draft: Any, node: Node, other: Node) -> None:
        """`node` is self @ other."""
        raise Unsupported(self.needed)
