"""Whole numbers beside a value of a format: below, above, towards zero, and the nearest, ties to even.

Stages: which fraction bits lie below 1; whether they raise the whole part; the whole part, raised, in which
a carry runs into the exponent. Values that are whole, infinities and NaN pass. A result has the sign of the
value, a zero too.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from amaranth import Cat, Const, Module, Mux, Value
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.format import Float
from streamgen.gateware.arith.pipeline import Pipeline, operand
from streamgen.gateware.arith.relations import require
from streamgen.gateware.arith.unit import UnitParams

ROUNDINGS: dict[str, Callable[[ndarray], ndarray]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
}
"""The functions by name, of a float array."""


@dataclass(frozen=True, kw_only=True)
class WholeParams(UnitParams):
    """A function of ROUNDINGS in `form`."""

    form: Float
    function: str
    latency = 3

    def __post_init__(self) -> None:
        require("function", self.function, {**ROUNDINGS})

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth."""
        p, e = self.form.precision, self.form.exponent_bits
        more = {"trunc": -5 * p // 2, "round": 2 * p}.get(self.function, 0)
        return Resources(lut=4 * p + 2 * e + 14 + more, ff=5 * p + 3 * e + 4)

    def golden(self, i: ndarray) -> ndarray:
        """float64 array of whole numbers of the format; infinite where it has none."""
        return self.form.round(ROUNDINGS[self.function](np.asarray(i, np.float64)))

    def stages(self, m: Module, pipe: Pipeline, i: Value) -> Value:
        form, width = self.form, self.form.fraction_bits
        x = operand(form, i)
        distance = x.exponent - form.bias  # not negative where x is 1 or more
        places = width.bit_length()
        far = distance[places : form.exponent_bits].any() if places < form.exponent_bits else Const(0, 1)
        below = Mux(far, 0, Const((1 << width) - 1, width) >> distance[:places])
        s = pipe.stage(
            x=i,
            below=below,
            small=x.exponent < form.bias,
            half=x.exponent == form.bias - 1,
            zero=x.zero,
            nan=x.nan,
        )

        x = operand(form, s.x)
        lost = x.fraction & s.below
        guard = (lost & ~(s.below >> 1)).any()
        rest = (lost & (s.below >> 1)).any()
        unit = Cat(Const(1, 1), s.below) & ~Cat(s.below, Const(0, 1))  # the bit of 1 in the significand
        odd = (Cat(x.fraction, Const(1, 1)) & unit).any()
        inside = Mux(s.small, ~s.zero, lost.any())
        nearest = Mux(s.small, s.half & x.fraction.any(), guard & (rest | odd))
        up = {
            "floor": inside & x.sign,
            "ceil": inside & ~x.sign,
            "trunc": Const(0, 1),
            "round": nearest,
        }[self.function]
        s = pipe.stage(
            kept=Cat(x.fraction & ~s.below, x.exponent),
            step=(unit & up.replicate(width + 1)),
            small=s.small,
            up=up,
            sign=x.sign,
            nan=s.nan,
        )
        whole = (s.kept + s.step)[: form.bits - 1]
        one = s.up.replicate(form.bits - 1) & Const(form.bias << width, form.bits - 1)
        bits = Cat(Mux(s.small, one, whole), s.sign)
        return pipe.stage(bits=Mux(s.nan, form.nan, bits)).bits
