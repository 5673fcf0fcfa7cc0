"""Work on all processors: that of numpy, of C and of files, which leave the interpreter to others."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


def workers() -> ThreadPoolExecutor:
    """A thread for each processor."""
    return ThreadPoolExecutor(os.cpu_count())


def side_by_side(do: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
    """What is done for each of some items, in their order; raises what the first one raises that fails."""
    with workers() as pool:
        return list(pool.map(do, items))
