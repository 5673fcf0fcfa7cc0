"""Arguments that are masks: they tell the tokens of sequences from padding behind them, or hide the tokens
behind each token.

A mask of the example hides no token, except those behind each token. The importer gives the module such a
mask of any number of tokens, so a mask is a constant to it, and a run leaves padding out.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from streamgen.model.frontend.trace import is_ids
from streamgen.model.padding import LOWEST, MaskRule

MASK, PAD, LENGTH = "mask", "pad", "len"  # in the names of masks, of those that mark padding, of lengths


@dataclass(frozen=True, eq=False)
class Mask:
    """An argument that is a mask. lead: the leading dimensions of the inputs of the example."""

    name: str
    dtype: torch.dtype
    rule: MaskRule
    lead: tuple[int, ...]

    def of(self, extents: Sequence[int], hidden: int = 0) -> torch.Tensor:
        """The mask for inputs whose first dimensions are these, with so many tokens hidden at the end."""
        rule, lead = self.rule, extents[: len(self.lead)]
        shape = rule.extents(lead)
        if rule.sense == "counts":
            return torch.full(shape, lead[rule.tokens] - hidden, dtype=self.dtype)
        if rule.causal:
            hides = torch.ones(shape, dtype=torch.bool).triu(1)
        else:
            hides = torch.zeros(shape, dtype=torch.bool)
        if hidden and not rule.of_scores:
            hides[..., -hidden:] = True
        if rule.sense == "adds":
            return torch.zeros(shape, dtype=self.dtype).masked_fill(hides, float("-inf"))
        return (hides if rule.sense == "hides" else ~hides).to(self.dtype)

    def hides(self, values: torch.Tensor) -> torch.Tensor:
        """Which tokens of the example are padding by these values of the mask, bool with the extents
        `lead`."""
        if self.rule.of_scores:
            return torch.zeros(self.lead, dtype=torch.bool)
        shown, _ = self.rule.shown(values.numpy(), self.lead[self.rule.tokens])
        return ~torch.from_numpy(self.rule.among(shown, len(self.lead))).expand(self.lead)

    @property
    def is_named(self) -> bool:
        """Whether the name says that the argument is a mask."""
        words = (LENGTH,) if self.rule.sense == "counts" else (MASK, PAD)
        return any(word in self.name.lower() for word in words)


def masks_of(module: torch.nn.Module, leaves: Sequence[Any], spec: pytree.TreeSpec) -> dict[int, Mask]:
    """The leaves that are masks, by number: truth values, integers whose names say so, and floats whose names
    and values say so. ValueError for integers that are named masks and hide other tokens than the last ones.
    """
    names = _names(module, leaves, spec)
    possible = _possible(leaves, names)
    found = {p: mask for p, mask in possible.items() if leaves[p].dtype == torch.bool or mask.is_named}
    for position, name in names.items():
        leaf, mask = leaves[position], found.get(position)
        if leaf.is_floating_point() and mask is not None and not (leaf <= LOWEST).any():
            del found[position]
        integers = is_ids(leaf) and leaf.dtype != torch.bool and MASK in name.lower()
        shown = mask is not None and (mask.rule.sense == "shows" or PAD in name.lower())
        if integers and not shown and _of_tokens(position, leaves):
            raise ValueError(
                f"example input {position} ({name}) hides the first token, or one in front of another; an "
                "example of ones is needed, perhaps with zeros behind them"
            )
    return found


def possible_masks(module: torch.nn.Module, leaves: Sequence[Any], spec: pytree.TreeSpec) -> dict[int, Mask]:
    """The leaves that may be masks, by number: integers, whatever they are called, and floats whose names say
    so, that hide no padding."""
    found = _possible(leaves, _names(module, leaves, spec))
    return {
        p: mask
        for p, mask in found.items()
        if (is_ids(leaves[p]) or mask.is_named) and not mask.hides(leaves[p]).any()
    }


def plain_mask(value: torch.Tensor, lead: Sequence[int]) -> Mask | None:
    """The mask that an argument without a name is, for ids of this shape; None for one that may be anything
    else, or that hides padding."""
    if (rule := MaskRule.of(value.numpy(), lead)) is None:
        return None
    mask = Mask("", value.dtype, rule, tuple(lead))
    if value.dtype == torch.bool:
        sure = True
    else:
        sure = rule.sense == "shows" if is_ids(value) else bool((value <= LOWEST).any())
    return mask if sure and not mask.hides(value).any() else None


def without_padding(leaves: Sequence[Any], masks: Mapping[int, Mask]) -> list[Any]:
    """The leaves of an example with masks that hide no padding. The first id of its sequence is in the place
    of each that was hidden. ValueError for masks that hide different tokens."""
    hidden = {p: mask.hides(leaves[p]) for p, mask in masks.items() if not mask.rule.of_scores}
    padding = next(iter(hidden.values()), torch.tensor(False))
    for position, hides in hidden.items():
        if not torch.equal(hides, padding):
            name = masks[position].name
            raise ValueError(f"example input {position} ({name}) hides other tokens than another mask")
    if not padding.any():
        return list(leaves)
    given = []
    for position, leaf in enumerate(leaves):
        if position in hidden:
            leaf = masks[position].of(masks[position].lead)
        elif is_ids(leaf) and leaf.shape[: padding.ndim] == padding.shape:
            hides = padding.reshape(*padding.shape, *(1 for _ in leaf.shape[padding.ndim :]))
            leaf = torch.where(hides, leaf.narrow(padding.ndim - 1, 0, 1), leaf)
        given.append(leaf)
    return given


def _possible(leaves: Sequence[Any], names: Mapping[int, str]) -> dict[int, Mask]:
    """The leaves that have the types and the values of masks, and the dimensions of the tokens of another
    leaf, by number."""
    found = {}
    for position, name in names.items():
        mask = leaves[position]
        for lead in _leads(position, leaves):
            if (rule := MaskRule.of(mask.numpy(), lead)) is not None:
                found[position] = Mask(name, mask.dtype, rule, lead)
                break
    return found


def _leads(position: int, leaves: Sequence[Any]) -> list[tuple[int, ...]]:
    """The dimensions of the tokens of the other leaves; in front those that this leaf has, too."""
    others = [leaf for p, leaf in enumerate(leaves) if p != position and isinstance(leaf, torch.Tensor)]
    others = [leaf for leaf in others if leaf.dtype != torch.bool] or others
    leads = [tuple(leaf.shape if is_ids(leaf) else leaf.shape[:-1]) for leaf in others]
    return sorted(leads, key=lambda lead: lead != tuple(leaves[position].shape))


def _of_tokens(position: int, leaves: Sequence[Any]) -> bool:
    """Whether a leaf holds zeros and ones alone, one for each token of another leaf."""
    mask = leaves[position]
    return bool(((mask == 0) | (mask == 1)).all()) and tuple(mask.shape) in _leads(position, leaves)


def _names(module: torch.nn.Module, leaves: Sequence[Any], spec: pytree.TreeSpec) -> Mapping[int, str]:
    """The names of the tensors among the leaves that are arguments of their own, by number."""
    parameters = [
        parameter.name
        for parameter in inspect.signature(module.forward).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    args, keywords = pytree.tree_unflatten(list(range(len(leaves))), spec)
    named = [*zip(args, parameters, strict=False), *((number, name) for name, number in keywords.items())]
    return {
        number: name
        for number, name in named
        if isinstance(number, int) and isinstance(leaves[number], torch.Tensor)
    }
