"""Libraries that say at length what an error says in a line: without their warnings, logs and bars."""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr


@contextmanager
def quiet() -> Iterator[None]:
    """What is wrong comes as an error. Of the whole process, hence in functions that are `one_at_a_time`."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
