"""A long text in windows, each of which a model reads as a text of its own."""

from collections.abc import Sequence

import numpy as np
from numpy import ndarray


def windows_of(ids: ndarray, tokens: int, window: int, begin: Sequence[int] = ()) -> list[ndarray]:
    """The first tokens of a text in windows, each behind those that begin a text; ValueError when it is too
    short or a window is."""
    own = window - len(begin)
    if not 2 <= own <= tokens <= len(ids):
        raise ValueError(f"2 <= window = {own} <= tokens = {tokens} <= {len(ids)} does not hold")
    first = np.array(begin, ids.dtype)
    return [np.append(first, ids[start : start + own]) for start in range(0, tokens - own + 1, own)]
