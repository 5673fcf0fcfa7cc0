"""Warnings that name the line of the user."""

import sys
import warnings
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def warn(text: str, kind: type[Warning] = UserWarning) -> None:
    """Issue a warning for the innermost line under way outside of streamgen."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and Path(frame.f_code.co_filename).is_relative_to(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, kind, stacklevel=level)
