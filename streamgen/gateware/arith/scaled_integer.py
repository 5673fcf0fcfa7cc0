"""A signed integer times a power of two to floating point: i · 2^exponent, one rounding to nearest even.

What ends an exact integer sum whose terms share an exponent. The integer is rounded to the precision of the
format with an exponent without limits, then there is one overflow (infinity) or underflow (zero) test.
0 gives +0 whatever the exponent is; `nan` gives NaN whatever the rest is.
"""

from dataclasses import dataclass

import numpy as np
from amaranth import Const, Module, Value, signed, unsigned
from amaranth.hdl import ShapeLike
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.format import Float, round_magnitude
from streamgen.gateware.arith.integer import magnitude, normalise_integer
from streamgen.gateware.arith.pipeline import Pipeline, pack, resize_signed, round_up, signed_width
from streamgen.gateware.arith.unit import UnitParams


@dataclass(frozen=True, kw_only=True)
class ScaledIntegerParams(UnitParams):
    """Signed integers of `width` bits, signed exponents of `exponent_bits`, results in `form`.

    Raises ValueError unless 2 <= width <= 64 and 2 <= exponent_bits <= 32.
    """

    width: int
    form: Float
    exponent_bits: int = 16
    operands = ("i", "exponent", "nan")
    latency = 5

    def __post_init__(self) -> None:
        if not 2 <= self.width <= 64:
            raise ValueError(f"width is {self.width}; 2 to 64 bits are allowed")
        if not 2 <= self.exponent_bits <= 32:
            raise ValueError(f"exponent_bits is {self.exponent_bits}; 2 to 32 bits are allowed")

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth, fitted to formats of 16 to 32 bits."""
        width = max(self.width, self.form.precision + 2)
        return Resources(
            lut=4.4 * self.width + 2 * self.exponent_bits + 20,
            ff=3 * width + 2 * self.exponent_bits + 34,
        )

    def golden(self, i: ndarray, exponent: ndarray, nan: ndarray) -> ndarray:
        """float64 array from int64 integers, integer exponents and flags (broadcast)."""
        significand, raised = round_magnitude(magnitude(np.asarray(i, np.int64)), self.form.precision)
        result = self.form.compose(np.asarray(i) < 0, significand, raised + np.asarray(exponent, np.int64))
        return np.where(nan, np.nan, result)

    def shapes(self) -> dict[str, ShapeLike]:
        return {
            **super().shapes(),
            "i": signed(self.width),
            "exponent": signed(self.exponent_bits),
            "nan": unsigned(1),
        }

    def stages(self, m: Module, pipe: Pipeline, i: Value, exponent: Value, nan: Value) -> Value:
        form = self.form
        reach = 1 << (self.exponent_bits - 1)
        width = max(signed_width(-reach, reach + self.width + form.bias + 1), form.exponent_bits + 2)
        n = normalise_integer(pipe, i, form.precision, raised=exponent, nan=nan)
        s = pipe.stage(
            sign=n.sign,
            zero=n.zero,
            nan=n.nan,
            fraction=n.fraction,
            exponent=resize_signed(n.raised + (n.exponent + form.bias), width),
            up=round_up(n.low, n.rest),
        )
        bits = pack(pipe, form, infinite=Const(0, 1), **vars(s))
        return pipe.stage(bits=bits).bits
