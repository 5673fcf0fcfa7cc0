"""Masks and lengths, which tell the tokens of sequences from padding behind them, and ids of padding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

LOWEST = -1e4  # the greatest number that hides a token when it is added to scores
ONE = -1  # in the place of a dimension: an extent of 1

Sense = Literal["shows", "hides", "adds", "counts"]


@dataclass(frozen=True, kw_only=True)
class MaskRule:
    """Which values an argument has that tells tokens from padding.

    sense: with "shows" ones show tokens and zeros hide them; with "hides" ones hide them; with "adds" zeros
    show them and numbers up to LOWEST hide them; with "counts" each number is the tokens of a sequence. dims:
    for each dimension of the mask the leading dimension of the inputs that has its extent, or -1 for an
    extent of 1. The dimension of the tokens comes last; numbers of tokens lack it. A mask of scores has it
    twice: as queries, then as keys. causal: whether a mask of scores shows each token itself and those before
    it, or else all tokens. pads: whether tokens at the end of a sequence may be hidden.
    """

    sense: Sense
    dims: tuple[int, ...]
    causal: bool = False
    pads: bool = False

    def __post_init__(self) -> None:
        if not self.dims or self.dims[-1] == ONE or min(self.dims) < ONE:
            raise ValueError(f"{list(self.dims)} are no dimensions of a mask")

    @classmethod
    def of(cls, mask: np.ndarray, lead: Sequence[int]) -> "MaskRule | None":
        """The rule of an example, for inputs with these leading dimensions. None for an array that is no
        mask: of another shape, with other values, or with other hidden tokens than padding and, in a mask of
        scores, the tokens behind each token."""
        if not mask.size:
            return None
        tokens_first = [0] if len(lead) == 2 else []  # as in [tokens, sequences]
        for tokens in (*([len(lead) - 1] if lead else []), *tokens_first):
            if (rule := cls._of_tokens(mask, lead, tokens)) is not None:
                return rule
        return None

    @classmethod
    def _of_tokens(cls, mask: np.ndarray, lead: Sequence[int], tokens: int) -> "MaskRule | None":
        """The rule if the tokens are in this leading dimension."""
        others = [d for d in range(len(lead)) if d != tokens]
        count = lead[tokens]
        if others and mask.shape == tuple(lead[d] for d in others) and mask.dtype.kind in "iu":
            rule = cls(sense="counts", dims=(*others, tokens))
        elif (dims := _dims(mask.shape, lead, others, tokens)) is None:
            return None
        elif mask.reshape(-1)[0] == 1:
            rule = cls(sense="shows", dims=dims)
        else:
            added = mask.dtype.kind == "f" and not (mask == 1).any()
            rule = cls(sense="adds" if added else "hides", dims=dims)
        shown, known = rule.shown(mask, count)
        if not known.all():
            return None
        if not rule.of_scores:
            return rule if (shown == _in_front(shown)).all() else None
        if shown.all():
            return rule
        return replace(rule, causal=True) if (shown == _before(count)).all() else None

    @property
    def tokens(self) -> int:
        """The leading dimension of the inputs that is the tokens of a sequence."""
        return self.dims[-1]

    @property
    def of_scores(self) -> bool:
        """Whether the mask has the tokens twice."""
        return len(self.dims) > 1 and self.dims[-1] == self.dims[-2]

    def extents(self, lead: Sequence[int]) -> tuple[int, ...]:
        """The shape of a mask of inputs with these leading dimensions."""
        extents = tuple(1 if d == ONE else lead[d] for d in self.dims)
        return extents[:-1] if self.sense == "counts" else extents

    def plain(self, lead: Sequence[int]) -> np.ndarray:
        """The mask without padding of inputs with these leading dimensions."""
        if self.sense == "counts":
            return np.full(self.extents(lead), lead[self.tokens])
        shown = np.ones(self.extents(lead), bool)
        if self.causal:
            shown &= _before(lead[self.tokens])
        if self.sense == "adds":
            return np.where(shown, 0, -np.inf).astype(np.float32)
        return (shown if self.sense == "shows" else ~shown).astype(np.int64)

    def shown(self, mask: np.ndarray, tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Which of so many tokens a mask shows, bool with the dimensions `dims`; and which elements of the
        mask have a value that is allowed."""
        if self.sense == "counts":
            return np.arange(tokens) < mask[..., None], (mask >= 1) & (mask <= tokens)
        show = mask == (1 if self.sense == "shows" else 0)
        hide = mask <= LOWEST if self.sense == "adds" else mask == (0 if self.sense == "shows" else 1)
        return show, show | hide

    def among(self, shown: np.ndarray, rank: int) -> np.ndarray:
        """An array with the dimensions `dims`, with the leading dimensions of inputs, of this number."""
        kept = [axis for axis, d in enumerate(self.dims) if d != ONE]
        order = sorted(kept, key=lambda axis: self.dims[axis])
        own = dict(zip(self.dims, shown.shape, strict=True))
        plain = shown.reshape([shown.shape[axis] for axis in kept])
        turned = plain.transpose([kept.index(axis) for axis in order])
        return turned.reshape([own.get(d, 1) for d in range(rank)])

    @property
    def told(self) -> str:
        """The values of a mask, as a user reads them."""
        tokens, padding = "for the tokens of a sequence, at least one, and", "for padding behind them"
        return {
            "shows": f"a mask is ones {tokens} zeros {padding}",
            "hides": f"a mask is zeros {tokens} ones {padding}",
            "adds": f"a mask is zeros {tokens} at most {LOWEST:.0f} {padding}",
            "counts": "a length is at least 1, and at most the number of tokens with padding",
        }[self.sense]


