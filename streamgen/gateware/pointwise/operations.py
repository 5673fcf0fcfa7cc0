"""The operations that expressions are made of, by name: the unit of each, and its reference.

Results are rounded once to the format, where the function of one variable says nothing else. NaN and
infinities are those of IEEE 754, and of torch: a NaN is true, and unequal to everything.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

from streamgen.gateware.arith import (
    AddParams,
    DivideParams,
    Float,
    LogicParams,
    MaximumParams,
    MinimumParams,
    MultiplyAddParams,
    MultiplyParams,
    PredicateParams,
    RelationParams,
    SignParams,
    SubtractParams,
    UnitParams,
    WhereParams,
    WholeParams,
)
from streamgen.gateware.arith.relations import LOGIC, PREDICATES, RELATIONS
from streamgen.gateware.arith.signs import SIGNS
from streamgen.gateware.arith.whole import ROUNDINGS
from streamgen.gateware.functions import FUNCTIONS


@dataclass(frozen=True, kw_only=True, eq=False)
class Pointwise:
    """An operation on one element of each operand.

    unit: the params of its hardware, for a `form`. reference: of float arrays of one dtype, of that dtype.
    arity: the number of operands.
    """

    name: str
    unit: Callable[[Float], UnitParams]
    reference: Callable[..., ndarray]
    arity: int


def _made(kind: Any, **choice: str) -> Callable[[Float], UnitParams]:
    return lambda form: kind(form=form, **choice)


def _quiet(function: Callable[..., ndarray]) -> Callable[..., ndarray]:
    """The function, of and in the dtype of its operands, without warnings."""

    def compute(*operands: ndarray) -> ndarray:
        with np.errstate(all="ignore"):
            found: ndarray = np.asarray(function(*operands)).astype(np.result_type(*operands), copy=False)
        return found

    return compute


def _of_one(
    table: dict[str, Callable[[ndarray], ndarray]], kind: Any, field: str, prefix: str = ""
) -> dict[str, tuple[Callable[[Float], UnitParams], Callable[..., ndarray], int]]:
    return {f"{prefix}{name}": (_made(kind, **{field: name}), f, 1) for name, f in table.items()}


def _of_two(
    table: dict[str, Callable[[ndarray, ndarray], ndarray]], kind: Any, field: str
) -> dict[str, tuple[Callable[[Float], UnitParams], Callable[..., ndarray], int]]:
    return {name: (_made(kind, **{field: name}), f, 2) for name, f in table.items()}


def _where(c: ndarray, a: ndarray, b: ndarray) -> ndarray:
    return np.where(c != 0, a, b)


def _multiply_add(a: ndarray, b: ndarray, c: ndarray) -> ndarray:
    return a.astype(np.float64) * b + c  # of float32, this product is exact


_UNITS: dict[str, tuple[Callable[[Float], UnitParams], Callable[..., ndarray], int]] = {
    **{name: (function.unit, function.reference, 1) for name, function in FUNCTIONS.items()},
    **_of_one(SIGNS, SignParams, "function"),
    **_of_one(ROUNDINGS, WholeParams, "function"),
    **_of_one(PREDICATES, PredicateParams, "predicate", "is_"),
    "add": (_made(AddParams), np.add, 2),
    "subtract": (_made(SubtractParams), np.subtract, 2),
    "multiply": (_made(MultiplyParams), np.multiply, 2),
    "divide": (_made(DivideParams), np.divide, 2),
    "maximum": (_made(MaximumParams), np.maximum, 2),
    "minimum": (_made(MinimumParams), np.minimum, 2),
    **_of_two(RELATIONS, RelationParams, "relation"),
    **_of_two(LOGIC, LogicParams, "operation"),
    "multiply_add": (_made(MultiplyAddParams), _multiply_add, 3),
    "where": (_made(WhereParams), _where, 3),
}
POINTWISE: dict[str, Pointwise] = {
    name: Pointwise(name=name, unit=unit, reference=_quiet(reference), arity=arity)
    for name, (unit, reference, arity) in _UNITS.items()
}
