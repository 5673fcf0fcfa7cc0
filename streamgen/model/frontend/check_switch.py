"""The switch of the import check (`self_check`). It needs no torch, because some imports need none."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ON: ContextVar[bool] = ContextVar("checking", default=True)


@contextmanager
def checking(on: bool) -> Iterator[None]:
    """Turn the check of imports on or off within a block; it is on by default."""
    before = _ON.set(on)
    try:
        yield
    finally:
        _ON.reset(before)


def is_checking() -> bool:
    """Whether imports are checked."""
    return _ON.get()
