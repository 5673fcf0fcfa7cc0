"""Whether imports are held to their modules (`self_check`); needs no torch, as some imports do not."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ON: ContextVar[bool] = ContextVar("checking", default=True)


@contextmanager
def checking(on: bool) -> Iterator[None]:
    """Have imports check themselves meanwhile, as they do by default, or not."""
    before = _ON.set(on)
    try:
        yield
    finally:
        _ON.reset(before)


def is_checking() -> bool:
    """Whether imports check themselves."""
    return _ON.get()
