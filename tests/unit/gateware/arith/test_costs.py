"""The limits of the f24 units. `tests/designs/sim/test_blocks.py` holds every unit to its promise,
in each format and with each function of the sweep, but not at every width."""

import pytest

from streamgen.gateware.arith import F24, AddParams, MultiplyParams
from streamgen.testing.synthesis import check_all


@pytest.mark.slow
def test_f24_units_are_small() -> None:
    add, multiply = check_all([(AddParams(form=F24), None), (MultiplyParams(form=F24), None)])
    assert add.resources.lut <= 420
    assert multiply.resources.lut <= 120
    assert multiply.resources.dsp == 1
