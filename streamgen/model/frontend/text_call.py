"""How a language model of one's own is called, and what it returns."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.utils import _pytree as pytree

from streamgen.model.frontend.masks import Mask, plain_mask
from streamgen.model.frontend.trace import is_ids


class NoLanguageModel(ValueError):  # noqa: N818 - callers see a ValueError
    """Arguments or results that are not those of a language model."""


class UnclearLogits(NoLanguageModel, TypeError):  # noqa: N818 - callers see a TypeError
    """Results of a module among which no logits are found."""


def logits_of(results: Any) -> torch.Tensor:
    """The logits among what a module returns; UnclearLogits when it is not clear which they are."""
    named = results.get("logits") if isinstance(results, dict) else getattr(results, "logits", None)
    if isinstance(named, torch.Tensor):
        return named
    tensors = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]
    if len(tensors) == 1:
        return tensors[0]
    shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
    raise UnclearLogits(
        f"the module returns {len(tensors)} tensors ({shapes}); logits alone are needed, or a dict with them "
        "as 'logits'"
    )


@dataclass(frozen=True)
class TextCall:
    """How a module is called. lead: dimensions of extent 1 before and behind the tokens. others: the
    arguments after the ids; a `Positions` among them becomes a tensor of positions, and a `Mask` one without
    padding. source: the last
    arguments, of which the source of the text is made."""

    lead: tuple[int, int]
    dtype: torch.dtype
    others: tuple[Any, ...] = ()
    source: tuple[torch.Tensor, ...] = ()

    @classmethod
    def of(cls, ids: torch.Tensor, others: Sequence[Any]) -> "TextCall":
        """As in an example; ValueError unless it is one text."""
        long = [d for d, extent in enumerate(ids.shape) if extent > 1]
        if not ids.ndim or not ids.numel() or len(long) > 1:
            raise NoLanguageModel(
                f"ids have shape {list(ids.shape)}; one text is needed: [1, T], [T] or [T, 1]"
            )
        tokens = long[-1] if long else ids.ndim - 1
        taken = tuple(_argument(value, ids.shape, tokens) for value in others)
        return cls((tokens, ids.ndim - 1 - tokens), ids.dtype, taken)

    def ids(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [T] as the module takes them."""
        before, behind = self.lead
        return ids.to(self.dtype).reshape((1,) * before + (-1,) + (1,) * behind)

    def arguments(self, tokens: int) -> list[Any]:
        """The arguments after so many ids."""
        before, behind = self.lead
        lead = (1,) * before + (tokens,) + (1,) * behind
        return [value.of(lead) if isinstance(value, Positions | Mask) else value for value in self.others]


@dataclass(frozen=True)
class Positions:
    """An argument that holds the positions 0, 1, 2 ... of the ids. lead: dimensions of extent 1 before
    them."""

    lead: int
    dtype: torch.dtype

    def of(self, extents: Sequence[int]) -> torch.Tensor:
        """The positions of ids of this shape."""
        return torch.arange(prod(extents), dtype=self.dtype).reshape((1,) * self.lead + (-1,))


def _argument(value: Any, lead: Sequence[int], dimension: int) -> Any:
    """An argument after the ids, of an example with so many of them. lead: the shape of the ids, whose tokens
    are in this dimension."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if not isinstance(value, torch.Tensor):
        raise NoLanguageModel(
            f"an argument after the ids is {type(value).__name__}; it must be a number, the "
            "positions or a mask"
        )
    tokens = lead[dimension]
    if is_ids(value) and torch.equal(value.reshape(-1).long(), torch.arange(tokens)) and tokens > 1:
        return Positions(value.ndim - 1, value.dtype)
    if (mask := plain_mask(value, lead)) is not None:
        return mask
    if tokens == 1 and is_ids(value) and value.numel() == 1 and not value.any():
        raise NoLanguageModel(
            f"an argument after the ids is a tensor {list(value.shape)} that holds 0; an example with more "
            "ids tells whether it is a position"
        )
    raise NoLanguageModel(
        f"an argument after the ids is a tensor {list(value.shape)} of {value.dtype}; only positions of "
        f"the ids are allowed there, 0 to {tokens - 1}, and masks that hide no token or those behind each "
        "token"
    )
