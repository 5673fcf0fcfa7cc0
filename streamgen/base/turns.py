"""Threads take turns: what they share (tracers of torch, Yosys, a device) serves one of them at a time.

Another thread waits, so that several may call `compile` or one accelerator side by side.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])
Turn = threading.RLock
"""Held by the thread whose turn it is, which may take it again."""

_COMPILERS = Turn()


def one_at_a_time(function: Function) -> Function:
    """A function that no two threads are in, nor in others of this kind: tracing a module and converting
    Verilog change what belongs to the whole process."""

    @functools.wraps(function)
    def alone(*given: Any, **named: Any) -> Any:
        with _COMPILERS:
            return function(*given, **named)

    return cast(Function, alone)


def in_turn(method: Function) -> Function:
    """A method that one thread at a time is in, of one object, whose attribute `turn` is a `Turn`."""

    @functools.wraps(method)
    def alone(self: Any, *given: Any, **named: Any) -> Any:
        with self.turn:
            return method(self, *given, **named)

    return cast(Function, alone)
