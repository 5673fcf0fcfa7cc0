"""Relations of two values of a format, logic of truth values, and choices by them.

    RelationParams     1 where a = b, a ≠ b, a < b, a ≤ b, a > b or a ≥ b, else 0
    LogicParams        1 where a and b, a or b, or one of them alone is true, else 0
    PredicateParams    1 where i is 0, NaN, infinite, finite or has a sign, else 0
    WhereParams        a where c is true, else b

A truth value is a number: 0 of either sign is false, all others are true, NaN too, as in torch. A NaN is
unordered: it is unequal to everything, and no other relation holds for it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from amaranth import Cat, Const, Module, Mux, Value
from numpy import ndarray

from streamgen.base.wording import alternatives
from streamgen.contract.cost import Resources
from streamgen.gateware.arith.compare import keys
from streamgen.gateware.arith.format import Float
from streamgen.gateware.arith.pipeline import Pipeline, operand
from streamgen.gateware.arith.unit import UnitParams

RELATIONS: dict[str, Callable[[ndarray, ndarray], ndarray]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
LOGIC: dict[str, Callable[[ndarray, ndarray], ndarray]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}
PREDICATES: dict[str, Callable[[ndarray], ndarray]] = {
    "not": lambda x: x == 0,
    "nan": np.isnan,
    "infinite": np.isinf,
    "finite": np.isfinite,
    "negative": np.signbit,
}


def require(what: str, name: str, known: dict[str, object]) -> None:
    """ValueError unless a name is known."""
    if name not in known:
        raise ValueError(f"{what} is {name!r}; it must be {alternatives(known)}")


def truth(form: Float, true: Value) -> Value:
    """The bits of 1 or 0."""
    return true.replicate(form.bits) & Const(form.bias << form.fraction_bits, form.bits)


@dataclass(frozen=True, kw_only=True)
class RelationParams(UnitParams):
    """A relation of RELATIONS in `form`."""

    form: Float
    relation: str
    operands = ("a", "b")
    latency = 2

    def __post_init__(self) -> None:
        require("relation", self.relation, {**RELATIONS})

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth."""
        bits, ordered = self.form.bits, self.relation not in ("eq", "ne")
        return Resources(lut=bits * (34 if ordered else 30) // 10, ff=2 * bits + 2)

    def golden(self, a: ndarray, b: ndarray) -> ndarray:
        """float64 array of ones and zeros, of values of the format."""
        return RELATIONS[self.relation](np.asarray(a, np.float64), np.asarray(b, np.float64)).astype(float)

    def stages(self, m: Module, pipe: Pipeline, a: Value, b: Value) -> Value:
        s = keys(pipe, self.form, a, b, signed_zero=False)
        if self.relation in ("eq", "ne"):
            holds = (s.a == s.b) & ~s.nan
        else:
            first, second = (s.a, s.b) if self.relation in ("lt", "ge") else (s.b, s.a)
            holds = ((first < second) ^ (self.relation in ("ge", "le"))) & ~s.nan
        s = pipe.stage(holds=~holds if self.relation == "ne" else holds)
        return truth(self.form, s.holds)


@dataclass(frozen=True, kw_only=True)
class LogicParams(UnitParams):
    """A logical operation of LOGIC on two values in `form`."""

    form: Float
    operation: str
    operands = ("a", "b")
    latency = 1

    def __post_init__(self) -> None:
        require("operation", self.operation, {**LOGIC})

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth."""
        return Resources(lut=self.form.exponent_bits // 2 + 1, ff=1)

    def golden(self, a: ndarray, b: ndarray) -> ndarray:
        """float64 array of ones and zeros, of values of the format."""
        return LOGIC[self.operation](np.asarray(a, np.float64), np.asarray(b, np.float64)).astype(float)

    def stages(self, m: Module, pipe: Pipeline, a: Value, b: Value) -> Value:
        first, second = (~operand(self.form, bits).zero for bits in (a, b))
        true = {"and": first & second, "or": first | second, "xor": first ^ second}[self.operation]
        return truth(self.form, pipe.stage(true=true).true)


@dataclass(frozen=True, kw_only=True)
class PredicateParams(UnitParams):
    """A predicate of PREDICATES of a value in `form`. NaN has no sign."""

    form: Float
    predicate: str
    latency = 1

    def __post_init__(self) -> None:
        require("predicate", self.predicate, {**PREDICATES})

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth."""
        return Resources(lut=self.form.bits // 5 + 1, ff=1)

    def golden(self, i: ndarray) -> ndarray:
        """float64 array of ones and zeros, of values of the format."""
        x = np.asarray(i, np.float64)
        return np.where(np.isnan(x), self.predicate == "nan", PREDICATES[self.predicate](x)).astype(float)

    def stages(self, m: Module, pipe: Pipeline, i: Value) -> Value:
        x = operand(self.form, i)
        true = {
            "not": x.zero,
            "nan": x.nan,
            "infinite": x.infinite,
            "finite": ~(x.nan | x.infinite),
            "negative": x.sign & ~x.nan,
        }[self.predicate]
        return truth(self.form, pipe.stage(true=true).true)


@dataclass(frozen=True, kw_only=True)
class WhereParams(UnitParams):
    """a where c is true, else b, in `form`."""

    form: Float
    operands = ("c", "a", "b")
    latency = 2

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth."""
        return Resources(lut=2 * self.form.bits + 8, ff=2 * self.form.bits)

    def golden(self, c: ndarray, a: ndarray, b: ndarray) -> ndarray:
        """float64 array of the chosen values of the format."""
        return np.where(np.asarray(c) != 0, np.asarray(a, np.float64), np.asarray(b, np.float64))

    def stages(self, m: Module, pipe: Pipeline, c: Value, a: Value, b: Value) -> Value:
        s = pipe.stage(bits=Mux(operand(self.form, c).zero, b, a))
        return pipe.stage(bits=canonical(self.form, s.bits)).bits


def canonical(form: Float, bits: Value) -> Value:
    """The bits of the same value: those of a zero for subnormals, and the one NaN."""
    x = operand(form, bits)
    kept = Mux(x.zero, 0, Cat(x.fraction, x.exponent))[: form.bits - 1]
    return Mux(x.nan, form.nan, Cat(kept, x.sign))
