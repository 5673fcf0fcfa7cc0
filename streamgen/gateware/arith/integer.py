"""Signed integers of any width up to 64 bits to floating point, one rounding to nearest even.

The steps are a two's complement absolute value, a normalisation in base 4 (multiples of 16, then of 4,
then of 1 bits), and the rounding. `IntToFloat` packs the result into a format; `round_integer` gives it
unpacked, with an exponent without limits, for units that go on calculating.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from amaranth import Cat, Const, Module, Value, signed
from amaranth.hdl import ShapeLike
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.format import Float, round_magnitude
from streamgen.gateware.arith.pipeline import (
    Pipeline,
    normalise_step,
    pack,
    resize_signed,
    round_up,
    signed_width,
)
from streamgen.gateware.arith.unit import UnitParams


def magnitude(values: ndarray) -> ndarray:
    """uint64 array: |values| of an int64 array, its least value included."""
    sign = np.asarray(values, np.int64) >> np.int64(63)
    return ((values ^ sign).astype(np.uint64)) + (sign & 1).astype(np.uint64)


def normalise_integer(pipe: Pipeline, value: Value, precision: int, **along: Value) -> SimpleNamespace:
    """Three stages: |value| with its leading one brought to the top, cut to `precision` bits.

    Gives sign, zero, fraction (precision - 1 bits, not yet rounded), exponent (unsigned, of the leading
    one), low and rest (the bits for `round_up`), and what comes `along`. Widths of at least precision + 2.
    """
    width = max(len(value), precision + 2)
    absolute = ((value ^ value[-1].replicate(len(value))) + value[-1])[: len(value)]
    padding = Const(0, width - len(value))
    s = pipe.stage(sign=value[-1], magnitude=Cat(absolute, padding), **along)
    kept = {name: getattr(s, name) for name in along}
    coarse, shift = normalise_step(pipe, s.magnitude, 16)
    s = pipe.stage(sign=s.sign, magnitude=coarse, shift=shift, **kept)
    kept = {name: getattr(s, name) for name in along}
    middle, shift_4 = normalise_step(pipe, s.magnitude, 4)
    normal, shift_1 = normalise_step(pipe, middle, 1)
    s = pipe.stage(sign=s.sign, magnitude=normal, shift=Cat(shift_1, shift_4, s.shift), **kept)
    kept = {name: getattr(s, name) for name in along}
    return SimpleNamespace(
        sign=s.sign,
        zero=~s.magnitude[-1],
        fraction=s.magnitude[width - precision : -1],
        exponent=(Const(width - 1) - s.shift)[: (width - 1).bit_length()],
        low=s.magnitude[width - precision],
        rest=s.magnitude[: width - precision],
        **kept,
    )


@dataclass(frozen=True, kw_only=True)
class IntToFloatParams(UnitParams):
    """Signed integers of `width` bits to `form`; ValueError unless 2 <= width <= 64."""

    width: int
    form: Float
    latency = 5

    def __post_init__(self) -> None:
        if not 2 <= self.width <= 64:
            raise ValueError(f"width is {self.width}; 2 to 64 bits are allowed")

    @property
    def resources(self) -> Resources:
        """Estimate of what synthesis finds, fitted to formats of 8 to 32 bits."""
        p, e = self.form.precision, self.form.exponent_bits
        width = max(self.width, p + 2)
        return Resources(lut=5 * self.width + 20, ff=3 * width + 2 * p + e + 16)

    def golden(self, values: ndarray) -> ndarray:
        """float64 array of the converted int64 values."""
        significand, exponent = round_magnitude(magnitude(values), self.form.precision)
        return self.form.compose(np.asarray(values) < 0, significand, exponent)

    def shapes(self) -> dict[str, ShapeLike]:
        return {**super().shapes(), "i": signed(self.width)}

    def stages(self, m: Module, pipe: Pipeline, i: Value) -> Value:
        form = self.form
        n = normalise_integer(pipe, i, form.precision)
        exponent_bits = max(signed_width(-1, self.width + form.bias + 1), form.exponent_bits + 2)
        s = pipe.stage(
            sign=n.sign,
            zero=n.zero,
            fraction=n.fraction,
            exponent=resize_signed(n.exponent + form.bias, exponent_bits),
            up=round_up(n.low, n.rest),
        )
        bits = pack(
            pipe,
            form,
            sign=s.sign,
            exponent=s.exponent,
            fraction=s.fraction,
            up=s.up,
            zero=s.zero,
            infinite=Const(0, 1),
            nan=Const(0, 1),
        )
        return pipe.stage(bits=bits).bits
