"""Every kind of block over its sweep: resources as promised, no path over 8 LUT levels."""

import pytest

from sim.blocks import sweep
from sim.synthesis import check_all

SWEEP = sweep()
# Kinds whose synthesis takes long, in parts of so many cases.
AT_A_TIME = {
    "arith": 12,
    "column": 4,
    "quantise": 9,
    "quantise rows": 5,
    "dequantise": 5,
    "elementwise": 10,
    "attention": 3,
    "control": 9,
    "dma": 18,
}
PARTS = [
    (kind, first, AT_A_TIME.get(kind, len(cases)))
    for kind, cases in SWEEP.items()
    for first in range(0, len(cases), AT_A_TIME.get(kind, len(cases)))
]
# A few of each kind that every design has, for the quick tests.
SAMPLE = {"queue": 14, "client": 7, "concat": 1}


def test_a_sample_keeps_its_promises() -> None:
    check_all([SWEEP[kind][index] for kind, index in SAMPLE.items()])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "first", "count"), PARTS)
def test_promises_within_a_fifth(kind: str, first: int, count: int) -> None:
    check_all(SWEEP[kind][first : first + count])


def test_the_sweep_has_every_block_once() -> None:
    cases = [case for cases in SWEEP.values() for case in cases]
    assert len({params for params, _ in cases}) == len(cases) > 250
