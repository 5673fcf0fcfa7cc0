"""The card's numbers against the facts they come from."""

from fractions import Fraction

import pytest

from streamgen.cost import Resources
from streamgen.platform.u55c import U55C


def test_sums_over_slrs():
    assert U55C.resources == Resources(lut=1_131_000, ff=2_265_000, bram=1776, uram=960, dsp=8304)


@pytest.mark.parametrize(("clock", "rate"), [(250.0, 0.83), (300.0, 0.69), (100.0, 1.0)])
def test_memory_rate(clock, rate):
    assert float(U55C.hbm.beats_per_cycle(clock)) == pytest.approx(rate, abs=0.005)
    assert U55C.hbm.channels * U55C.hbm.channel_rate == pytest.approx(425e9, rel=0.002)


def test_rate_is_exact():
    assert U55C.hbm.beats_per_cycle(300.0) == Fraction(133, 192)


def test_bad_clock():
    with pytest.raises(ValueError, match=r"^clock_mhz must be above 0, not 0$"):
        U55C.hbm.beats_per_cycle(0)
