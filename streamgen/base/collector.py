"""Switch off Python's garbage collector while many long-lived objects are created."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)  # a function of glibc only


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Switch off the garbage collector for the block.

    Graphs, schedules and netlists are millions of objects that live until they are used. If the collector
    searches them for cycles again and again, this takes a tenth of a compilation and a third of a conversion
    to Verilog. The cycles of the block before are collected first, and their memory goes back to the system:
    gigabytes of a large model. They lie in the young generations.
    """
    on = gc.isenabled()
    if on:
        gc.collect(1)
        if _TRIM is not None:
            _TRIM(0)
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
