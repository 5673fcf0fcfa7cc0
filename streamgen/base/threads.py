"""Run work on all processors. This helps with numpy, C code and files, which release the interpreter."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


def workers() -> ThreadPoolExecutor:
    """A pool with one thread for each processor."""
    return ThreadPoolExecutor(os.cpu_count())


def side_by_side(do: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
    """The results of `do` for all items, in their order. Raises the error of the first item that fails."""
    with workers() as pool:
        return list(pool.map(do, items))
