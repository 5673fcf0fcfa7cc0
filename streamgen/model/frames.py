"""Frames: arguments and results of different numbers of tokens, as sequences of one number of tokens.

Tokens lie at the end of each sequence of the frame, behind zeros, or in front of the places of tokens that
the module adds at the end. The tokens of an image are its patches: a
view of its dimensions, of which some are tokens and the others features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Frame:
    """How an argument or a result lies in a frame.

    size: tokens of a sequence of the frame. tokens: its own, at most as many. dimension: of the tokens, among
    the dimensions of the frame. shape: of the tensor, 0 for an extent that is free. view, order: of an image,
    extents that the dimensions behind the leading ones are cut into, and their order in the rows of the
    frame; empty for any other tensor. Of those in order, the first whose product is `tokens` are the tokens.
    behind: places behind the tokens.
    """

    size: int
    tokens: int
    dimension: int
    shape: tuple[int, ...]
    view: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    behind: int = 0

    def __post_init__(self) -> None:
        if (
            not 1 <= self.tokens <= self.size - self.behind
            or self.behind < 0
            or not 0 <= self.dimension <= len(self.shape)
        ):
            raise ValueError(f"a frame of {self.size} tokens holds {self.tokens} in {self.dimension}")
        if sorted(self.order) != list(range(len(self.view))):
            raise ValueError(f"{self.order} is no order of {len(self.view)} dimensions")
        if self.view and prod(self.view) != prod(self.shape[self.dimension :]):
            raise ValueError(f"{self.view} is no view of {self.shape[self.dimension :]}")

    @property
    def first(self) -> int:
        """The place of the first token."""
        return self.size - self.behind - self.tokens

    @property
    def permutation(self) -> list[int]:
        """The order of the dimensions of a view with leading dimensions."""
        return [*range(self.dimension), *(self.dimension + d for d in self.order)]

    def framed(self, name: str, array: np.ndarray) -> np.ndarray:
        """The rows of the frame that hold an argument; ValueError for another shape."""
        if array.ndim != len(self.shape) or any(
            extent and extent != given for extent, given in zip(self.shape, array.shape, strict=True)
        ):
            free = ", ".join(str(extent or "any") for extent in self.shape)
            raise ValueError(
                f"input {name!r} has shape {array.shape}; the module was compiled for ({free}) alone. "
                "Compile it again with an example of the other shape"
            )
        lead = array.shape[: self.dimension]
        if self.view:
            array = array.reshape(*lead, *self.view).transpose(self.permutation)
            array = array.reshape(*lead, self.tokens, -1)
        widths = [(0, 0)] * array.ndim
        widths[self.dimension] = (self.first, self.behind)
        return np.pad(array, widths)

    def own(self, rows: np.ndarray) -> np.ndarray:
        """The argument or result that rows of the frame hold."""
        part = rows[(slice(None),) * self.dimension + (slice(self.first, self.first + self.tokens),)]
        return part if not self.view else self.image(part)

    def image(self, rows: np.ndarray) -> np.ndarray:
        """The image of rows [.., tokens, features]."""
        lead = rows.shape[: self.dimension]
        ordered = [self.view[d] for d in self.order]
        array = rows.reshape(*lead, *ordered).transpose(inverse(self.permutation))
        return array.reshape(*lead, *self.shape[self.dimension :])


def inverse(permutation: Sequence[int]) -> list[int]:
    """The permutation that undoes another one."""
    return sorted(range(len(permutation)), key=permutation.__getitem__)
