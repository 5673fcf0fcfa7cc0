"""Functions by fitted segments: curves keep their tolerance, tails are exact, RTL == golden, costs hold."""

from collections.abc import Callable

import numpy as np
import pytest

from streamgen.gateware.arith import BFLOAT16, F24, FLOAT16, FLOAT32, FittedCurve, Float, PiecewiseParams
from streamgen.gateware.arith.segments import segments
from streamgen.gateware.functions import FUNCTIONS
from streamgen.testing.synthesis import check_all
from tests.unit.gateware.arith.arith_unit import LIMITS, assert_same_bits, random_bits, run_unit, special_bits

TOLERANCE = 2.0**-16
# Tables of a few to 860 segments: a kink at 0, tails of both kinds, a zero in the middle, none at all.
CURVES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "leaky": (lambda x: np.where(x > 0, x, 0.01 * x), 0.0),
    "softsign": (lambda x: x / (1 + np.abs(x)), 0.0),
    "mish": (lambda x: x * np.tanh(np.logaddexp(0.0, x)), 0.0),
    "bump": (lambda x: 3 / (1 + x * x), 0.0),
    "one and a half": (lambda x: np.full(np.shape(x), -1.5), 0.0),
    "shifted": (lambda x: np.where(x > 1.5, x - 1.5, 0.0), 2.0**-17),
}


def params(name: str, form: Float) -> PiecewiseParams:
    function, operand = CURVES[name]
    return PiecewiseParams(form=form, curve=FittedCurve(name, function, TOLERANCE, operand))


def operands(form: Float, count: int) -> np.ndarray:
    """Bits: special ones, of all sizes, and around 1."""
    return np.concatenate([special_bits(form), random_bits(form, count, 1), random_bits(form, count, 2, 3)])


@pytest.mark.parametrize("form", [F24, FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("name", CURVES)
def test_bound(name: str, form: Float) -> None:
    function, operand = CURVES[name]
    x = form.decode(operands(form, 20_000))
    x = x[np.isfinite(x)]
    with np.errstate(all="ignore"):
        y = function(x)
    least = 2.0 ** (1 - form.bias)
    bound = (TOLERANCE + 2.0**-form.precision * 1.001) * np.abs(y) + operand * np.abs(x)
    golden = params(name, form).golden(x)
    inside = np.abs(y) <= (2 - 2.0**-form.fraction_bits) * 2.0**form.bias
    assert (np.abs(golden - y) <= bound + least * (np.abs(y) - bound < least))[inside].all()


def test_tails_are_exact() -> None:
    x = F24.decode(operands(F24, 5000))
    positive = x[(x > 0) & np.isfinite(x)]
    np.testing.assert_array_equal(params("leaky", F24).golden(positive), positive)
    np.testing.assert_array_equal(params("leaky", FLOAT32).golden(positive), positive)
    np.testing.assert_array_equal(params("one and a half", F24).golden(x[~np.isnan(x)]), -1.5)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(params("leaky", F24).golden(special), special)
    np.testing.assert_array_equal(params("bump", F24).golden(special), [3, 3, 0, 0, np.nan])
    np.testing.assert_array_equal(params("softsign", F24).golden(special), [0, -0.0, np.nan, np.nan, np.nan])


@pytest.mark.parametrize("form", [F24, BFLOAT16, *LIMITS])
@pytest.mark.parametrize("name", CURVES)
def test_rtl_matches_golden(name: str, form: Float) -> None:
    unit, bits = params(name, form), operands(form, 40)
    assert_same_bits(
        form, run_unit(unit, {"i": bits}, 0.3), form.encode(unit.golden(form.decode(bits))), bits
    )


@pytest.mark.parametrize("name", CURVES)
def test_rows_lie_beside_one_another(name: str) -> None:
    """Bases are multiples of lengths, so that a segment is found without an addition."""
    fitted = segments(params(name, F24).curve, 21)
    rows = {row for sign in fitted.rows for halves in sign for row in halves}
    assert all(row.base % (1 << row.places) == 0 for row in rows)
    assert sum(1 << row.places for row in rows) == fitted.words.shape[1]


def test_bad_curves() -> None:
    with pytest.raises(ValueError) as caught:
        segments(FittedCurve("sqrt", np.sqrt, TOLERANCE), 21)
    assert str(caught.value) == "sqrt(-1.17549e-38) is nan; a number is needed"
    wild = FittedCurve("wild", lambda x: np.where(np.abs(x) < 8, 2 + np.sin(1e6 * x), 1.0), TOLERANCE)
    with pytest.raises(ValueError) as caught:
        segments(wild, 21)
    assert "wild needs more than 512 segments beside" in str(caught.value)


@pytest.mark.slow
def test_promises() -> None:
    """Of quadratics in F24, of lines in other formats too."""
    lines = FUNCTIONS["hardsigmoid"]
    units = [params(name, F24) for name in ("leaky", "softsign", "mish")]
    units += [lines.unit(form) for form in (F24, FLOAT32, FLOAT16, BFLOAT16)]
    check_all([(unit, None) for unit in (*units, params("leaky", FLOAT32), params("leaky", FLOAT16))])
