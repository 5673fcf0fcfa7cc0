"""A long text, cut into windows that a model reads as separate texts."""

from collections.abc import Sequence

import numpy as np
from numpy import ndarray


def windows_of(ids: ndarray, tokens: int, window: int, begin: Sequence[int] = ()) -> list[ndarray]:
    """The first tokens of a text, cut into windows that each begin with the start tokens; ValueError if the
    text or a window is too short."""
    own = window - len(begin)
    if not 2 <= own <= tokens <= len(ids):
        raise ValueError(f"2 <= window = {own} <= tokens = {tokens} <= {len(ids)} does not hold")
    first = np.array(begin, ids.dtype)
    return [np.append(first, ids[start : start + own]) for start in range(0, tokens - own + 1, own)]
