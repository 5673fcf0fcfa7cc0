"""Silences the warnings, logs and progress bars of libraries whose problems are reported as errors."""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr


@contextmanager
def quiet() -> Iterator[None]:
    """Silence libraries within a block; for the whole process, so callers must be `one_at_a_time`."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
