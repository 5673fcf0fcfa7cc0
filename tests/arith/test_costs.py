"""What the units promise, held to synthesis: resources, 8 LUT levels, and the limits of the f24 units."""

from typing import Any

import pytest

from sim.synthesis import Synthesis, synthesise
from streamgen.arith import (
    F24,
    FLOAT32,
    AddParams,
    IntToFloatParams,
    MultiplyParams,
    ReluParams,
    ScaleAccumulatorParams,
    SigmoidParams,
)

UNITS: list[Any] = [
    AddParams(form=F24),
    AddParams(form=FLOAT32),
    MultiplyParams(form=F24),
    MultiplyParams(form=FLOAT32),
    IntToFloatParams(width=48, form=F24),
    IntToFloatParams(width=64, form=F24),
    ScaleAccumulatorParams(width=48, form=F24),
    ScaleAccumulatorParams(width=64, form=F24, exponent_bits=10),
    SigmoidParams(form=F24),
    SigmoidParams(form=F24, times_x=True),
    ReluParams(form=F24),
]


@pytest.mark.slow
def test_promises_bound_synthesis() -> None:
    measured: dict[Any, Synthesis] = dict(
        zip(UNITS, synthesise(*(unit.build() for unit in UNITS)), strict=True)
    )
    for unit, found in measured.items():
        said = f"{unit}: {found.resources}, promised {unit.resources}"
        assert found.levels <= 8, f"{unit}: {found.levels} levels, {found.path}"
        assert found.resources.dsp == unit.resources.dsp, said
        assert 0.7 * unit.resources.lut <= found.resources.lut <= unit.resources.lut, said
        assert 0.7 * unit.resources.ff <= found.resources.ff <= unit.resources.ff, said
    assert measured[UNITS[0]].resources.lut <= 420
    assert measured[UNITS[2]].resources.lut <= 120
    assert measured[UNITS[2]].resources.dsp == 1
