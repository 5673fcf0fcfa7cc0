"""A seeded fault must be found by the proof of its block, with a run that shows it."""

from collections.abc import Callable
from types import FunctionType

import pytest

from sim.fault import fault
from sim.formal import RefutedError, Theorem, prove

__all__ = ["check_found"]


def check_found(
    make: Callable[[], Theorem], function: FunctionType, old: str, new: str, steps: int | None = None
) -> RefutedError:
    """Refute the theorem with `new` in place of `old`; the run begins in reset and ends in the failure."""
    with fault(function, old, new), pytest.raises(RefutedError) as refuted:
        prove(make(), steps=steps)
    trace = refuted.value.trace
    assert trace.values["first_cycle"] == [1] + [0] * (trace.cycles - 1)
    assert str(trace) in str(refuted.value) and len(trace.rows) > 2
    return refuted.value
