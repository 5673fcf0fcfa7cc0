"""Locks for resources that one thread at a time can use: tracers of torch, Yosys, a device.

Other threads wait, so several threads may call `compile` or the same accelerator.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])
Turn = threading.RLock
"""The lock of a resource. The thread that holds it may take it again."""

_COMPILERS = Turn()


def one_at_a_time(function: Function) -> Function:
    """Decorate functions so that only one thread at a time runs any of them. Tracing a module and converting
    to Verilog change state of the whole process."""

    @functools.wraps(function)
    def alone(*given: Any, **named: Any) -> Any:
        with _COMPILERS:
            return function(*given, **named)

    return cast(Function, alone)


def in_turn(method: Function) -> Function:
    """Decorate methods so that only one thread at a time runs any of them on the same object. The object has
    a `Turn` in its attribute `turn`."""

    @functools.wraps(method)
    def alone(self: Any, *given: Any, **named: Any) -> Any:
        with self.turn:
            return method(self, *given, **named)

    return cast(Function, alone)
