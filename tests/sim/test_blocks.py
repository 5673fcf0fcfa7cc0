"""Every kind of block over its sweep: resources as promised, no path over 8 LUT levels."""

import pytest

from sim.blocks import sweep
from sim.synthesis import check_all

SWEEP = sweep()
# Of kinds whose synthesis takes long every n-th case; `benchmarks/resources.py` goes over all of them.
EVERY = {
    "arith": 3,
    "stream": 2,
    "queue": 2,
    "master": 2,
    "dma": 4,
    "control": 3,
    "elementwise": 3,
    "quantise": 2,
    "converter": 2,
    "norm": 3,
    "rope": 2,
    "quantise rows": 3,
    "dequantise": 2,
    "kv cache": 2,
    "column": 3,
}
CHOSEN = {kind: cases[:: EVERY.get(kind, 1)] for kind, cases in SWEEP.items()}
AT_A_TIME = 9  # cases in one run of Yosys
PARTS = [(kind, first) for kind, cases in CHOSEN.items() for first in range(0, len(cases), AT_A_TIME)]
# A few of each kind that every design has, for the quick tests.
SAMPLE = {"queue": 14, "client": 7, "concat": 1}


def test_a_sample_keeps_its_promises() -> None:
    check_all([SWEEP[kind][index] for kind, index in SAMPLE.items()])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "first"), PARTS)
def test_promises_within_a_fifth(kind: str, first: int) -> None:
    check_all(CHOSEN[kind][first : first + AT_A_TIME])


def test_the_sweep_has_every_block_once() -> None:
    cases = [case for cases in SWEEP.values() for case in cases]
    assert len({params for params, _ in cases}) == len(cases) > 250
