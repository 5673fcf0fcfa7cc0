"""Seeded faults: a function with one piece of its text changed, for as long as a `with` lasts.

    with fault(Queue._build_memory, "params.depth - 1", "params.depth"):
        ...

A test that passes with the fault in place tests nothing. The text must occur exactly once: a fault that no
longer finds its place is an error, not a pass.
"""

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType

__all__ = ["fault"]


@contextmanager
def fault(function: FunctionType, old: str, new: str) -> Iterator[None]:
    """Run the body with `old` replaced by `new` in the text of `function`, everywhere it is used.

    Raises ValueError unless `old` occurs exactly once.
    """
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(old) != 1:
        raise ValueError(
            f"the text to change must occur once in {function.__qualname__}, "
            f"not {source.count(old)} times: {old!r}"
        )
    namespace: dict[str, FunctionType] = {}
    exec(
        compile(source.replace(old, new), f"<{function.__qualname__}>", "exec"),
        function.__globals__,
        namespace,
    )
    sound = function.__code__
    function.__code__ = namespace[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = sound
