"""Odd functions that rise from 0 to 1: tanh, erf, and GELU, which is made of one.

f(x), x = y·2^E with 1 <= y < 2, from a table with 64 lines for each E from -8 to where f is 1 to 18 bits:

    f(x) = line(E, y)·2^min(E, 0), in units of 2^-19;   E < -8: a line through zero;   beyond the table: 1

tanh and erf: rounded once, a relative error below 2^-14 at any value whose result is a normal number, never
falling. GELU is x·(1 + f(x)) / 2 with f(x) = erf(x/√2), or tanh(√(2/π)·(x + 0.044715·x³)) for its
approximation: 1 + f in units of 2^-19, rounded once after the product. Its error is below
2^-14·|result| + 2^-17·|x|, the second part for negative x, where 1 and f cancel. GELU(-infinity) is NaN
(-infinity·0, as torch computes it).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
from amaranth import Cat, Const, Module, Mux, Value, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.format import Float, round_magnitude
from streamgen.gateware.arith.multiply import round_stages
from streamgen.gateware.arith.pipeline import Pipeline, normalise_step, operand, resize_signed
from streamgen.gateware.arith.tables import LOW_BITS, Table

__all__ = ["GELU_FUNCTIONS", "Gelu", "GeluParams", "Saturating", "SaturatingParams"]

_LOWEST = -8  # exponent of the first octave with lines of its own
_INDEX_BITS = 6
_VALUE_BITS = 19
_SUM_BITS = _VALUE_BITS + 1


def _gelu_tanh(x: ndarray) -> ndarray:
    return np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


_erf = np.vectorize(math.erf, otypes=[np.float64])
# f, and the greatest exponent with lines.
_FUNCTIONS: dict[str, tuple[Callable[[ndarray], ndarray], int]] = {
    "tanh": (np.tanh, 2),
    "erf": (_erf, 1),
    "gelu": (lambda x: _erf(x / math.sqrt(2)), 2),
    "gelu_tanh": (_gelu_tanh, 2),
}
GELU_FUNCTIONS = ("gelu", "gelu_tanh")


@cache
def _table(name: str) -> Table:
    """The lines of all octaves, upwards, behind those of the line through zero.

    Entries are moved by half of what a chord misses in its middle: errors of both signs.
    """
    function, highest = _FUNCTIONS[name]
    steps = np.arange(65) / 64
    rows = []
    for exponent in range(_LOWEST, highest + 1):
        values = function(2.0**exponent * (1 + steps)) / 2.0 ** min(exponent, 0)
        middles = function(2.0**exponent * (1 + steps[:-1] + 1 / 128)) / 2.0 ** min(exponent, 0)
        sag = middles - (values[:-1] + values[1:]) / 2
        values[:-1] += (sag + np.insert(sag[:-1], 0, sag[0])) / 4
        rows.append(np.rint(values * 2**_VALUE_BITS).astype(np.int64))
    for exponent, (row, following) in enumerate(pairwise(rows), _LOWEST):
        row[-1] = following[0] << (exponent < 0)
    rows.insert(0, np.rint(rows[0][0] * (1 + steps)).astype(np.int64))
    rows[0][-1] = 2 * rows[1][0]
    starts = np.concatenate([row[:-1] for row in rows])
    return Table(tuple(starts.tolist()), tuple(np.concatenate([np.diff(row) for row in rows]).tolist()))


def _golden(form: Float, name: str, x: ndarray) -> tuple[ndarray, ndarray]:
    """int64 arrays: f(|x|) = value·2^scale; NaN as 0."""
    highest = _FUNCTIONS[name][1]
    significand, exponent = form.decompose(x)
    raised = exponent + form.fraction_bits
    fraction = significand & ((1 << form.fraction_bits) - 1)
    shift = form.fraction_bits - _INDEX_BITS - LOW_BITS
    index = fraction >> shift if shift > 0 else fraction << -shift
    row = np.clip(raised - _LOWEST + 1, 0, highest - _LOWEST + 1)
    value = _table(name).golden(index + (row << (_INDEX_BITS + LOW_BITS)))
    full = (raised > highest) & (significand != 0) | np.isinf(x)
    value = np.where(full, 1 << _VALUE_BITS, np.where(significand == 0, 0, value))
    return value, np.where(full, 0, np.minimum(raised, 0)) - _VALUE_BITS


def _stages(m: Module, pipe: Pipeline, form: Float, name: str, bits: Value) -> SimpleNamespace:
    """Five stages: value, at least 2^18 if x is not 0, the biased exponent `scale` of 2^19 of it, and x."""
    highest = _FUNCTIONS[name][1]
    x = operand(form, bits)
    low, high = form.bias + _LOWEST, form.bias + highest
    row = Mux(x.exponent < max(low, 0), 0, x.exponent - (low - 1))
    row_bits = (highest - _LOWEST + 1).bit_length()
    fraction = Cat(Const(0, max(0, _INDEX_BITS + LOW_BITS - form.fraction_bits)), x.fraction)
    s = pipe.stage(
        index=Cat(fraction[len(fraction) - _INDEX_BITS - LOW_BITS :], row[:row_bits]),
        full=x.exponent > high,
        scale=Mux(x.exponent < form.bias, x.exponent, form.bias),
        x=bits,
    )
    s = _table(name).stages(m, pipe, name, s.index, full=s.full, scale=s.scale, x=s.x)
    value = Mux(s.full, 1 << _VALUE_BITS, s.value)
    padding = Const(0, _VALUE_BITS + 2 - len(value))
    return pipe.stage(value=Cat(value, padding), scale=s.scale, x=s.x)


@dataclass(frozen=True, kw_only=True)
class SaturatingParams:
    """tanh(x) or erf(x) in `form`; ValueError for another function."""

    form: Float
    function: str

    def __post_init__(self) -> None:
        if self.function not in ("tanh", "erf"):
            raise ValueError(f"function is {self.function!r}; tanh and erf are allowed")

    @property
    def latency(self) -> int:
        """Stages, hence enabled cycles from operand to result."""
        return 7

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth."""
        p, e = self.form.precision, self.form.exponent_bits
        lines = int(self.form.fraction_bits > _INDEX_BITS)
        return Resources(lut=2 * p + 6 * e + 35, ff=5 * p // 2 + 5 * e + 70, dsp=lines, bram=1)

    def golden(self, i: ndarray) -> ndarray:
        """float64 array of the function of values of the format."""
        form, x = self.form, np.asarray(i, np.float64)
        value, scale = _golden(form, self.function, x)
        rounded, raised = round_magnitude(value.astype(np.uint64), form.precision)
        result = form.compose(np.signbit(x), rounded, scale + raised)
        return np.where(np.isnan(x), np.nan, np.where(x == 0, x, result))

    def build(self) -> "Saturating":
        return Saturating(self)


class Saturating(wiring.Component):
    """i: the bits of x; o: of the function, `latency` enabled cycles later."""

    def __init__(self, params: SaturatingParams) -> None:
        bits = unsigned(params.form.bits)
        super().__init__({"enable": In(1), "i": In(bits), "o": Out(bits)})
        self._params = params

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        form = self._params.form
        pipe = Pipeline(m, self.enable)
        s = _stages(m, pipe, form, self._params.function, self.i)
        x = operand(form, s.x)
        normal, shift = normalise_step(pipe, s.value, 1)
        bits = round_stages(
            pipe,
            form,
            normal=Cat(Const(0, max(0, form.precision - _VALUE_BITS - 1)), normal),
            sign=x.sign,
            exponent=resize_signed(s.scale + 1 - shift, form.exponent_bits + 3),
            zero=x.zero,
            infinite=Const(0, 1),
            nan=x.nan,
        )
        m.d.comb += self.o.eq(bits)
        return m


@dataclass(frozen=True, kw_only=True)
class GeluParams:
    """GELU(x) in `form`, exact or by torch's `approximate="tanh"`."""

    form: Float
    tanh: bool = False

    @property
    def function(self) -> str:
        """The name of f."""
        return GELU_FUNCTIONS[self.tanh]

    @property
    def latency(self) -> int:
        """Stages, hence enabled cycles from operand to result."""
        return 10

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth."""
        p, e = self.form.precision, self.form.exponent_bits
        dsps = int(self.form.fraction_bits > _INDEX_BITS) + (1 if p <= 17 else 2)
        return Resources(lut=7 * p + 8 * e + 145, ff=9 * p // 2 + 9 * e + 135, dsp=dsps, bram=1)

    def golden(self, i: ndarray) -> ndarray:
        """float64 array of the function of values of the format."""
        form, x = self.form, np.asarray(i, np.float64)
        value, scale = _golden(form, self.function, x)
        f = value >> np.clip(-_VALUE_BITS - scale, 0, 63)
        total = (1 << _VALUE_BITS) + np.where(np.signbit(x), -f, f)
        significand, exponent = form.decompose(x)
        rounded, raised = round_magnitude((total * significand).astype(np.uint64), form.precision)
        result = form.compose(np.signbit(x), rounded, exponent - _SUM_BITS + raised)
        result = np.where(np.isinf(x), np.where(x > 0, np.inf, np.nan), result)
        return np.where(np.isnan(x), np.nan, result)

    def build(self) -> "Gelu":
        return Gelu(self)


class Gelu(wiring.Component):
    """i: the bits of x; o: of the function, `latency` enabled cycles later."""

    def __init__(self, params: GeluParams) -> None:
        bits = unsigned(params.form.bits)
        super().__init__({"enable": In(1), "i": In(bits), "o": Out(bits)})
        self._params = params

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        form = self._params.form
        pipe = Pipeline(m, self.enable)
        s = _stages(m, pipe, form, self._params.function, self.i)

        # f is below 1 where it is shifted: its bits fit, the shift only drops.
        distance = Const(form.bias) - s.scale
        far = distance[5 : form.exponent_bits].any() if form.exponent_bits > 5 else Const(0, 1)
        f = pipe.wire(Mux(far, 0, s.value >> distance[:5])[: _VALUE_BITS + 1])
        sign = s.x[-1]
        total = Mux(sign, (1 << _VALUE_BITS) - f, (1 << _VALUE_BITS) + f)[: _SUM_BITS + 1]
        s = pipe.stage(total=total, x=s.x)

        x = operand(form, s.x)
        s = pipe.stage(
            product=s.total * x.significand,
            exponent=x.exponent,
            sign=x.sign,
            zero=x.zero | ~s.total.any(),
            infinite=x.infinite & ~x.sign,
            nan=x.nan | (x.infinite & x.sign),
        )
        flags = {name: getattr(s, name) for name in ("sign", "zero", "infinite", "nan")}
        coarse, shift_16 = normalise_step(pipe, s.product, 16)
        middle, shift_4 = normalise_step(pipe, coarse, 4)
        s = pipe.stage(value=middle, shift=Cat(shift_4, shift_16), exponent=s.exponent, **flags)
        flags = {name: getattr(s, name) for name in flags}
        normal, shift_1 = normalise_step(pipe, s.value, 1)
        exponent = s.exponent + 1 - Cat(shift_1, s.shift)
        bits = round_stages(
            pipe,
            form,
            normal=normal,
            exponent=resize_signed(exponent, form.exponent_bits + 3),
            **flags,
        )
        m.d.comb += self.o.eq(bits)
        return m