def _dims(
    shape: Sequence[int], lead: Sequence[int], others: Sequence[int], tokens: int
) -> tuple[int, ...] | None:
    """`MaskRule.dims` of a mask; None if its shape is none of a mask. others: all leading dimensions but that
    of the tokens."""
    if tuple(shape) == tuple(lead[d] for d in (*others, tokens)):
        return (*others, tokens)
    count = lead[tokens]
    if not shape or shape[-1] != count or count == 1:
        return None
    last = (tokens, tokens) if len(shape) > 1 and shape[-2] == count else (tokens,)
    dims = []
    for index, extent in enumerate(shape[: -len(last)]):
        if index == 0 and others and extent == lead[others[0]]:
            dims.append(others[0])
        elif extent == 1:
            dims.append(ONE)
        else:
            return None
    return (*dims, *last)


def _before(tokens: int) -> np.ndarray:
    return np.tril(np.ones((tokens, tokens), bool))


def _in_front(shown: np.ndarray) -> np.ndarray:
    """Tokens without one in front of them that is hidden. The first token is always shown."""
    front: np.ndarray = np.logical_and.accumulate(shown, axis=-1)
    front[..., 0] = True
    return front


def shown_tokens(
    masks: Mapping[str, tuple[np.ndarray, MaskRule]], lead: Sequence[int], dimension: int
) -> list[int]:
    """The number of tokens of each sequence that masks show.

    masks: by name of an input, its values and its rule. lead: the leading dimensions of the inputs.
    dimension: of these that of the tokens of a sequence. Raises ValueError for masks of another shape, with
    other values, that differ, that hide anything but the end of a sequence, that hide padding although they
    may not, and for masks of scores that do not hide the tokens that the example hid.
    """
    first: np.ndarray | None = None
    for name, (mask, rule) in masks.items():
        extents = rule.extents(lead)
        if len(mask.shape) != len(extents) or any(
            given != extent and (given != 1 or d == rule.tokens)
            for given, extent, d in zip(mask.shape, extents, rule.dims, strict=False)
        ):
            raise ValueError(f"input {name!r} has shape {mask.shape}; {extents} is needed")
        shown, known = rule.shown(mask, lead[rule.tokens])
        _require(name, mask, known, "", rule.told)
        if rule.of_scores:
            sees = "each token sees itself and those before it" if rule.causal else "each token sees all"
            _require(
                name,
                mask,
                shown == (_before(lead[rule.tokens]) | (not rule.causal)),
                "",
                f"the module was compiled with a mask by which {sees}. Compile it with an example of the "
                "other mask",
            )
            continue
        _require(
            name,
            mask,
            shown | rule.pads,
            " and hides a token",
            "padding can be left out only if no result depends on hidden tokens, and if results with a row "
            "for each token hold floats. Give each sequence by itself, without padding",
        )
        axis = rule.dims.index(dimension)
        front = np.moveaxis(_in_front(np.moveaxis(shown, axis, -1)), -1, axis)
        _require(name, mask, shown == front, "", rule.told)
        placed = np.broadcast_to(rule.among(shown, len(lead)), lead)
        first = placed if first is None else first
        if not np.array_equal(placed, first):
            raise ValueError(
                f"input {name!r} hides other tokens than another mask; all must hide the same ones"
            )
    return [] if first is None else first.sum(axis=dimension).reshape(-1).tolist()


def _require(name: str, mask: np.ndarray, right: np.ndarray, more: str, needed: str) -> None:
    """Raise ValueError for the first place of a mask that is not right."""
    right = np.logical_and.reduce(right, axis=-1) if right.ndim > mask.ndim else right
    if not right.all():
        place = np.argwhere(~right)[0].tolist()
        raise ValueError(f"input {name!r}{place} is {mask[tuple(place)]}{more}; {needed}")


def require_no_padding(name: str, ids: np.ndarray, padding: Sequence[int], masked: bool) -> None:
    """Raise ValueError for the first of the ids of an input that is padding. masked: whether a mask could
    have hidden it."""
    for number in padding:
        if (ids == number).any():
            at = np.argwhere(ids == number)[0].tolist()
            raise ValueError(
                f"input {name!r}{at} is {number}, which the module takes for padding; sequences must be "
                "given without padding" + (", or with a mask that hides it" if masked else "")
            )


def without_padding_ids(ids: np.ndarray, padding: Sequence[int], rows: int) -> np.ndarray:
    """Ids below `rows`, with the next id that is no padding in place of each that is."""
    for _ in padding:
        ids = np.where(np.isin(ids, padding), (ids + 1) % rows, ids)
    return ids
