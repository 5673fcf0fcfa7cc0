"""Masks and ids that tell the tokens of sequences from padding behind them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def shown_tokens(
    masks: Mapping[str, tuple[np.ndarray, bool]], lead: Sequence[int], dimension: int
) -> list[int]:
    """The number of tokens of each sequence that masks show.

    masks: by name of an input, its values, and whether it may hide padding. lead: the extents of the tokens,
    which masks must have. dimension: of these that of the tokens of a sequence. Raises ValueError for masks
    of another shape, with other values than 0 and 1, that differ, that hide anything but the end of a
    sequence, and that hide padding although they may not.
    """
    first: np.ndarray | None = None
    for name, (mask, pads) in masks.items():
        if mask.shape != tuple(lead):
            raise ValueError(f"input {name!r} has shape {mask.shape}; {tuple(lead)} is needed")
        _require(name, mask, (mask == 0) | (mask == 1), "", "a mask holds zeros and ones")
        _require(
            name,
            mask,
            (mask == 1) | pads,
            " and hides a token",
            "padding can be left out only if every result is one row for a sequence and does not depend on "
            "hidden tokens. Give each sequence by itself, without padding",
        )
        shown = np.moveaxis(mask, dimension, -1).astype(bool)
        behind = np.logical_and.accumulate(shown, axis=-1)
        behind[..., 0] = True
        _require(
            name,
            mask,
            np.moveaxis(shown == behind, -1, dimension),
            "",
            "a mask is ones for the tokens of a sequence, at least one, and zeros for padding behind them",
        )
        first = shown if first is None else first
        _require(name, mask, np.moveaxis(shown == first, -1, dimension), "", "all masks must be the same")
    return [] if first is None else first.sum(axis=-1).reshape(-1).tolist()


def _require(name: str, mask: np.ndarray, right: np.ndarray, more: str, needed: str) -> None:
    """Raise ValueError for the first place of a mask that is not right."""
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


def part_of(argument: Any, index: Sequence[int], count: int) -> Any:
    """The first `count` tokens of one sequence of an argument, with all its leading dimensions."""
    if isinstance(argument, (tuple, list)):
        return type(argument)(part_of(part, index, count) for part in argument)
    if isinstance(argument, dict):
        return {name: part_of(part, index, count) for name, part in argument.items()}
    if not isinstance(argument, np.ndarray):
        return argument
    return argument[(*(slice(i, i + 1) for i in index), slice(count))]
