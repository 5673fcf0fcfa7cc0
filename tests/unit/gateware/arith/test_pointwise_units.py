"""Relations, logic, choices, signs, whole numbers, networks of units: golden exact, RTL equal to golden."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from sim.unit_simulator import UnitSimulator
from streamgen.gateware.arith import (
    F24,
    FLOAT16,
    AddParams,
    Composed,
    DivideParams,
    ExpParams,
    Float,
    LogicParams,
    MultiplyParams,
    NetworkParams,
    PredicateParams,
    RelationParams,
    SignParams,
    SubtractParams,
    WhereParams,
    WholeParams,
)
from streamgen.gateware.arith.relations import LOGIC, PREDICATES, RELATIONS
from streamgen.gateware.arith.signs import SIGNS
from streamgen.gateware.arith.whole import ROUNDINGS
from streamgen.testing.synthesis import check_all
from tests.shared.campaigns import sampled
from tests.unit.gateware.arith.arith_unit import (
    LIMITS,
    assert_same_bits,
    pairs,
    random_bits,
    run_unit,
    special_bits,
)


def _made(kind: Any, field: str, name: str) -> Callable[[Float], Any]:
    return lambda form: kind(form=form, **{field: name})


def waiting(form: Float) -> NetworkParams:
    """exp(i) + (exp(i) · a - 2), with values that wait for others."""
    c = Composed(form, ("i", "a"))
    power = c.apply(ExpParams(form=form), 0)
    product = c.apply(MultiplyParams(form=form), power, 1)
    less = c.apply(SubtractParams(form=form), product, c.constant(2.0))
    total = c.apply(AddParams(form=form), power, less)
    c.apply(WhereParams(form=form), 1, total, 0)
    return c.params


UNITS: dict[str, Callable[[Float], Any]] = {
    **{name: _made(RelationParams, "relation", name) for name in RELATIONS},
    **{name: _made(LogicParams, "operation", name) for name in LOGIC},
    **{name: _made(PredicateParams, "predicate", name) for name in PREDICATES},
    **{name: _made(SignParams, "function", name) for name in SIGNS},
    **{name: _made(WholeParams, "function", name) for name in ROUNDINGS},
    "where": lambda form: WhereParams(form=form),
    "subtract": lambda form: SubtractParams(form=form),
    "network": waiting,
}
TORCH: dict[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(torch, name) for name in (*RELATIONS, "sign", *ROUNDINGS, "where", "subtract")},
    **{name: getattr(torch, f"logical_{name}") for name in (*LOGIC, "not")},
    **{"negate": torch.neg, "absolute": torch.abs, "nan": torch.isnan, "infinite": torch.isinf},
    **{"finite": torch.isfinite, "negative": lambda x: torch.signbit(x) & ~x.isnan()},
}


def operands(form: Float, unit: Any, count: int) -> dict[str, np.ndarray]:
    """Bits: special values with each other, patterns of all kinds, near 1, and halves."""
    halves = form.encode(np.arange(-20, 21) / 4)
    a = np.concatenate([random_bits(form, count, 1), random_bits(form, count, 2, 3), halves])
    b = np.concatenate([random_bits(form, count, 3), random_bits(form, count, 4, 3), halves[::-1]])
    special = pairs(special_bits(form)[::2], special_bits(form)[::2])
    columns = [np.concatenate([special[0], a, a]), np.concatenate([special[1], b, a])]
    rng = np.random.default_rng(5)
    columns.append(rng.permutation(columns[0]))
    return dict(zip(unit.operands, columns, strict=False))


def check(unit: Any, run: Any, count: int) -> None:
    form, given = unit.form, operands(unit.form, unit, count)
    expected = form.encode(unit.golden(*map(form.decode, given.values())))
    assert_same_bits(form, run(given), expected, *given.values())


@pytest.mark.parametrize("form", [F24, *LIMITS])
@pytest.mark.parametrize("name", UNITS)
def test_rtl_matches_golden(name: str, form: Float) -> None:
    unit = UNITS[name](form)
    check(unit, lambda given: run_unit(unit, given, 0.3), 20 if form == F24 else 10)


@pytest.mark.parametrize("form", [F24, Float(3, 2), FLOAT16])
@pytest.mark.parametrize("name", TORCH)
def test_golden_is_that_of_torch(name: str, form: Float) -> None:
    """With infinities, NaN and zeros of both signs; a format may lack the whole number above its greatest."""
    unit = UNITS[name](form)
    given = [torch.from_numpy(form.decode(bits)) for bits in operands(form, unit, 2000).values()]
    first, *others = given
    expected = TORCH[name](first.bool() if name == "where" else first, *others).numpy()
    found = unit.golden(*(x.numpy() for x in given))
    np.testing.assert_array_equal(found, form.round(expected))
    known = ~np.isnan(found)
    np.testing.assert_array_equal(np.signbit(found)[known], np.signbit(expected)[known])


def test_parts_wait_for_each_other() -> None:
    network = waiting(F24)
    exp, multiply, add = ExpParams(form=F24).latency, MultiplyParams(form=F24).latency, 7
    end = exp + multiply + 2 * add
    assert network.times == (0, 0, exp, exp + multiply, exp + multiply + add, end, end + 2)
    assert network.waits() == {0: (end,), 1: (exp, end), 2: (multiply + add,), 3: (), 4: (), 5: ()}
    assert network.latency == end + 2


def test_bad_networks() -> None:
    add = AddParams(form=F24)
    for parts, message in (
        ((), "there are no parts; at least 1 is needed"),
        (((add, (0, 1)),), "part 0 takes (0, 1); 2 of range(-1, 1) are needed"),
        (((add, (0,)),), "part 0 takes (0,); 2 of range(-1, 1) are needed"),
        (((add, (-1, -1)),), "part 0 takes constants alone"),
    ):
        with pytest.raises(ValueError) as raised:
            NetworkParams(form=F24, operands=("i",), constants=(1.0,), parts=parts)
        assert str(raised.value) == message
    with pytest.raises(ValueError) as raised:
        RelationParams(form=F24, relation="like")
    assert str(raised.value) == "relation is 'like'; it must be 'eq', 'ne', 'lt', 'le', 'gt' or 'ge'"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form"),
    sampled(
        product(UNITS, (F24, FLOAT16)),
        [(name, F24) for name in ("ge", "xor", "absolute", "round", "where", "network")],
    ),
)
def test_sweep(name: str, form: Float) -> None:
    unit = UNITS[name](form)
    check(unit, partial(UnitSimulator(unit).run, stalls=0.1), 200_000)


@pytest.mark.slow
def test_promises() -> None:
    units = [make(F24) for make in UNITS.values()]
    check_all([(unit, None) for unit in [*units, DivideParams(form=F24)]])
