"""Units made of units: what is computed between two streams without a FIFO in the middle.

    GatedParams        f(a)·b            f of one operand: SiLU, GELU; rounded after f and after the product
    LeakyParams        a if a > 0, else a·b; rounded after the product
    ProductSumParams   a·b + c·d         each product rounded, then the sum
    SoftCapParams      b·tanh(a·c)       c = 1/b given beside b; rounded after each of the three

The results are those of the units one after another, bit for bit.
"""

from dataclasses import dataclass

import numpy as np
from amaranth import Cat, Module, Mux, Value
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.add import AddParams
from streamgen.gateware.arith.format import Float
from streamgen.gateware.arith.multiply import MultiplyParams
from streamgen.gateware.arith.pipeline import Pipeline, operand
from streamgen.gateware.arith.remembered import remembered
from streamgen.gateware.arith.saturating import SaturatingParams
from streamgen.gateware.arith.unit import UnitParams
from streamgen.gateware.rtl import Shared


def _delay(pipe: Pipeline, bits: Value, stages: int) -> Value:
    """`bits`, so many enabled cycles later."""
    for _ in range(stages):
        bits = pipe.stage(delayed=bits).delayed
    return bits


def _delay_resources(bits: int) -> Resources:
    """A chain of 3 to 32 registers: a shift register of one LUT for each bit."""
    return Resources(lut=bits, ff=0)


@dataclass(frozen=True, kw_only=True)
class GatedParams(UnitParams):
    """function(a)·b; `function` are the params of a unit of one operand."""

    function: UnitParams
    operands = ("a", "b")

    @property
    def form(self) -> Float:
        """Of operands and result."""
        return self.function.form

    @property
    def multiply(self) -> MultiplyParams:
        """The product."""
        return MultiplyParams(form=self.form)

    @property
    def latency(self) -> int:
        return self.function.latency + self.multiply.latency

    @property
    def resources(self) -> Resources:
        """The two units, and b that waits."""
        waiting = _delay_resources(self.function.form.bits)
        return self.function.resources + self.multiply.resources + waiting

    def golden(self, a: ndarray, b: ndarray) -> ndarray:
        """float64 array of the result for values of the format."""
        return self.multiply.golden(remembered(self.function)(a), b)

    def stages(self, m: Module, pipe: Pipeline, a: Value, b: Value) -> Value:
        m.submodules.function = function = Shared(self.function)
        m.submodules.multiply = multiply = Shared(self.multiply)
        m.d.comb += [
            function.enable.eq(pipe.enable),
            function.i.eq(a),
            multiply.enable.eq(pipe.enable),
            multiply.a.eq(function.o),
            multiply.b.eq(_delay(pipe, b, self.function.latency)),
        ]
        return multiply.o


@dataclass(frozen=True, kw_only=True)
class LeakyParams(UnitParams):
    """a where it is above 0, else a·b, in `form`."""

    form: Float
    operands = ("a", "b")

    @property
    def multiply(self) -> MultiplyParams:
        """The product."""
        return MultiplyParams(form=self.form)

    @property
    def latency(self) -> int:
        return self.multiply.latency + 1

    @property
    def resources(self) -> Resources:
        """The product, a that waits for it, and the choice."""
        return self.multiply.resources + 2 * _delay_resources(self.form.bits)

    def golden(self, a: ndarray, b: ndarray) -> ndarray:
        """float64 array of the result for values of the format."""
        a = np.asarray(a, np.float64)
        return np.where(a > 0, a, self.multiply.golden(a, b))

    def stages(self, m: Module, pipe: Pipeline, a: Value, b: Value) -> Value:
        m.submodules.multiply = multiply = Shared(self.multiply)
        m.d.comb += [multiply.enable.eq(pipe.enable), multiply.a.eq(a), multiply.b.eq(b)]
        parts = operand(self.form, a)
        above = ~(parts.sign | parts.zero | parts.nan)
        waiting = _delay(pipe, Cat(a, above), self.multiply.latency)
        return pipe.stage(bits=Mux(waiting[-1], waiting[:-1], multiply.o)).bits


@dataclass(frozen=True, kw_only=True)
class ProductSumParams(UnitParams):
    """a·b + c·d in `form`."""

    form: Float
    operands = ("a", "b", "c", "d")

    @property
    def multiply(self) -> MultiplyParams:
        """Either product."""
        return MultiplyParams(form=self.form)

    @property
    def add(self) -> AddParams:
        """The sum."""
        return AddParams(form=self.form)

    @property
    def latency(self) -> int:
        return self.multiply.latency + self.add.latency

    @property
    def resources(self) -> Resources:
        """The three units."""
        return 2 * self.multiply.resources + self.add.resources

    def golden(self, a: ndarray, b: ndarray, c: ndarray, d: ndarray) -> ndarray:
        """float64 array of the result for values of the format."""
        return self.add.golden(self.multiply.golden(a, b), self.multiply.golden(c, d))

    def stages(self, m: Module, pipe: Pipeline, a: Value, b: Value, c: Value, d: Value) -> Value:
        m.submodules.first = first = Shared(self.multiply)
        m.submodules.second = second = Shared(self.multiply)
        m.submodules.add = add = Shared(self.add)
        m.d.comb += [
            *(unit.enable.eq(pipe.enable) for unit in (first, second, add)),
            first.a.eq(a),
            first.b.eq(b),
            second.a.eq(c),
            second.b.eq(d),
            add.a.eq(first.o),
            add.b.eq(second.o),
        ]
        return add.o


@dataclass(frozen=True, kw_only=True)
class SoftCapParams(UnitParams):
    """b·tanh(a·c) in `form`: a capped softly to ±b when c is 1/b."""

    form: Float
    operands = ("a", "b", "c")

    @property
    def multiply(self) -> MultiplyParams:
        """Either product."""
        return MultiplyParams(form=self.form)

    @property
    def tanh(self) -> SaturatingParams:
        """The function between them."""
        return SaturatingParams(form=self.form, function="tanh")

    @property
    def latency(self) -> int:
        return 2 * self.multiply.latency + self.tanh.latency

    @property
    def resources(self) -> Resources:
        """The three units, and b that waits."""
        return 2 * self.multiply.resources + self.tanh.resources + _delay_resources(self.form.bits)

    def golden(self, a: ndarray, b: ndarray, c: ndarray) -> ndarray:
        """float64 array of the result for values of the format."""
        return self.multiply.golden(self.tanh.golden(self.multiply.golden(a, c)), b)

    def stages(self, m: Module, pipe: Pipeline, a: Value, b: Value, c: Value) -> Value:
        params = self
        m.submodules.down = down = Shared(params.multiply)
        m.submodules.tanh = tanh = Shared(params.tanh)
        m.submodules.up = up = Shared(params.multiply)
        m.d.comb += [
            *(unit.enable.eq(pipe.enable) for unit in (down, tanh, up)),
            down.a.eq(a),
            down.b.eq(c),
            tanh.i.eq(down.o),
            up.a.eq(tanh.o),
            up.b.eq(_delay(pipe, b, params.multiply.latency + params.tanh.latency)),
        ]
        return up.o
