"""Units made of units: what is computed between two streams without a FIFO in the middle.

    GatedParams        f(a)·b            f of one operand: SiLU, GELU; rounded after f and after the product
    ProductSumParams   a·b + c·d         each product rounded, then the sum
    SoftCapParams      b·tanh(a·c)       c = 1/b given beside b; rounded after each of the three

The results are those of the units one after another, bit for bit.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Module, Value, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.add import AddParams
from streamgen.gateware.arith.format import Float
from streamgen.gateware.arith.multiply import MultiplyParams
from streamgen.gateware.arith.pipeline import Pipeline
from streamgen.gateware.arith.remembered import UnitOfOne, remembered
from streamgen.gateware.arith.saturating import SaturatingParams
from streamgen.gateware.rtl import Shared


def _delay(m: Module, enable: Value, bits: Value, stages: int) -> Value:
    """`bits`, so many enabled cycles later."""
    pipe = Pipeline(m, enable)
    for _ in range(stages):
        bits = pipe.stage(delayed=bits).delayed
    return bits


def _delay_resources(bits: int) -> Resources:
    """A chain of 3 to 32 registers: a shift register of one LUT for each bit."""
    return Resources(lut=bits, ff=0)


@dataclass(frozen=True, kw_only=True)
class GatedParams:
    """function(a)·b; `function` are the params of a unit of one operand."""

    function: UnitOfOne

    @property
    def multiply(self) -> MultiplyParams:
        """The product."""
        return MultiplyParams(form=self.function.form)

    @property
    def latency(self) -> int:
        """Stages, hence enabled cycles from operands to result."""
        return self.function.latency + self.multiply.latency

    @property
    def resources(self) -> Resources:
        """The two units, and b that waits."""
        waiting = _delay_resources(self.function.form.bits)
        return self.function.resources + self.multiply.resources + waiting

    def golden(self, a: ndarray, b: ndarray) -> ndarray:
        """float64 array of the result for values of the format."""
        return self.multiply.golden(remembered(self.function)(a), b)

    def build(self) -> "Gated":
        return Gated(self)


class Gated(wiring.Component):
    """a, b: the bits of the operands; o: of the result, `latency` enabled cycles later."""

    def __init__(self, params: GatedParams) -> None:
        bits = unsigned(params.function.form.bits)
        super().__init__({"enable": In(1), "a": In(bits), "b": In(bits), "o": Out(bits)})
        self._params = params

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.function = function = Shared(self._params.function)
        m.submodules.multiply = multiply = Shared(self._params.multiply)
        m.d.comb += [
            function.enable.eq(self.enable),
            function.i.eq(self.a),
            multiply.enable.eq(self.enable),
            multiply.a.eq(function.o),
            multiply.b.eq(_delay(m, self.enable, self.b, self._params.function.latency)),
            self.o.eq(multiply.o),
        ]
        return m


@dataclass(frozen=True, kw_only=True)
class ProductSumParams:
    """a·b + c·d in `form`."""

    form: Float

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
        """Stages, hence enabled cycles from operands to result."""
        return self.multiply.latency + self.add.latency

    @property
    def resources(self) -> Resources:
        """The three units."""
        return 2 * self.multiply.resources + self.add.resources

    def golden(self, a: ndarray, b: ndarray, c: ndarray, d: ndarray) -> ndarray:
        """float64 array of the result for values of the format."""
        return self.add.golden(self.multiply.golden(a, b), self.multiply.golden(c, d))

    def build(self) -> "ProductSum":
        return ProductSum(self)


class ProductSum(wiring.Component):
    """a, b, c, d: the bits of the operands; o: of the result, `latency` enabled cycles later."""

    def __init__(self, params: ProductSumParams) -> None:
        bits = unsigned(params.form.bits)
        operands = {name: In(bits) for name in ("a", "b", "c", "d")}
        super().__init__({"enable": In(1), **operands, "o": Out(bits)})
        self._params = params

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.first = first = Shared(self._params.multiply)
        m.submodules.second = second = Shared(self._params.multiply)
        m.submodules.add = add = Shared(self._params.add)
        m.d.comb += [
            *(unit.enable.eq(self.enable) for unit in (first, second, add)),
            first.a.eq(self.a),
            first.b.eq(self.b),
            second.a.eq(self.c),
            second.b.eq(self.d),
            add.a.eq(first.o),
            add.b.eq(second.o),
            self.o.eq(add.o),
        ]
        return m


@dataclass(frozen=True, kw_only=True)
class SoftCapParams:
    """b·tanh(a·c) in `form`: a capped softly to ±b when c is 1/b."""

    form: Float

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
        """Stages, hence enabled cycles from operands to result."""
        return 2 * self.multiply.latency + self.tanh.latency

    @property
    def resources(self) -> Resources:
        """The three units, and b that waits."""
        return 2 * self.multiply.resources + self.tanh.resources + _delay_resources(self.form.bits)

    def golden(self, a: ndarray, b: ndarray, c: ndarray) -> ndarray:
        """float64 array of the result for values of the format."""
        return self.multiply.golden(self.tanh.golden(self.multiply.golden(a, c)), b)

    def build(self) -> "SoftCap":
        return SoftCap(self)


class SoftCap(wiring.Component):
    """a, b, c: the bits of the operands; o: of the result, `latency` enabled cycles later."""

    def __init__(self, params: SoftCapParams) -> None:
        bits = unsigned(params.form.bits)
        super().__init__({"enable": In(1), "a": In(bits), "b": In(bits), "c": In(bits), "o": Out(bits)})
        self._params = params

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        params = self._params
        m.submodules.down = down = Shared(params.multiply)
        m.submodules.tanh = tanh = Shared(params.tanh)
        m.submodules.up = up = Shared(params.multiply)
        m.d.comb += [
            *(unit.enable.eq(self.enable) for unit in (down, tanh, up)),
            down.a.eq(self.a),
            down.b.eq(self.c),
            tanh.i.eq(down.o),
            up.a.eq(tanh.o),
            up.b.eq(_delay(m, self.enable, self.b, params.multiply.latency + params.tanh.latency)),
            self.o.eq(up.o),
        ]
        return m
