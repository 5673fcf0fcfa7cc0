"""The check of ids that are appended to a text, for golden models and accelerators alike."""

from collections.abc import Sequence

import numpy as np
from numpy import ndarray


def checked_ids(
    ids: Sequence[int] | ndarray, vocabulary: int, context: int, position: int = 0, room: int = 0
) -> ndarray:
    """ids as an int64 array [tokens], to append to a text of `position` tokens.

    Raises ValueError or TypeError unless there is at least one id, all ids are below `vocabulary`, and the
    text with them and `room` more tokens fits the context.
    """
    array = np.asarray(ids)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"ids have the shape {list(array.shape)}; [tokens] with at least one is needed")
    require_integers(array)
    if room < 0:
        raise ValueError(f"{room} new tokens are asked for; at least 0 are needed")
    require_known(array, vocabulary)
    total = position + len(array) + room
    if total > context:
        raise ValueError(
            f"{position} tokens, {len(array)} more and {room} to come are {total}; the context is {context}"
        )
    return array.astype(np.int64)


def require_integers(ids: ndarray) -> None:
    """Raise TypeError for ids that are not integers."""
    if ids.dtype.kind not in "iu":
        raise TypeError(f"ids are {ids.dtype}; integers are needed")


def require_known(ids: ndarray, vocabulary: int) -> None:
    """Raise ValueError with the first id outside the vocabulary."""
    wrong = np.flatnonzero((ids < 0) | (ids >= vocabulary))
    if wrong.size:
        raise ValueError(f"ids[{wrong[0]}] is {ids[wrong[0]]}; ids are 0 to {vocabulary - 1}")
