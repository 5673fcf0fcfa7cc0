"""Formulas put together: equal parts are one, constants are computed, what nothing reads is left out."""

import numpy as np
import pytest

from streamgen.gateware.arith import F24
from streamgen.gateware.pointwise import Formula, FormulaBuilder


def test_equal_parts_are_one() -> None:
    f = FormulaBuilder()
    x = f.value("x")
    assert x == f.value("x") != f.value("y")
    total = f.apply("add", f.apply("exp", x), f.apply("exp", f.value("x")))
    formula, keys = f.formula(total)  # type: ignore[misc]
    assert formula == Formula(values=1, steps=(("exp", (0,)), ("add", (1, 1))))
    assert keys == ["x"]
    assert str(formula) == "t0 = exp(a); add(t0, t0)"


def test_constants_are_computed() -> None:
    f = FormulaBuilder()
    x, two = f.value("x"), f.constant(2.0)
    four = f.apply("multiply", two, two)
    assert f.number(four) == 4 and f.number(x) is None
    assert f.formula(four) == 4
    assert f.apply("where", f.apply("gt", four, two), x, two) == x
    assert f.apply("where", f.constant(0.0), x, two) == two
    formula, _ = f.formula(f.apply("subtract", x, four))  # type: ignore[misc]
    assert formula == Formula(values=1, constants=(4.0,), steps=(("subtract", (0, -1)),))


def test_what_nothing_reads_is_left_out() -> None:
    f = FormulaBuilder()
    x, y = f.value("x"), f.value("y")
    f.apply("exp", x)
    formula, keys = f.formula(f.apply("sin", y))  # type: ignore[misc]
    assert (formula, keys) == (Formula(values=1, steps=(("sin", (0,)),)), ["y"])


def test_a_value_alone_is_a_product_with_one() -> None:
    f = FormulaBuilder()
    formula, _ = f.formula(f.value("x"))  # type: ignore[misc]
    assert formula == Formula(values=1, constants=(1.0,), steps=(("multiply", (0, -1)),))


def test_inserted_formulas_keep_their_bits() -> None:
    inner = Formula(values=2, constants=(0.5,), steps=(("multiply", (0, -1)), ("add", (2, 1))))
    f = FormulaBuilder()
    both = f.insert(inner, [f.value("b"), f.insert(inner, [f.value("a"), f.value("b")])])
    formula, keys = f.formula(both)  # type: ignore[misc]
    rng = np.random.default_rng(1)
    given = {key: F24.round(rng.normal(size=50)) for key in "ab"}
    unit = inner.unit(F24)
    expected = unit.golden(given["b"], unit.golden(given["a"], given["b"]))
    np.testing.assert_array_equal(formula.unit(F24).golden(*(given[str(key)] for key in keys)), expected)
    np.testing.assert_allclose(formula.reference(*(given[str(key)] for key in keys)), expected, atol=1e-3)


def test_references_keep_the_floats_of_their_operands() -> None:
    formula = Formula(values=1, constants=(0.1,), steps=(("add", (0, -1)), ("gt", (1, 0))))
    for dtype in (np.float32, np.float64):
        found = formula.reference(np.ones(3, dtype))
        assert found.dtype == dtype and found.tolist() == [1, 1, 1]


@pytest.mark.parametrize("number", [np.nan, -0.0])
def test_numbers_that_are_no_constants(number: float) -> None:
    with pytest.raises(ValueError, match="NaN and -0 are not allowed"):
        Formula(values=1, constants=(number,), steps=(("add", (0, -1)),))
