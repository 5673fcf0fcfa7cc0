"""kernels.matmul.row_result: rtl == golden, which is that of its units, with pauses; resources."""

import numpy as np
import pytest

from streamgen.gateware.arith import F24, AddParams, ScaleAccumulatorParams
from streamgen.kernels.matmul.row_result import RowResultParams
from streamgen.numbers.formats import E_NOT_FINITE, round_f24
from streamgen.testing.synthesis import check_all
from tests.unit.gateware.arith.arith_unit import run_unit


def _params(width: int, bias: bool, relu: bool) -> RowResultParams:
    scaler = ScaleAccumulatorParams(width=width, form=F24, exponent_bits=16)
    return RowResultParams(scaler=scaler, bias=bias, relu=relu)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("width", "bias"), [(37, True), (48, True), (44, False)])
def test_results_are_those_of_the_units(width: int, bias: bool, relu: bool, seed: int) -> None:
    rng = np.random.default_rng(seed + width)
    params, count = _params(width, bias, relu), 2000
    acc = rng.integers(-(1 << width - 1), 1 << width - 1, count) >> rng.integers(0, width, count)
    scale = round_f24(np.ldexp(rng.normal(size=count), rng.integers(-40, 10, count)))
    exponent = rng.integers(-60, 60, count)
    b = round_f24(np.ldexp(rng.normal(size=count), rng.integers(-60, 30, count)))
    acc[:8], scale[8:12], b[12:15] = 0, (0.0, np.inf, -np.inf, np.nan), (np.nan, np.inf, -np.inf)
    acc[16:18], exponent[20:24] = (-(1 << width - 1), (1 << width - 1) - 1), E_NOT_FINITE
    exponent[24:28], exponent[28:32] = 200, -200
    y = params.scaler.golden(acc, scale, exponent)
    b[40:60] = -y[40:60]  # which cancel
    expected = AddParams(form=F24).golden(y, b) if bias else y
    if relu:
        expected = np.where(np.isnan(expected), np.nan, np.where(expected > 0, expected, 0.0))
    operands = [acc, scale, exponent, *([b] if bias else [])]
    assert np.array_equal(F24.encode(params.golden(*operands)), F24.encode(expected))
    bits = {"acc": acc, "scale": F24.encode(scale), "exponent": exponent, "bias": F24.encode(b)}
    found = run_unit(params, {name: bits[name] for name in params.operands}, stalls=0.2, seed=seed)
    assert np.array_equal(found, F24.encode(expected))


@pytest.mark.slow
def test_resources() -> None:
    check_all(
        [
            (_params(width, bias, relu), None)
            for width in (39, 48)
            for bias in (False, True)
            for relu in (False, True)
        ]
    )
