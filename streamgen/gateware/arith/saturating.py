"""Odd functions that rise from 0 to 1: tanh, erf, and the part of GELU that is one.

f(x), x = y·2^E with 1 <= y < 2, from a table with 64 lines for each E from -8 to where f is 1 to 18 bits:

    f(x) = line(E, y)·2^min(E, 0), in units of 2^-19;   E < -8: a line through zero;   beyond the table: 1

tanh and erf: rounded once, a relative error below 2^-14 at any value whose result is a normal number, never
falling.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
from amaranth import Cat, Const, Module, Mux, Value
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.format import Float, round_magnitude
from streamgen.gateware.arith.multiply import round_stages
from streamgen.gateware.arith.pipeline import Pipeline, normalise_step, operand, resize_signed
from streamgen.gateware.arith.tables import LOW_BITS, Table
from streamgen.gateware.arith.unit import UnitParams

_LOWEST = -8  # exponent of the first octave with lines of its own
INDEX_BITS = 6
VALUE_BITS = 19


@dataclass(frozen=True)
class Rise:
    """An odd function that rises from 0 to 1, of float64 arrays. highest: greatest exponent with lines."""

    name: str
    function: Callable[[ndarray], ndarray]
    highest: int


_RISES = {
    "tanh": Rise("tanh", np.tanh, 2),
    "erf": Rise("erf", np.vectorize(math.erf, otypes=[np.float64]), 1),
}


@cache
def _table(rise: Rise) -> Table:
    """The lines of all octaves, upwards, behind those of the line through zero.

    Entries are moved by half of what a chord misses in its middle: errors of both signs.
    """
    steps = np.arange(65) / 64
    rows = []
    for exponent in range(_LOWEST, rise.highest + 1):
        values = rise.function(2.0**exponent * (1 + steps)) / 2.0 ** min(exponent, 0)
        middles = rise.function(2.0**exponent * (1 + steps[:-1] + 1 / 128)) / 2.0 ** min(exponent, 0)
        sag = middles - (values[:-1] + values[1:]) / 2
        values[:-1] += (sag + np.insert(sag[:-1], 0, sag[0])) / 4
        rows.append(np.rint(values * 2**VALUE_BITS).astype(np.int64))
    for exponent, (row, following) in enumerate(pairwise(rows), _LOWEST):
        row[-1] = following[0] << (exponent < 0)
    rows.insert(0, np.rint(rows[0][0] * (1 + steps)).astype(np.int64))
    rows[0][-1] = 2 * rows[1][0]
    starts = np.concatenate([row[:-1] for row in rows])
    return Table(tuple(starts.tolist()), tuple(np.concatenate([np.diff(row) for row in rows]).tolist()))


def rise_golden(form: Float, rise: Rise, x: ndarray) -> tuple[ndarray, ndarray]:
    """int64 arrays: f(|x|) = value·2^scale; NaN as 0."""
    highest = rise.highest
    significand, exponent = form.decompose(x)
    raised = exponent + form.fraction_bits
    fraction = significand & ((1 << form.fraction_bits) - 1)
    shift = form.fraction_bits - INDEX_BITS - LOW_BITS
    index = fraction >> shift if shift > 0 else fraction << -shift
    row = np.clip(raised - _LOWEST + 1, 0, highest - _LOWEST + 1)
    value = _table(rise).golden(index + (row << (INDEX_BITS + LOW_BITS)))
    full = (raised > highest) & (significand != 0) | np.isinf(x)
    value = np.where(full, 1 << VALUE_BITS, np.where(significand == 0, 0, value))
    return value, np.where(full, 0, np.minimum(raised, 0)) - VALUE_BITS


def rise_stages(m: Module, pipe: Pipeline, form: Float, rise: Rise, bits: Value) -> SimpleNamespace:
    """Five stages: value, at least 2^18 if x is not 0, the biased exponent `scale` of 2^19 of it, and x."""
    highest = rise.highest
    x = operand(form, bits)
    low, high = form.bias + _LOWEST, form.bias + highest
    row = Mux(x.exponent < max(low, 0), 0, x.exponent - (low - 1))
    row_bits = (highest - _LOWEST + 1).bit_length()
    fraction = Cat(Const(0, max(0, INDEX_BITS + LOW_BITS - form.fraction_bits)), x.fraction)
    s = pipe.stage(
        index=Cat(fraction[len(fraction) - INDEX_BITS - LOW_BITS :], row[:row_bits]),
        full=x.exponent > high,
        scale=Mux(x.exponent < form.bias, x.exponent, form.bias),
        x=bits,
    )
    s = _table(rise).stages(m, pipe, rise.name, s.index, full=s.full, scale=s.scale, x=s.x)
    value = Mux(s.full, 1 << VALUE_BITS, s.value)
    padding = Const(0, VALUE_BITS + 2 - len(value))
    return pipe.stage(value=Cat(value, padding), scale=s.scale, x=s.x)


@dataclass(frozen=True, kw_only=True)
class SaturatingParams(UnitParams):
    """tanh(x) or erf(x) in `form`; ValueError for another function."""

    form: Float
    function: str
    latency = 7

    def __post_init__(self) -> None:
        if self.function not in _RISES:
            raise ValueError(f"function is {self.function!r}; tanh and erf are allowed")

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth."""
        p, e = self.form.precision, self.form.exponent_bits
        lines = int(self.form.fraction_bits > INDEX_BITS + 1)  # a product with one bit takes none
        return Resources(lut=2 * p + 6 * e + 35, ff=5 * p // 2 + 5 * e + 70, dsp=lines, bram=1)

    def golden(self, i: ndarray) -> ndarray:
        """float64 array of the function of values of the format."""
        form, x = self.form, np.asarray(i, np.float64)
        value, scale = rise_golden(form, _RISES[self.function], x)
        rounded, raised = round_magnitude(value.astype(np.uint64), form.precision)
        result = form.compose(np.signbit(x), rounded, scale + raised)
        return np.where(np.isnan(x), np.nan, np.where(x == 0, x, result))

    def stages(self, m: Module, pipe: Pipeline, i: Value) -> Value:
        form = self.form
        s = rise_stages(m, pipe, form, _RISES[self.function], i)
        x = operand(form, s.x)
        normal, shift = normalise_step(pipe, s.value, 1)
        return round_stages(
            pipe,
            form,
            normal=Cat(Const(0, max(0, form.precision - VALUE_BITS - 1)), normal),
            sign=x.sign,
            exponent=resize_signed(s.scale + 1 - shift, form.exponent_bits + 3),
            zero=x.zero,
            infinite=Const(0, 1),
            nan=x.nan,
        )
