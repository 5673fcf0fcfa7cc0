"""From one format to another, and to signed integers, each correctly rounded (to nearest, ties to even).

Convert rounds once when the target has less precision and tests the limits of the target's exponents.
FloatToInt brings the binary point of a value to its place by one right shift that collects what it loses,
rounds, and keeps to the limits of the integer: values beyond them give the nearest of them, NaN gives 0.
"""

from dataclasses import dataclass

import numpy as np
from amaranth import Cat, Const, Module, Mux, Value, signed, unsigned
from amaranth.hdl import ShapeLike
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.format import Float
from streamgen.gateware.arith.multiply import round_stages
from streamgen.gateware.arith.pipeline import Pipeline, align, operand, resize_signed, round_up, signed_width
from streamgen.gateware.arith.unit import UnitParams


@dataclass(frozen=True, kw_only=True)
class ConvertParams(UnitParams):
    """Values of `source` to `target`."""

    source: Float
    target: Float
    latency = 2

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth, fitted to formats of 8 to 32 bits."""
        p = min(self.source.precision, self.target.precision)
        e = max(self.source.exponent_bits, self.target.exponent_bits)
        return Resources(lut=2 * e + 10, ff=2 * p + 2 * e + 3)

    def golden(self, i: ndarray) -> ndarray:
        """float64 array of the converted values."""
        return self.target.round(i)

    def shapes(self) -> dict[str, ShapeLike]:
        return {"i": unsigned(self.source.bits), "o": unsigned(self.target.bits)}

    def stages(self, m: Module, pipe: Pipeline, i: Value) -> Value:
        source, target = self.source, self.target
        x = operand(source, i)
        width = max(source.exponent_bits, target.exponent_bits) + 3
        padding = Const(0, max(1, target.precision + 1 - source.precision))
        return round_stages(
            pipe,
            target,
            normal=Cat(padding, x.significand),
            sign=x.sign,
            exponent=resize_signed(x.exponent + (target.bias - source.bias), width),
            zero=x.zero,
            infinite=x.infinite,
            nan=x.nan,
        )


@dataclass(frozen=True, kw_only=True)
class FloatToIntParams(UnitParams):
    """Values of `form` to signed integers of `width` bits; ValueError unless 2 <= width <= 64."""

    form: Float
    width: int
    latency = 4

    def __post_init__(self) -> None:
        if not 2 <= self.width <= 64:
            raise ValueError(f"width is {self.width}; 2 to 64 bits are allowed")

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth, fitted to formats of 8 to 32 bits."""
        width, p = self.width, self.form.precision
        greater = max(width, p)
        return Resources(
            lut=(15 * greater + 41 * width + 39 * p) // 10 - 16,
            ff=(8 * greater + 23 * width + 11 * p) // 10 + 6,
        )

    def golden(self, i: ndarray) -> ndarray:
        """int64 array of the nearest integers within the limits."""
        nearest, limit = np.rint(np.asarray(i, np.float64)), 1 << (self.width - 1)
        inside = (nearest > -limit) & (nearest < limit)
        result = np.where(inside, nearest, 0.0).astype(np.int64)
        return np.where(nearest >= limit, limit - 1, np.where(nearest <= -limit, -limit, result))

    def shapes(self) -> dict[str, ShapeLike]:
        return {**super().shapes(), "o": signed(self.width)}

    def stages(self, m: Module, pipe: Pipeline, i: Value) -> Value:
        form, width = self.form, self.width

        # The leading one of a value in [2^(width-1), 2^width) is the top bit of `width` whole bits; smaller
        # values are shifted right. Shifts beyond one half leave the collected bits alone.
        x = operand(form, i)
        below = Const(form.bias + width - 1) - x.exponent
        span = signed_width(-(1 << form.exponent_bits), form.bias + width)
        below = resize_signed(below, span)
        places = (width + 1).bit_length()
        s = pipe.stage(
            significand=x.significand & (~x.zero).replicate(form.precision),
            distance=below[:places],
            far=~below[-1] & below[places:-1].any(),
            large=below[-1] | x.infinite,
            clear=x.nan,
            sign=x.sign,
        )
        fraction = max(2, form.precision - width)
        padding = Const(0, width + fraction - form.precision)
        aligned = align(pipe, Cat(padding, s.significand), s.distance, s.far)
        s = pipe.stage(value=aligned, large=s.large, clear=s.clear, sign=s.sign)

        whole = s.value[fraction:]
        up = round_up(whole[0], s.value[:fraction])
        s = pipe.stage(whole=whole + up, large=s.large, clear=s.clear, sign=s.sign)

        # -2^(width-1) is an integer of the width, 2^(width-1) is not.
        beyond = s.large | s.whole[width - 1 :].any()
        limit = Cat((~s.sign).replicate(width - 1), s.sign)
        negated = ((s.whole[:width] ^ s.sign.replicate(width)) + s.sign)[:width]
        result = Mux(s.clear, 0, Mux(beyond, limit, negated))
        return pipe.stage(result=result).result
