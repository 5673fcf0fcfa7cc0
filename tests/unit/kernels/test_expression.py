"""Expressions in one kernel: RTL equal to golden under stalls, promises measured, bits those of single
kernels."""

from typing import Any

import numpy as np
import pytest

from streamgen.gateware.arith import F24
from streamgen.gateware.pointwise import POINTWISE, Formula
from streamgen.itensor import ITensor
from streamgen.kernels.elementwise import BinaryParams, UnaryParams
from streamgen.kernels.expression import ExpressionParams
from streamgen.testing.bench import Stalls
from streamgen.testing.kernel import check_golden, check_promises
from streamgen.testing.synthesis import check_all
from tests.unit.kernels.test_elementwise import columns, rows, values

FORMULAS = {
    "swish": Formula(
        values=1, constants=(3.0,), steps=(("add", (0, -1)), ("sigmoid", (1,)), ("multiply", (0, 2)))
    ),
    "choice": Formula(
        values=3, constants=(-np.inf,), steps=(("gt", (0, 1)), ("subtract", (2, 0)), ("where", (3, 4, -1)))
    ),
    "hypotenuse": Formula(
        values=2,
        steps=(("multiply", (0, 0)), ("multiply", (1, 1)), ("add", (2, 3)), ("sqrt", (4,))),
    ),
    "one step": Formula(values=1, constants=(0.5,), steps=(("maximum", (-1, 0)),)),
    "many": Formula(
        values=2,
        constants=(1.0, 2.5),
        steps=(
            ("log1p", (0,)),
            ("divide", (2, 1)),
            ("floor", (3,)),
            ("multiply_add", (4, -2, 1)),
            ("is_finite", (5,)),
            ("eq", (4, 3)),
            ("or", (6, 7)),
            ("where", (8, 5, -1)),
            ("sin", (9,)),
        ),
    ),
}


def inputs(params: ExpressionParams, itensor: ITensor, seed: int) -> dict[str, np.ndarray]:
    return {port: values(itensor.shape, seed + k) for k, port in enumerate(params.operands)}


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("name", FORMULAS)
def test_matches_golden(name: str, lanes: int) -> None:
    """With stalls on all ports, extreme values, several descriptors back to back."""
    params = ExpressionParams(formula=FORMULAS[name], lanes=lanes, max_tokens=100)
    orders = [rows(24, lanes), columns(4, lanes), columns(40, lanes), rows(1, lanes, row=1)]
    cases = [({"itensor": order}, inputs(params, order, 10 * k)) for k, order in enumerate(orders)]
    for sources, sinks in [(0.0, 0.0), (0.4, 0.4)] if lanes == 1 else [(0.3, 0.6)]:
        check_golden(params, cases, Stalls(seed=lanes, sources=sources, sinks=sinks))


@pytest.mark.parametrize("tokens", [1, 64])
@pytest.mark.parametrize("name", FORMULAS)
def test_cost_and_curves_are_measured(name: str, tokens: int) -> None:
    params = ExpressionParams(formula=FORMULAS[name], lanes=2, max_tokens=64)
    itensor = rows(tokens, 2, row=1)
    check_promises(params, {"itensor": itensor}, inputs(params, itensor, 3))


def test_one_row_meets_many() -> None:
    order = rows(12, 2)
    row = ITensor((1, 2), "f24", (3, 4), (1, 2), ((), (1,)))
    params = ExpressionParams(formula=FORMULAS["choice"], lanes=2, max_tokens=12)
    arrays = {"i_a": values((3, 8), 1), "i_b": values((1, 8), 2), "i_c": values((3, 8), 3)}
    bounds = {"itensor": order, "b": row}
    check_golden(params, [(bounds, arrays)] * 2, Stalls(seed=3, sources=0.3, sinks=0.3))
    a, b, c = (F24.round(arrays[f"i_{n}"]) for n in "abc")
    with np.errstate(invalid="ignore"):
        expected = np.where(a > b, F24.round(c - a), -np.inf)
    np.testing.assert_array_equal(params.golden(bounds, arrays)["o"], expected)


def test_bits_are_those_of_kernels_one_after_another() -> None:
    order = rows(100, 1)
    bounds = {"itensor": order}
    params = ExpressionParams(formula=FORMULAS["swish"], lanes=1, max_tokens=100)
    x = values(order.shape, 4)
    three = np.full_like(x, 3.0)

    def binary(operation: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        kernel = BinaryParams(operation=operation, lanes=1, max_tokens=100)
        return kernel.golden(bounds, {"i_a": a, "i_b": b})["o"]

    gate = UnaryParams(function="sigmoid", lanes=1, max_tokens=100)
    gated = gate.golden(bounds, {"i": binary("add", x, three)})["o"]
    np.testing.assert_array_equal(params.golden(bounds, {"i_a": x})["o"], binary("multiply", x, gated))


@pytest.mark.parametrize("name", POINTWISE)
def test_references_are_near_golden(name: str) -> None:
    """Of every operation, with the dtype of its operands."""
    operation = POINTWISE[name]
    rng = np.random.default_rng(7)
    operands = [F24.round(rng.normal(size=400) * 2) for _ in range(operation.arity)]
    operands[-1][:200] = operands[0][:200]
    found, exact = operation.reference(*operands), operation.unit(F24).golden(*operands)
    np.testing.assert_allclose(exact, found, rtol=2.0**-12, atol=2.0**-12)
    assert operation.reference(*(x.astype(np.float32) for x in operands)).dtype == np.float32
    assert len(operation.unit(F24).operands) == operation.arity


BAD: list[tuple[dict[str, Any], str]] = [
    ({"steps": ()}, "an expression has no steps; at least 1 is needed"),
    ({"steps": (("neg", (0,)),)}, "there is no pointwise operation 'neg'; there are relu, sigmoid"),
    ({"steps": (("add", (0, 1)),)}, "add takes (0, 1); 2 numbers from 0 to 0 are needed"),
    ({"steps": (("add", (0,)),)}, "add takes (0,); 2 numbers from 0 to 0 are needed"),
    ({"constants": (1.0,), "steps": (("relu", (-1,)),)}, "relu takes constants alone"),
    ({"constants": (1.0,), "steps": (("relu", (0,)),)}, "nothing takes -1 of the expression"),
    ({"steps": (("relu", (0,)), ("exp", (0,)))}, "nothing takes 1 of the expression"),
    (
        {"constants": (np.nan,), "steps": (("add", (0, -1)),)},
        "a constant of an expression is nan; NaN and -0",
    ),
    ({"values": 0, "steps": ()}, "an expression has 0 values; 1 to 26 are allowed"),
]


@pytest.mark.parametrize(("changed", "message"), BAD)
def test_bad_formulas(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        Formula(**{"values": 1, **changed})
    assert str(raised.value).startswith(message)


def test_bad_bounds() -> None:
    params = ExpressionParams(formula=FORMULAS["choice"], lanes=4, max_tokens=8)
    with pytest.raises(ValueError, match=r"^c must have as many tokens as itensor, 8; it has 4$"):
        params.inputs({"itensor": rows(8, 4), "c": rows(4, 4)})


@pytest.mark.slow
def test_promises() -> None:
    order = rows(4, 2)
    cases = [
        (ExpressionParams(formula=f, lanes=2, max_tokens=50), {"itensor": order}) for f in FORMULAS.values()
    ]
    check_all(cases, levels=9)  # synthesis moves logic from unit to unit
