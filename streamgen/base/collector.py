"""Switch off Python's garbage collector while many long-lived objects are created."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Switch off the garbage collector for the block.

    Graphs, schedules and netlists are millions of objects that live until they are used. If the collector
    searches them for cycles again and again, this takes a tenth of a compilation and a third of a conversion
    to Verilog.
    """
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
