"""What of a long test belongs to `make check`, and what to `make campaign`."""

import math
from collections.abc import Container, Iterable
from typing import Any

import pytest

__all__ = ["sampled", "shares"]


def sampled(cases: Iterable[Any], kept: Container[Any]) -> list[Any]:
    """Parameters of a slow test: `make check` runs the cases that are `kept`, `make campaign` the others.

    A case is a value, or a tuple of values when the test has several parameters.
    """
    found = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        found.append(pytest.param(*values, marks=() if case in kept else pytest.mark.campaign))
    return found


def shares(values: int, cases: int) -> list[set[int]]:
    """Which of some values each case of a crossing has: as many as the others, all of them together."""
    share = math.ceil(values / cases)
    return [{(case * share + k) % values for k in range(share)} for case in range(cases)]
